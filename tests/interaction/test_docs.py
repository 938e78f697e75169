"""The documentation is true: what it shows runs, and what is made from the code is up to date."""

from __future__ import annotations

import inspect
import json
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

import dragoman
from dragoman.access.authenticator import make_authenticator
from dragoman.access.settings import AuthConfig
from dragoman.adapters.web_documents import WebDocuments
from dragoman.calls.call import Completion
from dragoman.cli.target import load_tools
from dragoman.clock import SystemClock
from dragoman.config import make_config
from dragoman.errors import ErrorCode, ProtocolError
from tests.support.processes import Lines, command, free_port, running
from tests.support.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FILE = re.compile(r"```python file=(\S+)\n(.*?)```", re.DOTALL)
SHOWN = re.compile(r"```console\n\$ python (\S+)\n(.*?)```", re.DOTALL)


def run(script: str, folder: Path) -> str:
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        [sys.executable, script],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.requirement("FND-DOC-04")
@pytest.mark.parametrize(
    ("page", "count"),
    [
        ("tutorial.md", 4),
        ("tools.md", 1),
        ("asking.md", 1),
        ("stages.md", 1),
        ("resources-and-prompts.md", 1),
        ("openai.md", 2),
        ("apcore.md", 1),
        ("from-apcore-mcp.md", 1),
        ("parts.md", 1),
        ("agents.md", 1),
        ("tasks.md", 1),
    ],
)
def test_every_file_of_a_page_prints_what_the_page_says(page: str, count: int, tmp_path: Path) -> None:
    text = (DOCS / page).read_text("utf-8")
    for name, code in FILE.findall(text):
        (tmp_path / name).write_text(code, "utf-8")
    shown = SHOWN.findall(text)
    assert len(shown) == count
    assert {script: run(script, tmp_path) for script, _ in shown} == dict(shown)


@pytest.mark.slow
@pytest.mark.requirement("FND-DOC-04")
def test_the_tutorials_test_passes_under_pytest_without_settings(tmp_path: Path) -> None:
    for name, code in FILE.findall((DOCS / "tutorial.md").read_text("utf-8")):
        (tmp_path / name).write_text(code, "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(tmp_path), "test_library.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def in_readme(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)


@pytest.mark.slow
@pytest.mark.requirement("FND-DOC-04")
def test_the_readmes_example_runs_as_it_stands(tmp_path: Path) -> None:
    greeter, caller, *_ = in_readme("python")
    (tmp_path / "greeter.py").write_text(greeter, "utf-8")
    (tmp_path / "caller.py").write_text(caller, "utf-8")
    assert run("caller.py", tmp_path) == "Hello, Ada!\n"
    assert "ctx.cancellation.raise_if_set()" in greeter


@pytest.mark.slow
@pytest.mark.requirement("FND-DOC-04")
def test_the_readmes_example_over_http_runs_as_it_stands(tmp_path: Path) -> None:
    greeter, _, client, _ = in_readme("python")
    (shown,) = re.findall(r"\$ dragoman serve (greeter.py --transport .*)", "".join(in_readme("console")))
    configured = json.loads(in_readme("json")[1])["mcpServers"]["greeter"]["url"]
    assert f'Client("{configured}")' in client
    port = str(free_port())
    (tmp_path / "greeter.py").write_text(greeter, "utf-8")
    (tmp_path / "client.py").write_text(client.replace("8000", port), "utf-8")
    arguments = command(*shown.replace("8000", port).split())
    with running(arguments, cwd=tmp_path, stderr=subprocess.PIPE) as server:
        errors = Lines(server.stderr.fileno())
        errors.start()
        started = errors.wait_until(lambda lines: next((json.loads(each) for each in lines if each), None))
        assert started["address"] == configured.replace("8000", port)
        assert run("client.py", tmp_path) == "Hello, Ada!\n"
        server.terminate()
        assert server.wait(PATIENCE) == 0


@pytest.mark.requirement("FND-DOC-04")
async def test_the_readmes_agents_keep_what_they_count(tmp_path: Path) -> None:
    (tmp_path / "counter.py").write_text(in_readme("python")[3], "utf-8")
    for seen in (1, 2):  # The second time after a restart.
        config = {"storage": {"data_dir": str(tmp_path / "data")}}
        async with dragoman.open(load_tools(str(tmp_path / "counter.py")), config) as runtime:
            assert runtime.agents is not None
            assert await runtime.agents.send_request("counter", "hello") == seen


@pytest.mark.requirement("FND-AACP-46")
@pytest.mark.parametrize(
    "said", ["Purpose", "Limits of v0.1", "Roadmap, v0.2", "Integration", "Processing order", "`ack`", "Deduplication"]
)
def test_the_guide_to_agents_explains_the_protocol_between_them(said: str) -> None:
    section = (DOCS / "agents.md").read_text("utf-8").split("## AACP")[1]
    assert f"- **{said}" in section
    assert "- **Migration.**" in section


def generator() -> ModuleType:
    spec = spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.requirement("FND-DOC-02", "FND-DOC-03")
@pytest.mark.parametrize(
    "name", ["errors.md", "states.md", "configuration.md", "commands.md", "dialects.md", "http.md"]
)
def test_pages_made_from_the_code_are_up_to_date(name: str) -> None:
    assert (DOCS / name).read_text("utf-8") == generator().PAGES[name](), "run `make docs`"


@pytest.mark.requirement("FND-DOC-02")
def test_the_error_page_lists_every_code_and_outcome() -> None:
    page = (DOCS / "errors.md").read_text("utf-8")
    codes = [f"| `{code}` |" for code in (*ErrorCode, *Completion)]
    codes += [f"| {kind.code} |" for kind in ProtocolError.__subclasses__() if kind.__module__ == "dragoman.errors"]
    assert [code for code in codes if code not in page] == []


@pytest.mark.requirement("FND-DOC-05")
@pytest.mark.parametrize(
    "said", ["the server stopped waiting", "Handlers should check the token", "late_completed", "slot stays taken"]
)
def test_the_readme_states_the_timeout_semantics(said: str) -> None:
    section = (ROOT / "README.md").read_text("utf-8").split("## Timeout Semantics")[1].split("\n## ")[0]
    assert said in section


@pytest.mark.requirement("FND-DOC-06", "FND-DOC-07", "FND-DOC-08")
@pytest.mark.parametrize(
    "said",
    [
        "Check at the start, between steps and inside loops",
        "Pass it to what can be cancelled",
        "Do not compute for long on the event loop",
        "Clean up so that it can be done twice",
        "Some things cannot be cancelled",
        "does not prove that the work stopped",
        "keep their slots busy",
        "exponential backoff and jitter",
        "refuses instead of queueing",
    ],
)
def test_the_guide_to_timeouts_covers_what_authors_clients_and_operators_need(said: str) -> None:
    assert said in (DOCS / "timeouts.md").read_text("utf-8")


def public_things() -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for info in pkgutil.walk_packages(dragoman.__path__, "dragoman."):
        if info.name == "dragoman.__main__":
            continue
        module = import_module(info.name)
        found.append((info.name, module))
        for name, thing in vars(module).items():
            own = not name.startswith("_") and getattr(thing, "__module__", None) == info.name
            if own and (inspect.isclass(thing) or inspect.isfunction(thing)):
                found.append((f"{info.name}.{name}", thing))
    return found


@pytest.mark.requirement("FND-DOC-01")
def test_every_public_module_class_and_function_has_a_docstring() -> None:
    assert [name for name, thing in public_things() if not (thing.__doc__ or "").strip()] == []


@pytest.mark.requirement("FND-DOC-01")
def test_what_users_import_is_documented_method_by_method() -> None:
    missing = [
        f"{name}.{attribute}"
        for name in dragoman.__all__
        if inspect.isclass(thing := getattr(dragoman, name))
        for attribute, method in vars(thing).items()
        if inspect.isfunction(method) and not attribute.startswith("_") and not method.__doc__
    ]
    assert missing == []


@pytest.mark.parametrize(
    "home", ["protocol/", "config.py", "telemetry/", "errors.py", "calls/slots.py", "tools/", "app.py"]
)
def test_the_architecture_names_one_home_for_each_concern(home: str) -> None:
    assert f"`{home}" in (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    assert (ROOT / "src/dragoman" / home).exists()


PAGES = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in DOCS.glob("*.md"))]


@pytest.mark.parametrize("page", PAGES)
def test_links_in_the_documentation_lead_somewhere(page: str) -> None:
    path = ROOT / page
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", path.read_text("utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_the_settings_in_the_guide_to_authentication_are_taken() -> None:
    page = (DOCS / "authentication.md").read_text("utf-8")
    shown = [tomllib.loads(block) for block in re.findall(r"```toml\n(.*?)```", page, re.DOTALL)]
    assert len(shown) == 3
    for values in shown:
        config = make_config(values).auth
        assert make_authenticator(config, SystemClock(), WebDocuments(), {"BENS_TOKEN": "x" * 16}) is not None
    for setting in ("audience", "jwks", "require_scopes", "roles_claim"):
        assert hasattr(AuthConfig(), setting)
        assert f"`{setting} = " in page
