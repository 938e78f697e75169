"""The official SDK's client against `examples/extensions`, over every transport and in both eras of the protocol."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ToolsListChanged
from mcp.shared._httpx_utils import create_mcp_http_client

from tests.support.forking import BRIDGE, Process, start
from tests.support.processes import environment, free_port
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.slow

EXTENSIONS = str(Path(__file__).parents[2] / "examples" / "extensions")
COMMAND = [*BRIDGE, "--extensions-dir", EXTENSIONS]
MODULES = ["notes.forget", "text.proofread", "text.slugify", "weather.dew_point", "weather.windchill"]
EVERY_TIME = ("stdio-modern", "streamable-http-handshake", "sse-handshake")
WAYS = [
    pytest.param(*way, id=name, marks=() if name in EVERY_TIME else pytest.mark.nightly)
    for name, way in {
        "stdio-handshake": ("stdio", "legacy"),
        "stdio-modern": ("stdio", "auto"),
        "streamable-http-handshake": ("streamable-http", "legacy"),
        "streamable-http-modern": ("streamable-http", "auto"),
        "sse-handshake": ("sse", "legacy"),
    }.items()
]
every_way = pytest.mark.parametrize(("transport", "mode"), WAYS)


@contextmanager
def listening(*arguments: str, command: list[str] | None = None) -> Iterator[tuple[str, Process]]:
    """A server over HTTP, and the root of its address."""
    port = free_port()
    command = [*(command or COMMAND), "--port", str(port), *arguments]
    process = start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    try:
        assert process.stderr is not None
        while b"server started" not in (said := process.stderr.readline()):
            assert said, "it ended"
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)


@asynccontextmanager
async def connected(
    transport: str, mode: str, *, command: list[str] = COMMAND, **options: Any
) -> AsyncIterator[Client]:
    async with asyncio.timeout(3 * PATIENCE):
        if transport == "stdio":
            server = StdioServerParameters(command=command[0], args=command[1:], env=environment())
            with open("/dev/null", "w") as nowhere:  # noqa: ASYNC230
                async with Client(stdio_client(server, nowhere), mode=mode, **options) as client:
                    yield client
            return
        with listening("--transport", transport, command=command) as (root, _):
            made: Any = sse_client(f"{root}/sse") if transport == "sse" else streamable_http_client(f"{root}/mcp")
            async with Client(made, mode=mode, **options) as client:
                yield client


def text_of(result: types.CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    return block.text


async def approve(context: Any, params: Any) -> types.ElicitResult:
    assert params.message.startswith("May notes.forget run? ")
    return types.ElicitResult(action="accept", content={"approve": True})


@every_way
@pytest.mark.requirement(
    "UC-001", "UC-002", "UC-003", "UC-004", "FR-SERVER-001", "FR-SERVER-002", "FR-SERVER-003", "FR-SERVER-011",
    "FR-TRANSPORT-001", "C-01", "NFR-COMPAT-004", "D-02",
)  # fmt: skip
async def test_a_client_finds_and_calls_every_kind_of_module(transport: str, mode: str) -> None:
    chunks: list[Any] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        chunks.append((progress, json.loads(message or "null")))

    async with connected(transport, mode, elicitation_callback=approve) as client:
        assert client.server_info.name == "apcore-mcp"
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(tools) == MODULES
        assert tools["text.slugify"].annotations == types.ToolAnnotations(
            read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
        )
        for name, arguments, output in (
            ("text.slugify", {"title": "Été à Zürich!"}, {"slug": "ete-a-zurich"}),
            ("weather.windchill", {"celsius": -5.0, "wind_kmh": 30.0}, {"result": -13.0}),
            ("weather.dew_point", {"celsius": 20.0, "humidity": 50.0}, {"celsius": 9.3}),
            ("notes.forget", {"containing": "Ada"}, {"forgotten": ["call Ada"], "left": 2}),
        ):
            result = await client.call_tool(name, arguments)
            assert (result.is_error, json.loads(text_of(result)), result.structured_content) == (False, output, output)
        text = "all is is well\nhere\nand and there"
        read = await client.call_tool("text.proofread", {"text": text}, progress_callback=on_progress)
        findings = {"1": "'is' is there twice", "3": "'and' is there twice"}
        assert read.structured_content == {"findings": findings}
        assert chunks == [
            (1, {"findings": {}}),
            (2, {"findings": {"1": "'is' is there twice"}}),
            (3, {"findings": {"3": "'and' is there twice"}}),
        ]
        for name, arguments, told in (
            ("no.such", {}, "Module not found: no.such"),
            ("text.slugify", {}, "Input validation failed:\n- title: Field required (missing)"),
            (
                "text.slugify",
                {"title": "x", "longest": 0},
                "Input validation failed:\n- longest: Input should be greater than or equal to 1 (greater_than_equal)",
            ),
        ):
            failed = await client.call_tool(name, arguments)
            assert (failed.is_error, text_of(failed)) == (True, told)


@every_way
@pytest.mark.requirement("FR-ANNOT-006")
async def test_a_client_that_cannot_ask_is_refused_what_needs_approval(transport: str, mode: str) -> None:
    async with connected(transport, mode) as client:
        result = await client.call_tool("notes.forget", {"containing": "plants"})
        assert (result.is_error, text_of(result)) == (True, "Module error: APPROVAL_DENIED")


@every_way
@pytest.mark.requirement("FR-RESOURCE-001")
async def test_a_client_reads_the_documentation(transport: str, mode: str) -> None:
    async with connected(transport, mode) as client:
        listed = (await client.list_resources()).resources
        assert [str(each.uri) for each in listed] == ["docs://text.slugify", "docs://weather.windchill"]
        (read,) = (await client.read_resource("docs://text.slugify")).contents
        assert isinstance(read, types.TextResourceContents)
        assert (read.mime_type, read.text.startswith("Letters keep their base form")) == ("text/plain", True)
        with pytest.raises(MCPError, match="Resource not found"):
            await client.read_resource("docs://notes.forget")


@pytest.mark.requirement("NFR-PERF-004")
@pytest.mark.parametrize("mode", ["auto", pytest.param("legacy", marks=pytest.mark.nightly)])
async def test_ten_clients_at_once_are_all_answered_correctly(mode: str) -> None:
    with listening("--transport", "streamable-http", "--log-level", "INFO") as (root, process):
        drained = asyncio.get_running_loop().run_in_executor(None, process.stderr.read)  # type: ignore[union-attr]

        async def use(number: int) -> list[str]:
            async with Client(streamable_http_client(f"{root}/mcp"), mode=mode) as client:
                titles = [f"Client {number} call {call}" for call in range(20)]
                answers = await asyncio.gather(*(client.call_tool("text.slugify", {"title": each}) for each in titles))
                return [json.loads(text_of(each))["slug"] for each in answers]

        async with asyncio.timeout(3 * PATIENCE):
            everything = await asyncio.gather(*(use(number) for number in range(10)))
        process.terminate()
        await drained
    assert everything == [[f"client-{number}-call-{call}" for call in range(20)] for number in range(10)]


@pytest.mark.requirement("FR-HEALTH-001", "FR-EXPLORER-001", "FR-EXPLORER-002", "FR-EXPLORER-004", "NFR-SEC-001")
def test_the_explorer_shows_modules_and_runs_them_through_the_executor() -> None:
    arguments = ("--transport", "streamable-http", "--explorer", "--explorer-prefix", "/look", "--allow-execute")
    with listening(*arguments) as (root, process):
        assert process.stdout is not None
        while b"Open" not in (shown := process.stdout.readline()):
            assert shown
        found = re.search(rb"#(?:.*=)?([\w-]+)", shown)
        assert found is not None, shown
        token = found[1].decode()

        def get(path: str, body: Any = None) -> tuple[int, Any]:
            headers = {"content-type": "application/json", "x-explorer-token": token}
            data = None if body is None else json.dumps(body).encode()
            try:
                with urllib.request.urlopen(urllib.request.Request(root + path, data, headers)) as answer:
                    return answer.status, json.loads(answer.read())
            except urllib.error.HTTPError as refused:
                return refused.code, json.loads(refused.read())

        assert get("/health")[1]["module_count"] == 5
        assert [each["name"] for each in get("/look/tools")[1]] == MODULES
        assert get("/look/tools/text.slugify/call", {"title": "Hi"}) == (200, {"result": {"slug": "hi"}})
        status, body = get("/look/tools/text.slugify/call", {})
        assert (status, body) == (400, {"error": "Input validation failed: /title: Field required (missing)"})
        assert get("/look/tools/no.such/call", {}) == (404, {"error": "Tool 'no.such' not found"})


DYNAMIC = """
import sys, threading
from apcore import Registry
from apcore_mcp import load_extensions, serve
sys.path.insert(0, {root!r})
from tests.support.modules import Does

registry = load_extensions({extensions!r})

def change() -> None:
    registry.register("later.came", Does(lambda inputs, context: {{"came": True}}))

def go(inputs, context):
    threading.Thread(target=change).start()
    return {{}}

registry.register("go", Does(go))
serve(registry, transport=sys.argv[1], port=int(sys.argv[3]), dynamic=True, log_level="INFO")
"""


@pytest.mark.requirement("FR-DYNAMIC-001", "FR-DYNAMIC-003", "UC-007")
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_every_connected_client_is_told_of_a_module_that_came_later(mode: str) -> None:
    script = DYNAMIC.format(root=str(Path(__file__).parents[2]), extensions=EXTENSIONS)
    told = [asyncio.Event(), asyncio.Event()]

    async def watch(root: str, changed: asyncio.Event, ready: asyncio.Event) -> list[str]:
        async def on_message(message: Any) -> None:
            if isinstance(message, types.ToolListChangedNotification):
                changed.set()

        async def on_response(response: httpx2.Response) -> None:
            if response.request.method == "GET":  # The stream for notifications, which opens by itself.
                ready.set()

        http = create_mcp_http_client()
        http.event_hooks = {"response": [on_response]}
        made = streamable_http_client(f"{root}/mcp", http_client=http)
        async with http, Client(made, mode=mode, message_handler=on_message) as client:
            if mode == "legacy":
                await changed.wait()
            else:
                async with client.listen(tools_list_changed=True) as events:
                    ready.set()
                    async for event in events:
                        if isinstance(event, ToolsListChanged):
                            break
            return [tool.name for tool in (await client.list_tools()).tools]

    command = [sys.executable, "-c", script, "streamable-http"]
    with listening(command=command) as (root, _):
        async with asyncio.timeout(3 * PATIENCE):
            ready = [asyncio.Event(), asyncio.Event()]
            watching = [asyncio.create_task(watch(root, *each)) for each in zip(told, ready, strict=True)]
            for each in ready:
                await each.wait()
            async with Client(streamable_http_client(f"{root}/mcp"), mode=mode) as client:
                await client.call_tool("go", {})
                for names in await asyncio.gather(*watching):
                    assert "later.came" in names
                assert text_of(await client.call_tool("later.came", {})) == '{"came": true}'


CHURNING = """
import random, sys, threading, time
sys.path.insert(0, {root!r})
from apcore import Registry
from apcore_mcp import serve
from tests.support.modules import Resize

registry = Registry()
registry.register("always", Resize())

def churn(seed: int) -> None:
    chance = random.Random(seed)
    while True:
        name = chance.choice(["m0", "m1", "m2", "m3"])
        if not registry.unregister(name):
            try:
                registry.register(name, Resize())
            except Exception:
                pass  # Another thread was first.
        time.sleep(0.002)

def start() -> None:
    for seed in range(3):
        threading.Thread(target=churn, args=(seed,), daemon=True).start()

serve(registry, transport=sys.argv[1], port=int(sys.argv[3]), dynamic=True, log_level="INFO", on_startup=start)
"""


@pytest.mark.requirement("NFR-REL-003", "NFR-PERF-004")
@pytest.mark.parametrize("mode", ["auto", pytest.param("legacy", marks=pytest.mark.nightly)])
async def test_clients_are_served_while_threads_change_the_registry(mode: str) -> None:
    command = [sys.executable, "-c", CHURNING.format(root=str(Path(__file__).parents[2])), "streamable-http"]

    async def use(root: str) -> set[str]:
        seen: set[str] = set()
        async with Client(streamable_http_client(f"{root}/mcp"), mode=mode) as client:
            for number in range(30):
                names = [tool.name for tool in (await client.list_tools()).tools]
                assert names == sorted(set(names))
                assert "always" in names
                right = f'{{"width": {number + 1}, "height": 1}}'
                assert text_of(await client.call_tool("always", {"width": number + 1})) == right
                changing = text_of(await client.call_tool("m1", {"width": number + 1}))
                assert changing in (right, "Module not found: m1")
                seen.add(changing.partition(":")[0])
        return seen

    with listening(command=command) as (root, process):
        said = asyncio.get_running_loop().run_in_executor(None, process.stderr.read)  # type: ignore[union-attr]
        async with asyncio.timeout(3 * PATIENCE):
            seen = set().union(*await asyncio.gather(*(use(root) for _ in range(5))))
        process.terminate()
        log = (await said).decode()
        assert process.wait(PATIENCE) == 0
    assert seen == {"Module not found", '{"width"'}
    assert "Traceback" not in log


LEAVES = """
import sys

from pydantic import BaseModel


class Nothing(BaseModel):
    pass


class Leaves:
    description = "Means to end the program."
    input_schema = output_schema = Nothing

    async def execute(self, inputs, context):
        sys.exit("the secret reason")
"""


@pytest.mark.requirement("FR-EXEC-007", "FR-ERROR-009")
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_module_that_means_to_end_the_program_ends_its_call(tmp_path: Path, mode: str) -> None:
    (tmp_path / "leaves.py").write_text(LEAVES)
    command = [sys.executable, "-m", "apcore_mcp", "--extensions-dir", str(tmp_path)]
    with listening("--transport", "streamable-http", command=command) as (root, _):
        async with Client(f"{root}/mcp", mode=mode) as client:
            for _ in range(2):
                result = await client.call_tool("leaves", {})
                assert (result.is_error, text_of(result)) == (True, "Internal error occurred")
            assert [tool.name for tool in (await client.list_tools()).tools] == ["leaves"]


# Other clients, other platforms


@pytest.mark.requirement("NFR-COMPAT-004")
@pytest.mark.parametrize("transport", ["stdio", "streamable-http"])
async def test_fastmcps_client_finds_and_calls_modules(transport: str) -> None:
    fastmcp = pytest.importorskip("fastmcp", reason="FastMCP is not installed: make clients")
    transports = pytest.importorskip("fastmcp.client.transports")

    async def use(server: Any) -> None:
        async with asyncio.timeout(3 * PATIENCE), fastmcp.Client(server) as client:
            assert [tool.name for tool in await client.list_tools()] == MODULES
            called = await client.call_tool("text.slugify", {"title": "Hello there"})
            assert called.structured_content == {"slug": "hello-there"}
            failed = await client.call_tool("text.slugify", {}, raise_on_error=False)
            assert (failed.is_error, failed.content[0].text.partition("\n")[0]) == (True, "Input validation failed:")

    if transport == "stdio":
        await use(transports.StdioTransport(COMMAND[0], COMMAND[1:], env=environment()))
    else:
        with listening("--transport", transport) as (root, _):
            await use(f"{root}/mcp")


WITHOUT_POSIX = """
import asyncio, os, select, signal, socket, sys
import mcp.server, psutil  # Their own code for Linux needs what is taken away here.

for name in ("fcntl", "resource", "termios", "pwd", "grp", "uvloop"):
    sys.modules[name] = None
for module, names in {
    os: "fork register_at_fork sched_getaffinity getuid geteuid getgid get_blocking set_blocking mkfifo writev",
    select: "poll epoll",
    signal: "SIGHUP SIGUSR1 SIGUSR2 SIGCHLD SIGPIPE SIGALRM pthread_sigmask setitimer",
    socket: "SO_REUSEPORT",
}.items():
    for name in names.split():
        delattr(module, name)

def refuse(*arguments):
    raise NotImplementedError

for name in ("add_reader", "add_writer", "add_signal_handler"):
    setattr(asyncio.SelectorEventLoop, name, refuse)

from apcore_mcp.cli import main
main(sys.argv[1:])
"""


@pytest.mark.requirement("NFR-PORT-001")
@pytest.mark.parametrize("transport", ["stdio", "streamable-http"])
async def test_modules_are_served_without_what_only_posix_systems_have(transport: str) -> None:
    command = [sys.executable, "-c", WITHOUT_POSIX, "--extensions-dir", EXTENSIONS]
    async with connected(transport, "legacy", command=command) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == MODULES
        result = await client.call_tool("text.slugify", {"title": "Hello there"})
        assert result.structured_content == {"slug": "hello-there"}
