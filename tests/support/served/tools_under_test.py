"""Tools that do in another process what tests need done there: succeed, fail, make noise, hang, wait and count.

Run as a script, this is a server whose list of tools can be made to grow.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from dragoman import Image, Text, ToolContext, tool
from dragoman.errors import NotFound


def make_noise(word: str) -> None:
    """Write to stdout in every way that Python code has."""
    print(f"{word} print")
    os.write(1, f"{word} descriptor\n".encode())
    subprocess.run([sys.executable, "-c", f"print('{word} subprocess')"], check=True)


if os.environ.get("NOISE_AT_IMPORT"):
    make_noise("import")


@tool(read_only=True, version="1.0.0")
async def echo(message: str) -> dict[str, str]:
    """Returns the message it was given."""
    return {"message": message}


@tool
def add(a: int, b: int) -> dict[str, int]:
    """Adds two numbers, on a thread."""
    return {"sum": a + b}


@tool
def picture() -> list[object]:
    """Returns content blocks."""
    return [Text("a dot"), Image(b"\x89PNG")]


@tool
def fail() -> str:
    """Raises an exception that is not meant for the client."""
    raise ValueError("the secret reason")


@tool
async def leave() -> None:
    """Means to end the program, in a task of its own."""

    async def end() -> None:
        sys.exit(5)

    await asyncio.create_task(end())


@tool
def refuse() -> str:
    """Raises an error that is meant for the client."""
    raise NotFound("There is no such page", {"page": 7})


@tool
def make_a_noise() -> str:
    """Writes to stdout."""
    make_noise("call")
    return "quiet"


@tool
def read_all_input() -> dict[str, str]:
    """Reads stdin to its end, here and in a subprocess."""
    reader = [sys.executable, "-c", "import sys; print(repr(sys.stdin.read()))"]
    theirs = subprocess.run(reader, capture_output=True, text=True, check=True, timeout=10)
    return {"here": sys.stdin.read(), "subprocess": theirs.stdout.strip()}


@tool
def count(to: int, ctx: ToolContext) -> int:
    """Reports progress with every step."""
    for step in range(1, to + 1):
        ctx.progress(step, to, f"step {step}")
    return to


@tool
def hold(path: str, ctx: ToolContext) -> str:
    """Returns what is written to a named pipe, once it is."""
    ctx.logger.info("under way")
    return Path(path).read_text("utf-8")


@tool
async def wait_to_be_cancelled(ctx: ToolContext) -> None:
    """Ends when nobody wants the answer any longer."""
    ctx.logger.info("under way")
    ctx.progress(0)
    await ctx.cancellation.wait()
    ctx.cancellation.raise_if_set()


@tool
def hang(ctx: ToolContext) -> None:
    """Does not listen to anybody for a minute."""
    ctx.logger.info("under way")
    time.sleep(60)


@tool
async def leave_a_thread_behind() -> str:
    """Gives up waiting for work that goes on in the default executor."""
    with suppress(TimeoutError):
        await asyncio.wait_for(asyncio.to_thread(time.sleep, 60), 0.01)
    return "left"


@tool(timeout_ms=50)
def overrun() -> None:
    """Takes longer than it may."""
    time.sleep(0.2)


@tool
async def block_the_loop(ctx: ToolContext) -> None:
    """Does what an async tool must not."""
    ctx.logger.info("under way")
    time.sleep(60)  # noqa: ASYNC251 - that is the point


def serve_a_growing_list() -> None:
    """Serve a tool that registers another."""
    from dragoman import ServerOptions, create_server, start_server

    @tool
    def grow() -> str:
        """Adds `echo` to the list."""
        server.catalogue.register(echo)
        return "grown"

    server = create_server(ServerOptions(tools=[grow]))
    asyncio.run(start_server(server))


if __name__ == "__main__":
    serve_a_growing_list()
