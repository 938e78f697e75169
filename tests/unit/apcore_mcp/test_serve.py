"""What `serve` takes and turns away, and what it sets up. Whole servers are in the interaction tests."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apcore import Executor, Registry

import apcore_mcp
from apcore_mcp import serve
from apcore_mcp.server.serve import executor_of
from dragoman import frameworks
from dragoman.runtime import Runtime
from dragoman.schemas.schema import ANY_OBJECT
from tests.support.modules import Does, Resize, registry_of
from tests.support.waiting import PATIENCE


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Runtime, str]]:
    """What would be served, and how; each is started and stopped at once, as if its client had left."""
    seen: list[tuple[Runtime, str]] = []

    def come_and_go(runtime: Runtime, transport: str) -> int:
        async def live() -> int:
            await runtime.start()
            return await runtime.stop()

        seen.append((runtime, transport))
        return asyncio.run(live())

    monkeypatch.setattr(frameworks, "serve_until_stopped", come_and_go)
    return seen


@pytest.fixture
def as_it_was() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("apcore_mcp")
    before = root.level, list(root.handlers), ours.level
    yield
    root.setLevel(before[0])
    root.handlers[:] = before[1]
    ours.setLevel(before[2])


# What it can be told


@pytest.mark.requirement("SRS-API-01", "SRS-API-14")
def test_the_signature_is_the_specifications_and_the_explorers() -> None:
    parameters = inspect.signature(serve).parameters
    assert {name: each.default for name, each in list(parameters.items())[1:]} == {
        "transport": "stdio",
        "host": "127.0.0.1",
        "port": 8000,
        "name": "apcore-mcp",
        "version": None,
        "on_startup": None,
        "on_shutdown": None,
        "tags": None,
        "prefix": None,
        "log_level": None,
        "dynamic": False,
        "validate_inputs": False,
        "explorer": False,
        "explorer_prefix": "/explorer",
        "allow_execute": False,
    }
    first, *others = parameters.values()
    assert first.name == "registry_or_executor"
    assert {each.kind for each in others} == {inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.requirement("FR-SERVER-002", "FR-SERVER-003", "FR-SERVER-004", "FR-SERVER-007", "FR-SERVER-008")
@pytest.mark.requirement("FR-SERVER-009", "FR-SERVER-010", "SRS-API-01")
@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"transport": "websocket"}, "Unknown transport: 'websocket'. Must be one of: stdio, streamable-http, sse"),
        ({"transport": ""}, "Unknown transport: ''. Must be one of: stdio, streamable-http, sse"),
        ({"transport": "http"}, "Unknown transport: 'http'. Must be one of: stdio, streamable-http, sse"),
        ({"transport": "sse", "port": 0}, "Port must be between 1 and 65535, got 0"),
        ({"transport": "streamable-http", "port": 65536}, "Port must be between 1 and 65535, got 65536"),
        ({"transport": "streamable-http", "port": -1}, "Port must be between 1 and 65535, got -1"),
        ({"transport": "streamable-http", "host": ""}, "Host must not be empty"),
        ({"name": ""}, "name must not be empty"),
        ({"name": "x" * 256}, "name must not exceed 255 characters"),
        ({"version": ""}, "version must not be empty"),
        ({"tags": ["public", ""]}, "Tag values must not be empty"),
        ({"prefix": ""}, "prefix must not be empty"),
        ({"log_level": "LOUD"}, "Unknown log level: 'LOUD'. Must be one of: DEBUG, INFO, WARNING, ERROR"),
        ({"log_level": ""}, "Unknown log level: ''. Must be one of: DEBUG, INFO, WARNING, ERROR"),
        ({"transport": "sse", "explorer": True, "explorer_prefix": "tools"}, "explorer_prefix must start with '/'"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(told: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        serve(Registry(), **told)
    assert str(refused.value) == reason


def test_a_page_cannot_be_just_anywhere() -> None:
    with pytest.raises(ValueError, match=r"explorer\.prefix"):
        serve(Registry(), transport="sse", explorer=True, explorer_prefix="/a b")


@pytest.mark.requirement("FR-EXEC-005", "SRS-API-01", "UC-001")
@pytest.mark.parametrize(("wrong", "kind"), [({}, "dict"), (None, "NoneType"), ("registry", "str")])
def test_only_a_registry_or_an_executor_can_be_served(wrong: Any, kind: str) -> None:
    with pytest.raises(TypeError) as refused:
        serve(wrong)
    assert str(refused.value) == f"Expected Registry or Executor instance, got {kind}"


@pytest.mark.requirement("FR-EXEC-005")
def test_an_executor_is_used_as_it_is_and_a_registry_gets_one() -> None:
    registry = Registry()
    executor = Executor(registry)
    assert executor_of(executor) is executor
    made = executor_of(registry)
    assert isinstance(made, Executor)
    assert made.registry is registry


@pytest.mark.requirement("SRS-API-02")
@pytest.mark.parametrize("which", ["on_startup", "on_shutdown"])
def test_a_hook_is_something_that_can_be_called(which: str) -> None:
    hooks: dict[str, Any] = {which: "now"}
    with pytest.raises(TypeError, match=f"{which} must be callable or None, got str"):
        serve(Registry(), **hooks)


# What it sets up


@pytest.mark.requirement("FR-SERVER-001", "FR-SERVER-004", "FR-SERVER-007", "FR-TRANSPORT-005", "FR-LOG-001")
@pytest.mark.parametrize("transport", ["stdio", "STDIO", "Streamable-HTTP", "sse"])
def test_the_transport_is_written_as_one_likes(
    transport: str, served: list[tuple[Runtime, str]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "apcore_mcp")
    serve(registry_of(a=Resize()), transport=transport, name="x" * 255, version="2.0.0")
    ((runtime, used),) = served
    assert used == transport.lower()
    assert runtime.identity.server_info == {"name": "x" * 255, "version": "2.0.0"}
    assert f"apcore-mcp server started: 1 tools registered, transport={transport.lower()}" in caplog.messages


@pytest.mark.requirement("FR-SERVER-004", "FR-TRANSPORT-005", "FR-SERVER-001")
def test_the_defaults_are_the_bridges_own(served: list[tuple[Runtime, str]]) -> None:
    serve(registry_of(a=Resize()), host="", port=-1, explorer=True, explorer_prefix="nowhere")
    ((runtime, transport),) = served
    config = runtime.config
    assert transport == "stdio"
    assert runtime.identity.server_info == {"name": "apcore-mcp", "version": apcore_mcp.__version__}
    assert config.resources.max_concurrent_executions == 100
    assert config.server.shutdown_timeout_ms == 5000
    assert config.response.dialect == "plain"
    limits = config.limits
    assert (limits.max_array_size, limits.max_string_length, limits.max_object_depth) == (None, None, None)


@pytest.mark.requirement("FR-SERVER-002", "FR-TRANSPORT-003", "FR-EXPLORER-006", "FR-EXPLORER-001")
def test_where_it_listens_and_what_else_it_shows_are_as_told(served: list[tuple[Runtime, str]]) -> None:
    page = {"explorer": True, "explorer_prefix": "/look/", "allow_execute": True}
    serve(registry_of(a=Resize()), transport="streamable-http", host="127.0.0.2", port=65535, **page)
    serve(registry_of(a=Resize()), transport="streamable-http", port=1)
    config, other = (runtime.config for runtime, _ in served)
    assert (config.http.host, config.http.port) == ("127.0.0.2", 65535)
    assert (config.explorer.enabled, config.explorer.prefix, config.explorer.allow_execute) == (True, "/look/", True)
    assert (other.http.host, other.http.port, other.explorer.enabled) == ("127.0.0.1", 1, False)


def test_other_settings_come_from_the_environment_and_parameters_win(
    served: list[tuple[Runtime, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAGOMAN_HTTP__ALLOWED_HOSTS", '["mcp.example.org"]')
    monkeypatch.setenv("DRAGOMAN_HTTP__PORT", "1234")
    monkeypatch.setenv("DRAGOMAN_RESPONSE__MAX_RESPONSE_BYTES", "8388608")
    monkeypatch.setenv("DRAGOMAN_LIMITS__MAX_ARRAY_SIZE", "7")
    serve(registry_of(a=Resize()), transport="streamable-http")
    ((runtime, _),) = served
    config = runtime.config
    assert (config.http.allowed_hosts, config.http.port) == (("mcp.example.org",), 8000)
    assert (config.response.max_response_bytes, config.response.dialect) == (8_388_608, "plain")
    assert (config.limits.max_array_size, config.limits.max_string_length) == (7, None)
    monkeypatch.setenv("DRAGOMAN_HTTP__ALLOWED_HOSTS", "5")
    with pytest.raises(ValueError, match=r"http\.allowed_hosts: must be a list.*DRAGOMAN_HTTP__ALLOWED_HOSTS"):
        serve(registry_of(a=Resize()), transport="streamable-http")


def test_a_settings_file_in_the_working_directory_is_not_read(
    served: list[tuple[Runtime, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "dragoman.toml").write_text("[response]\nmax_response_bytes = 2048\n")
    monkeypatch.chdir(tmp_path)
    serve(registry_of(a=Resize()))
    assert served[0][0].config.response.max_response_bytes == 4_194_304


@pytest.mark.requirement("FR-SERVER-006", "FR-LOG-001", "FR-FILTER-001", "FR-FILTER-002")
@pytest.mark.parametrize("told", [{}, {"tags": ["none"]}, {"prefix": "none."}])
def test_no_module_is_no_tool_and_a_warning(
    told: dict[str, Any], served: list[tuple[Runtime, str]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "apcore_mcp")
    serve(registry_of(a=Resize()) if told else Registry(), **told)
    assert len(served[0][0].catalogue) == 0
    assert [(each.levelname, each.getMessage()) for each in caplog.records if each.name.startswith("apcore_mcp")] == [
        ("WARNING", "No modules registered; server starting with zero tools"),
        ("INFO", "apcore-mcp server started: 0 tools registered, transport=stdio"),
    ]


@pytest.mark.requirement("FR-FILTER-003", "FR-SERVER-008", "FR-SERVER-009", "SRS-API-04")
@pytest.mark.parametrize("checks", [False, True])
def test_filters_and_the_check_of_arguments_hold_for_what_is_served(
    checks: bool, served: list[tuple[Runtime, str]]
) -> None:
    registry = registry_of(api__a=Resize(), api__b=Does(None), web__a=Resize())
    serve(registry, tags=["public"], prefix="api.", validate_inputs=checks)
    ((runtime, _),) = served
    assert [each.definition.name for each in runtime.catalogue] == ["api.a"]
    (registered,) = runtime.catalogue
    assert (registered.validator is not ANY_OBJECT) is checks


@pytest.mark.requirement("SRS-API-03")
@pytest.mark.parametrize("dynamic", [False, True])
def test_modules_that_come_later_are_served_only_if_asked_for(dynamic: bool, served: list[tuple[Runtime, str]]) -> None:
    registry, found = registry_of(a=Resize()), list[bool]()

    def add() -> None:
        registry.register("later", Resize())
        found.append(served[0][0].catalogue.get("later") is not None)

    serve(registry, dynamic=dynamic, on_startup=add)
    assert found == [dynamic]


@pytest.mark.requirement("FR-SERVER-003", "FR-TRANSPORT-004")
@pytest.mark.parametrize("transport", ["sse", "SSE"])
def test_sse_is_said_to_be_deprecated(
    transport: str, served: list[tuple[Runtime, str]], caplog: pytest.LogCaptureFixture
) -> None:
    serve(registry_of(a=Resize()), transport=transport)
    assert caplog.messages == ["SSE transport is deprecated; use streamable-http instead"]


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", 0), ("localhost", 0), ("::1", 0), ("0.0.0.0", 1)])
def test_an_address_that_others_can_reach_is_a_warning(
    host: str, warned: int, served: list[tuple[Runtime, str]], caplog: pytest.LogCaptureFixture
) -> None:
    serve(registry_of(a=Resize()), transport="streamable-http", host=host)
    assert len(caplog.messages) == warned


def test_an_address_that_others_can_reach_is_no_warning_where_callers_are_authenticated(
    served: list[tuple[Runtime, str]], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAGOMAN_AUTH__CALLERS", '{"ada": {"token": "0123456789abcdef"}}')
    serve(registry_of(a=Resize()), transport="streamable-http", host="0.0.0.0")
    assert caplog.messages == []


@pytest.mark.requirement("SRS-API-02", "FR-SERVER-005", "SRS-API-13")
@pytest.mark.parametrize("is_async", [False, True])
def test_hooks_run_when_the_server_runs_and_before_it_has_stopped(
    is_async: bool, served: list[tuple[Runtime, str]]
) -> None:
    seen: list[str] = []
    registry = registry_of(a=Resize())

    def hook() -> None:
        seen.append(served[0][0].state.value)

    async def async_hook() -> None:
        await asyncio.sleep(0)
        hook()

    chosen = async_hook if is_async else hook
    assert serve(registry, on_startup=chosen, on_shutdown=chosen, dynamic=True) is None  # type: ignore[func-returns-value]
    assert seen == ["running", "draining"]
    registry.register("later", Resize())
    assert served[0][0].catalogue.get("later") is None


@pytest.mark.requirement("FR-SERVER-010", "FR-LOG-005")
@pytest.mark.parametrize("level", ["DEBUG", "info", "Warning", "ERROR"])
@pytest.mark.usefixtures("as_it_was")
def test_a_log_level_is_set_and_written_as_one_likes(level: str, served: list[tuple[Runtime, str]]) -> None:
    serve(registry_of(a=Resize()), log_level=level)
    assert logging.getLogger("apcore_mcp").level == getattr(logging, level.upper())


@pytest.mark.slow
@pytest.mark.requirement("FR-LOG-005", "FR-LOG-004", "FR-SERVER-010", "SRS-API-14")
def test_importing_and_serving_set_up_no_logging_by_themselves() -> None:
    code = (
        "import logging, apcore_mcp, sys\n"
        "from apcore import Registry\n"
        "import apcore_mcp.cli, apcore_mcp.server.serve\n"
        "apcore_mcp.serve(Registry())\n"
        "ours = [name for name in logging.Logger.manager.loggerDict if name.startswith('apcore_mcp')]\n"
        "print(sum((logging.getLogger(name).handlers for name in (None, *ours)), []))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL
    )
    assert (run.returncode, run.stdout) == (0, "[]\n"), run.stderr
    assert run.stderr == "No modules registered; server starting with zero tools\n"


@pytest.mark.slow
@pytest.mark.requirement("FR-LOG-005", "FR-SERVER-010")
def test_a_log_level_alone_makes_the_log_appear_on_stderr() -> None:
    code = "from apcore import Registry\nimport apcore_mcp\napcore_mcp.serve(Registry(), log_level='info')\n"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL
    )
    assert (run.returncode, run.stdout) == (0, "")
    started = "INFO:apcore_mcp.server.serve:apcore-mcp server started: 0 tools registered, transport=stdio"
    assert started in run.stderr.splitlines()


# Real processes

SCRIPT = """
import sys, threading, time
from apcore import Registry
from apcore_mcp import serve
from tests.support.modules import Does, Resize

class Hangs(Resize):
    def execute(self, inputs, context):
        print("hanging", file=sys.stderr, flush=True)
        threading.Event().wait()

registry = Registry()
registry.register("image.resize", Resize())
registry.register("hangs", Hangs())
options = eval(sys.argv[1])
print("returned", serve(registry, **options), flush=True)
"""


ENVELOPE = {
    "protocolVersion": "2026-07-28",
    "clientInfo": {"name": "test", "version": "1"},
    "clientCapabilities": {},
}


def spawn(options: dict[str, Any], **more: Any) -> subprocess.Popen[bytes]:
    arguments = [sys.executable, "-c", SCRIPT, repr(options)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)


@pytest.mark.slow
@pytest.mark.requirement("FR-SERVER-001", "FR-SERVER-005", "FR-TRANSPORT-002", "UC-001")
def test_a_parent_that_closes_the_pipes_ends_it_and_serve_returns_nothing() -> None:
    process = spawn({}, stdin=subprocess.PIPE)
    out, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, errors) == (0, b"returned None\n", b"")


@pytest.mark.slow
@pytest.mark.requirement("FR-SERVER-001")
def test_without_standard_streams_there_is_nothing_to_serve_on() -> None:
    code = f"import os; os.close(0)\n{SCRIPT}"
    run = subprocess.run([sys.executable, "-c", code, "{}"], capture_output=True, timeout=PATIENCE)
    assert run.returncode == 1
    assert b"RuntimeError: the standard streams cannot be used: Bad file descriptor" in run.stderr


@pytest.mark.slow
@pytest.mark.requirement("FR-SERVER-002", "FR-TRANSPORT-003", "UC-001")
def test_a_port_that_is_taken_is_an_os_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            serve(registry_of(a=Resize()), transport="streamable-http", port=taken.getsockname()[1])


@pytest.mark.slow
@pytest.mark.requirement("NFR-REL-001", "FR-SERVER-005")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("transport", ["stdio", "streamable-http"])
def test_a_signal_ends_it_in_time_though_a_module_hangs_in_its_thread(number: int, transport: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = spawn({"transport": transport, "port": port, "log_level": "INFO"}, stdin=subprocess.PIPE)
    assert process.stderr is not None
    assert process.stdin is not None
    with process:
        while b"server started" not in process.stderr.readline():
            assert process.poll() is None
        if transport == "stdio":
            meta = {f"io.modelcontextprotocol/{key}": value for key, value in ENVELOPE.items()}
            params = {"name": "hangs", "arguments": {"width": 1}, "_meta": meta}
            call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            process.stdin.write(json.dumps(call).encode() + b"\n")
            process.stdin.flush()
            while b"hanging" not in process.stderr.readline():
                assert process.poll() is None
        os.kill(process.pid, number)
        drain = threading.Thread(target=process.stderr.read, daemon=True)
        drain.start()
        assert process.stdout is not None
        out = process.stdout.read()
        assert process.wait(PATIENCE) == 0
        assert out.endswith(b"returned None\n")
