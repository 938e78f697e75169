"""Parts of an application and of packages: everything that they contribute reaches the server."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import httpx2
import msgspec
import pytest
import typer
from typer.testing import CliRunner

import dragoman
from dragoman import (
    Command,
    Contribution,
    Facilities,
    Finding,
    Gauge,
    HttpRequest,
    HttpResponse,
    Loop,
    Part,
    Route,
    Section,
    resource,
    tool,
)
from dragoman import app as composition
from dragoman.app import _TAKEN, configure
from dragoman.changes import Change, ResultsOutdated
from dragoman.cli import checks
from dragoman.cli.commands import COMMANDS
from dragoman.cli.config import app as config_commands
from dragoman.cli.options import load_settings
from dragoman.cli.parts import add_commands
from dragoman.config import Settings, make_config
from dragoman.errors import ConfigError, DuplicateTool, PartFailed
from dragoman.parts.installed import installed_parts, sections_of_installed
from dragoman.runtime import ServerState
from dragoman.sections import about
from dragoman.telemetry.figures import MOST_VALUES
from dragoman.telemetry.log import Entry, StructuredLogger
from dragoman.telemetry.metrics import Snapshot
from dragoman.testing import ManualClock, TestServer, open_server
from dragoman.testing.connection import ENVELOPE
from tests.support.waiting import PATIENCE, until


class BellConfig(Section, frozen=True):
    """How the bell sounds."""

    sound: Annotated[str, about("What it says.")] = "ding"
    most: Annotated[int, msgspec.Meta(ge=1), about("How often.", is_limit=True)] = 3


class Bell:
    """A part that uses every field, and what became of it."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.changes: list[Change] = []
        self.given: Facilities
        self.fails = False
        self.part = Part(
            name="bell",
            settings=BellConfig,
            commands=(Command("ring", self.command),),
            checks=(self.check,),
            build=self.build,
        )

    def command(self, context: typer.Context, times: int) -> None:
        """Ring on the command line."""
        typer.echo(context.obj.get("bell").sound * times)

    def check(self, settings: BellConfig) -> Iterator[Finding]:
        yield Finding("bell", "ok", f"it says {settings.sound}")

    def build(self, given: Facilities) -> Contribution:
        self.given = given
        rung = 0

        @tool
        def ring() -> str:
            nonlocal rung
            rung += 1
            return str(given.settings.sound)

        @resource("bell://sound", name="sound")
        def sound() -> str:
            return str(given.settings.sound)

        async def show(request: HttpRequest) -> HttpResponse:
            return HttpResponse(200, msgspec.json.encode({"rung": rung, "path": request.path}))

        async def loop() -> None:
            self.seen.append("looping")
            if self.fails:
                raise OSError("no rope")
            await asyncio.Event().wait()

        def stage(proceed: Any) -> Callable[[Any], Any]:
            def note(call: Any) -> Any:
                self.seen.append(f"stage {call.name}")
                return proceed(call)

            return note

        async def start() -> None:
            outcome = await given.call("ring")
            self.seen.append(f"started {outcome.unwrap()}")

        return Contribution(
            tools=(ring, sound),
            routes=(Route("/bell", show, is_open=True), Route("/bells/*", show, needs_caller=False, is_open=True)),
            gauges=(
                Gauge("bell_rung", "Times.", lambda: rung, is_counter=True),
                Gauge("bell_broken", "", lambda: 1 / 0),
            ),
            observers=(lambda record, call: self.seen.append(f"observed {record.tool_name}"),),
            stages=(stage,),
            on_change=self.changes.append,
            loops=(Loop("swing", loop),),
            start=start,
            stop=lambda: self.seen.append("stopped"),
        )


@asynccontextmanager
async def serving(bell: Bell, config: dict[str, Any] | None = None, **options: Any) -> AsyncIterator[TestServer]:
    async with open_server([], config, parts=[bell.part], **options) as server:
        await asyncio.sleep(0)
        yield server


def over(app: Any) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://127.0.0.1")


async def test_tools_resources_and_the_rest_of_a_part_are_there_over_stdio() -> None:
    bell = Bell()
    async with serving(bell, {"bell": {"sound": "dong"}}) as server:
        client = await server.client()
        assert [each["name"] for each in await client.list_tools()] == ["health", "ring"]
        assert (await client.call_tool("ring"))["content"][0]["text"] == "dong"
        read = await client.request("resources/read", {"uri": "bell://sound"})
        assert read["result"]["contents"][0]["text"] == "dong"
        server.runtime.apply(ResultsOutdated(("a",)))
        assert bell.changes == [ResultsOutdated(("a",))]
        told: list[Change] = []
        server.runtime.shared.publish = told.append
        bell.given.publish(ResultsOutdated(("b",)))
        assert told == [ResultsOutdated(("b",))]
    first = ["stage ring", "observed ring", "started dong", "looping", "stage ring", "observed ring"]
    assert bell.seen[:6] == first
    assert bell.seen[-1] == "stopped"


async def test_routes_and_gauges_of_a_part_are_there_over_http() -> None:
    bell = Bell()
    app = dragoman.http_app([], {}, parts=[bell.part], allow_unauthenticated=True)
    async with app.lifespan(), over(app) as client:
        assert (await client.get("/bell")).json() == {"rung": 1, "path": "/bell"}
        assert (await client.get("/bells/one")).json() == {"rung": 1, "path": "/bells/one"}
        assert (await client.post("/bell")).status_code == 405
        page = (await client.get("/metrics")).text
        assert "\nbell_rung_total 1.0\n" in page
        assert "bell_broken" not in page


async def test_the_routes_of_a_part_require_what_every_route_requires() -> None:
    auth = {"callers": {"ada": {"token": "a-token-of-some-length"}}}
    app = dragoman.http_app([], {"auth": auth}, parts=[Bell().part])
    async with app.lifespan(), over(app) as client:
        assert (await client.get("/bell")).status_code == 401
        known = {"authorization": "Bearer a-token-of-some-length"}
        assert (await client.get("/bell", headers=known)).status_code == 200
        assert (await client.get("/bells/one")).status_code == 200
        assert (await client.get("/bells/one", headers={"host": "evil.example"})).status_code == 421


@pytest.mark.requirement("FR-HEALTH-001")
async def test_a_part_whose_loop_was_given_up_is_named_by_health_and_ready() -> None:
    bell, clock = Bell(), ManualClock()
    bell.fails = True
    runtime = dragoman.create_server(dragoman.ServerOptions(parts=[bell.part], clock=clock))
    app = runtime.http()
    async with app.lifespan(), over(app) as client:
        assert "missingParts" not in (await runtime.call("health")).unwrap()
        assert (await client.get("/ready")).json() == {"status": "running"}
        for runs in range(1, 7):
            await until(lambda: bell.seen.count("looping") == runs)  # noqa: B023 - called before the next turn
            clock.advance(5)
        await until(lambda: runtime.missing_parts)
        health = (await runtime.call("health")).unwrap()
        assert (health["missingParts"], health["status"]) == (["bell"], "degraded")
        ready = await client.get("/ready")
        assert (ready.status_code, ready.json()) == (200, {"status": "running", "missingParts": ["bell"]})
        alive = await client.get("/health")
        assert (alive.status_code, alive.json()["status"]) == (200, "ok")


async def test_a_part_that_cannot_be_started_fails_the_start_and_the_server_is_stopped() -> None:
    def fail() -> None:
        raise OSError("no rope")

    bell = Bell()
    broken = Part(name="broken", build=lambda given: Contribution(start=fail))
    options = dragoman.ServerOptions(parts=[bell.part, broken])
    runtime = dragoman.create_server(options)
    with pytest.raises(PartFailed, match="'broken' cannot be started: OSError: no rope"):
        await runtime.start()
    assert runtime.state is ServerState.CLOSED
    assert bell.seen[-1] == "stopped"


def test_a_part_cannot_take_the_name_of_a_tool_a_part_or_a_section() -> None:
    bell = Bell()

    @tool
    def ring() -> str:
        return "mine"

    with pytest.raises(DuplicateTool):
        dragoman.create_server(dragoman.ServerOptions(tools=[ring], parts=[bell.part]))
    with pytest.raises(ConfigError, match="there are two parts called 'bell'"):
        dragoman.create_server(dragoman.ServerOptions(parts=[bell.part, Part(name="bell")]))
    with pytest.raises(ConfigError, match="http: is a section of the server"):
        configure({}, parts=[Part(name="http", settings=BellConfig)])


@pytest.mark.parametrize(
    "name", ["storage", "cache", "metrics", "explorer", "memories", "results", "announcer", "tasks"]
)
def test_a_part_cannot_have_the_name_of_a_part_of_the_server(name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' is the name of a part of the server"):
        dragoman.create_server(dragoman.ServerOptions(parts=[Part(name=name)]))


def test_the_names_of_all_parts_of_a_server_are_refused_for_others() -> None:
    config = configure(
        {
            "explorer": {"enabled": True},
            "tools": {"memoryEnabled": True, "adminRegistrationEnabled": True},
            "security": {"dynamicRegistrationEnabled": True},
            "response": {"dialect": "envelope"},
        }
    )
    runtime = dragoman.create_server(dragoman.ServerOptions(config=config))
    runtime.http()
    assert set(runtime.supervisor.names) <= _TAKEN


class RequiredConfig(Section, frozen=True):
    sound: str


@pytest.mark.parametrize(
    ("name", "section", "reason"),
    [
        ("my-bell", BellConfig, "is no name for a section"),
        ("Bell", BellConfig, "is no name for a section"),
        ("conflicts", BellConfig, "is a section of the server"),
        ("bell", RequiredConfig, "settings all have defaults"),
        ("bell", int, "settings all have defaults"),
    ],
)
def test_a_section_that_a_part_cannot_have_is_refused(name: str, section: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        configure({}, parts=[Part(name=name, settings=section)])


@pytest.mark.parametrize("error", [OSError("no rope"), SystemExit(3), None])
def test_a_part_that_cannot_be_built_is_named(error: BaseException | None) -> None:
    def build(given: Facilities) -> Any:
        if error is not None:
            raise error

    with pytest.raises(PartFailed, match="The part 'bell' cannot be started") as failed:
        dragoman.create_server(dragoman.ServerOptions(parts=[Part(name="bell", build=build)]))
    assert isinstance(failed.value.__cause__, TypeError if error is None else type(error))


async def test_a_client_cannot_remove_the_tool_of_a_part() -> None:
    switches = {
        "tools": {"adminRegistrationEnabled": True, "adminPolicy": {"mode": "local_stdio_only"}},
        "security": {"dynamicRegistrationEnabled": True},
    }
    async with serving(Bell(), switches) as server:
        result = await (await server.client()).call_tool("admin/unregisterTool", {"name": "ring"})
        assert result["isError"] is True


async def test_a_part_without_settings_in_the_config_has_its_defaults() -> None:
    bell = Bell()
    dragoman.create_server(dragoman.ServerOptions(parts=[bell.part]))
    assert bell.given.settings == BellConfig()


# Defects of a part.


def with_gauges(*gauges: Gauge) -> dragoman.Runtime:
    part = Part(name="bell", build=lambda given: Contribution(gauges=gauges))
    return dragoman.create_server(dragoman.ServerOptions(parts=[part]))


def leave() -> float:
    raise SystemExit(3)


@pytest.mark.parametrize("read", [leave, lambda: float("nan"), lambda: float("inf"), lambda: "loud"])
def test_a_gauge_that_shows_no_number_is_left_out_of_the_metrics(read: Any) -> None:
    runtime = with_gauges(Gauge("bell_broken", "", read), Gauge("bell_rung", "Times.", lambda: 2))
    runtime.http()
    assert runtime.metrics is not None
    told = msgspec.json.decode(msgspec.json.encode(runtime.metrics.snapshot()), type=Snapshot)
    assert [name for name in told.gauges if name.startswith("bell_")] == ["bell_rung"]


def shown_by(*gauges: Gauge) -> list[str]:
    """The lines of the page that are about gauges of a part."""
    runtime = with_gauges(*gauges)
    runtime.http()
    assert runtime.metrics is not None
    told = msgspec.json.decode(msgspec.json.encode(runtime.metrics.snapshot()), type=Snapshot)
    return [
        line for line in Snapshot.together([told, told]).page()[0].decode().splitlines() if line.startswith("bell_")
    ]


def test_a_gauge_with_a_label_shows_several_figures_that_workers_add_up() -> None:
    assert shown_by(Gauge("bell_rung", "Times.", lambda: {"small": 1, "large": 2.5}, label="bell")) == [
        'bell_rung{bell="large"} 5.0',
        'bell_rung{bell="small"} 2.0',
    ]


def test_a_gauge_with_a_label_shows_a_bounded_number_of_figures() -> None:
    many = {f"bell {number:04}": number for number in range(1000)}
    assert len(shown_by(Gauge("bell_rung", "Times.", lambda: many, label="bell"))) == MOST_VALUES


@pytest.mark.parametrize(("label", "shown"), [(None, {"small": 1}), ("bell", 1), ("bell", {"small": float("nan")})])
def test_a_gauge_that_shows_what_its_label_does_not_fit_is_left_out(label: str | None, shown: Any) -> None:
    assert shown_by(Gauge("bell_rung", "Times.", lambda: shown, label=label)) == []


def test_a_label_that_prometheus_does_not_take_is_refused() -> None:
    with pytest.raises(ValueError, match="'of bell' is not a name"):
        Gauge("bell_rung", "Times.", dict, label="of bell")


@pytest.mark.parametrize("names", [("bell_rung", "bell_rung_total"), ("dragoman_slots",)])
def test_two_gauges_of_one_name_are_refused(names: tuple[str, ...]) -> None:
    runtime = with_gauges(*(Gauge(name, "", lambda: 1) for name in names))
    with pytest.raises(ConfigError, match=f"the gauge {names[0]} is not the only one"):
        runtime.http()


def test_a_path_that_no_request_can_have_is_refused() -> None:
    async def show(request: HttpRequest) -> HttpResponse:
        return HttpResponse(200)

    part = Part(name="bell", build=lambda given: Contribution(routes=(Route("bell", show, is_open=True),)))
    with pytest.raises(ConfigError, match="'bell' is no path"):
        dragoman.create_server(dragoman.ServerOptions(parts=[part])).http()


@pytest.mark.parametrize("error", [OSError("no rope"), SystemExit(3)])
def test_a_part_that_fails_to_follow_a_change_is_logged_and_the_others_follow_it(error: BaseException) -> None:
    def fail(change: Change) -> None:
        raise error

    bell, entries = Bell(), list[Entry]()
    broken = Part(name="broken", build=lambda given: Contribution(on_change=fail))
    logger = StructuredLogger(entries.append, ManualClock())
    runtime = dragoman.create_server(dragoman.ServerOptions(parts=[broken, bell.part], logger=logger))
    runtime.apply(ResultsOutdated(("a",)))
    assert bell.changes == [ResultsOutdated(("a",))]
    assert [each["message"] for each in entries if isinstance(each, dict)] == ["a part failed to follow a change"]


@pytest.mark.parametrize("error", [OSError, SystemExit])
async def test_an_observer_that_fails_is_logged_and_the_others_are_shown_the_record(error: type[BaseException]) -> None:
    def fail(record: Any, call: Any) -> None:
        raise error  # A new one each time: its traceback leads to the call.

    bell, entries = Bell(), list[Entry]()
    broken = Part(name="broken", build=lambda given: Contribution(observers=(fail,)))
    logger = StructuredLogger(entries.append, ManualClock())
    async with dragoman.open([], parts=[broken, bell.part], logger=logger) as runtime:
        bell.seen.clear()
        assert (await runtime.call("ring")).unwrap() == "ding"
        await until(lambda: "observed ring" in bell.seen)
    assert "an observer failed" in [each["message"] for each in entries if isinstance(each, dict)]


# Settings.


def test_the_problems_of_a_parts_settings_are_reported_with_all_others() -> None:
    with pytest.raises(ConfigError) as refused:
        configure({"bell": {"sund": 5, "most": 0}, "server": {"nme": "x"}}, parts=[Bell().part])
    assert [name for name, _ in refused.value.problems] == ["bell.sund", "server.nme", "bell.most"]


# Packages.

MODULE = """
from collections.abc import Iterator

import typer

from dragoman import Command, Contribution, Finding, Part, Section, tool

class Bell(Section, frozen=True):
    sound: str = "ding"

def check(settings: Bell) -> Iterator[Finding]:
    yield Finding("bell", "warning", f"it says {settings.sound}")

def broken(settings: Bell) -> Iterator[Finding]:
    raise OSError("no rope")

def ring(context: typer.Context, times: int = 1) -> None:
    typer.echo(context.obj.get("bell").sound * times)

def build(given):
    @tool
    def sound() -> str:
        return given.settings.sound

    return Contribution(tools=(sound,))

part = Part(name="bell", settings=Bell, checks=(check, broken), commands=(Command("ring", ring),), build=build)
other = Part(name="other")
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package with parts; returns the folder that it is in."""
    (tmp_path / "bell_package.py").write_text(MODULE, "utf-8")
    info = tmp_path / "bell_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bell-package\nVersion: 1.0\n", "utf-8")
    lines = (
        "bell = bell_package:part",
        "misnamed = bell_package:other",
        "absent = no_such_module:part",
        "leaving = leaving:part",
    )
    (info / "entry_points.txt").write_text("\n".join(("[dragoman.parts]", *lines, "")), "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("bell_package", None)


@pytest.mark.usefixtures("package")
async def test_the_part_of_a_package_is_loaded_if_the_settings_name_it() -> None:
    async with open_server([], {"bell": {"sound": "dong"}, "server": {"parts": ["bell"]}}) as server:
        assert (await server.runtime.call("sound")).unwrap() == "dong"


@pytest.mark.usefixtures("package")
async def test_no_package_is_looked_for_if_the_settings_name_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: pytest.fail("looked for"))
    async with open_server([]) as server:
        assert server.runtime.catalogue.get("sound") is None
    assert "bell_package" not in sys.modules


@pytest.mark.slow
def test_a_server_without_parts_of_packages_does_not_load_the_metadata_of_packages() -> None:
    script = "import sys, dragoman.app; dragoman.app.create_server(dragoman.app.ServerOptions()); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert "importlib.metadata" not in done.stdout.split()


@pytest.mark.usefixtures("package")
def test_every_part_that_cannot_be_loaded_is_reported(tmp_path: Path) -> None:
    (tmp_path / "leaving.py").write_text("raise SystemExit(0)", "utf-8")
    with pytest.raises(ConfigError) as refused:
        installed_parts(["bell", "bel", "misnamed", "absent", "leaving"])
    assert refused.value.problems == (
        ("server.parts", "no installed package has a part called 'bel'; did you mean bell?"),
        ("server.parts", "bell_package:other is not a Part called 'misnamed'"),
        ("server.parts", "absent cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"),
        ("server.parts", "leaving cannot be imported: SystemExit: 0"),
    )


@pytest.mark.usefixtures("package")
def test_the_environment_and_a_named_file_can_name_parts_and_set_their_settings(tmp_path: Path) -> None:
    file = tmp_path / "named.toml"
    file.write_text('[server]\nparts = ["bell"]\n[bell]\nsound = "dong"\n', "utf-8")
    settings = Settings.load(file, {"DRAGOMAN_BELL__SOUND": "5"}, find_sections=sections_of_installed)
    assert msgspec.to_builtins(settings.get("bell")) == {"sound": "5"}
    assert settings.sources["bell.sound"] == "DRAGOMAN_BELL__SOUND"
    settings = Settings.load(None, {"DRAGOMAN_SERVER__PARTS": '["bell"]'}, find_sections=sections_of_installed)
    assert msgspec.to_builtins(settings.get("bell")) == {"sound": "ding"}


@pytest.mark.usefixtures("package")
def test_a_file_that_was_only_found_names_no_part_and_nothing_is_imported_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dragoman.toml").write_text('[server]\nparts = ["bell"]\n', "utf-8")
    with pytest.raises(ConfigError, match=re.escape("server.parts: a file that is only found")):
        load_settings(None)
    assert "bell_package" not in sys.modules


@pytest.mark.usefixtures("package")
def test_a_worker_reads_the_settings_of_parts_as_its_parent_did() -> None:
    config = configure({"server": {"parts": ["bell"]}, "bell": {"sound": "dong"}})
    received = configure(msgspec.json.decode(msgspec.json.encode(config)))
    assert msgspec.to_builtins(received) == msgspec.to_builtins(config)


@pytest.mark.slow
def test_a_server_on_stdio_and_the_command_line_have_the_part_of_a_package(package: Path) -> None:
    settings = {"DRAGOMAN_SERVER__PARTS": '["bell"]', "DRAGOMAN_BELL__SOUND": "dong"}
    environ = {**os.environ, **settings, "PYTHONPATH": str(package)}
    command = [sys.executable, "-m", "dragoman"]
    rung = subprocess.run([*command, "ring"], env=environ, capture_output=True, text=True, timeout=PATIENCE)
    assert (rung.stdout, rung.stderr) == ("dong\n", "")
    called = subprocess.run([*command, "call", "sound"], env=environ, capture_output=True, text=True, timeout=PATIENCE)
    assert "dong" in called.stdout, called.stderr
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "sound", "_meta": ENVELOPE}}
    with subprocess.Popen(
        [*command, "serve"], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as served:
        assert served.stdin is not None
        assert served.stdout is not None
        served.stdin.write(msgspec.json.encode(request) + b"\n")
        served.stdin.flush()
        answer = msgspec.json.decode(served.stdout.readline())
        served.stdin.close()
        assert served.wait(PATIENCE) == 0
    assert answer["result"]["content"][0]["text"] == "dong"


@pytest.mark.usefixtures("package")
def test_a_section_of_a_part_that_is_not_named_is_not_a_setting() -> None:
    with pytest.raises(ConfigError, match="bell: is not a setting"):
        make_config({"bell": {}})


@pytest.mark.usefixtures("package")
def test_the_schema_of_the_settings_has_the_sections_of_parts(tmp_path: Path) -> None:
    file = tmp_path / "named.toml"
    file.write_text('[server]\nparts = ["bell"]\n', "utf-8")
    done = CliRunner().invoke(config_commands, ["schema", "--config", str(file)])
    assert "sound" in msgspec.json.decode(done.stdout)["$defs"]["Bell"]["properties"]


@pytest.mark.usefixtures("package")
def test_doctor_runs_the_checks_of_a_part_even_if_one_of_them_fails() -> None:
    settings = Settings.load(None, {"DRAGOMAN_SERVER__PARTS": '["bell"]'}, find_sections=sections_of_installed)
    assert list(checks.of_parts(settings)) == [
        Finding("bell", "warning", "it says ding"),
        Finding("bell", "problem", "the check itself failed: OSError: no rope"),
    ]


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("words", [["ring", "--times", "2", "--config"], ["--config", "ring", "--times=2"]])
def test_the_command_line_has_the_commands_of_a_part(words: list[str], tmp_path: Path) -> None:
    file = tmp_path / "named.toml"
    file.write_text('[server]\nparts = ["bell"]\n[bell]\nsound = "dong"\n', "utf-8")
    words.insert(words.index("--config") + 1, str(file))
    app = typer.Typer()
    app.command("serve")(lambda: None)
    settings = add_commands(app, words)
    done = CliRunner().invoke(app, words, obj=settings)
    assert (done.exit_code, done.stdout) == (0, "dongdong\n")


@pytest.mark.parametrize("words", [[], ["serve", "--config", "gone.toml"], ["--version", "--config", "gone.toml"]])
def test_a_command_of_the_server_itself_reads_no_settings_for_parts(words: list[str]) -> None:
    app = typer.Typer()
    app.command("serve")(lambda: None)
    before = list(words)
    assert add_commands(app, words) is None
    assert words == before


def test_settings_that_cannot_be_used_end_a_command_of_a_part_and_not_the_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    app = typer.Typer()
    with pytest.raises(SystemExit) as ended:
        add_commands(app, ["ring", "--config=gone.toml"])
    assert ended.value.code == 2
    assert "gone.toml" in capsys.readouterr().err
    assert add_commands(app, ["--help", "--config=gone.toml"]) is None


# The server's own.


def test_a_part_of_the_server_itself_has_its_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = Finding("own", "ok", "it is there")
    part = Part(name="own", checks=(lambda _: [finding],))
    monkeypatch.setattr(composition, "_own_parts", lambda *_: (part,))
    assert list(checks.of_parts(Settings.load(None, {}))) == [finding]


@pytest.mark.usefixtures("package")
def test_the_parts_of_a_server_are_its_own_and_those_that_the_settings_name() -> None:
    values = {
        "server": {"parts": ["bell"]},
        "tools": {"memory_enabled": True, "admin_registration_enabled": True},
        "security": {"dynamic_registration_enabled": True},
        "response": {"dialect": "envelope"},
    }
    names = [part.name for part in composition.parts_of(make_config(values, sections_of_installed))]
    assert names == ["tasks", "memories", "admin", "artifacts", "bell"]


def test_the_commands_of_the_servers_own_parts_are_among_those_that_are_listed() -> None:
    config = make_config({"tools": {"memory_enabled": True}, "gateway": {"enabled": True}})
    commands = [command for part in composition.parts_of(config) for command in part.commands]
    assert [command.name for command in commands if COMMANDS.get(command.name, ("",))[0] != command.run] == []
