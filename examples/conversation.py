"""Serves the example tools to the official SDK's client, and shows what they say to each other and what is recorded."""

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from rich.console import Console
from rich.table import Table

TOOLS = Path(__file__).with_name("tools.py")
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("add", {"a": 19, "b": 23}),
    ("roll_dice", {"count": 3}),
    ("count_words", {"text": "the quick brown fox jumps over the lazy dog", "most": 3}),
    ("count_down", {"start": 3}),
    ("divide", {"dividend": 1, "divisor": 0}),
    ("add", {"a": "nineteen", "b": 23}),
    ("oversleep", {"seconds": 0.8}),
    ("no_such_tool", {}),
    ("health", {}),
]


def short(text: str, most: int = 74) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


async def show_progress(progress: float, total: float | None, message: str | None) -> None:
    Console().print(f"    [dim]progress {progress:g} of {total or 0:g}: {message}[/dim]", highlight=False)


async def main() -> None:
    console = Console()
    command = [sys.executable, "-P", "-m", "dragoman", "serve", str(TOOLS)]
    console.print(f"[bold]$ dragoman serve {TOOLS.parent.name}/{TOOLS.name}[/bold]")
    with tempfile.TemporaryFile("w+") as log:
        server = stdio_client(StdioServerParameters(command=command[0], args=command[1:]), errlog=log)
        async with Client(server, mode="legacy") as client:
            listed = await client.list_tools()
            console.print(f"[green]←[/green] {len(listed.tools)} tools\n")
            for name, arguments in CALLS:
                console.print(f"[cyan]→[/cyan] {name} {json.dumps(arguments)}", highlight=False)
                result = await client.call_tool(name, arguments, progress_callback=show_progress)
                colour = "red" if result.is_error else "green"
                for block in result.content:
                    text = getattr(block, "text", f"<{block.type}>")
                    console.print(f"[{colour}]←[/{colour}] {short(text)}", highlight=False, markup=True)
            await asyncio.sleep(0.5)  # Long enough for `oversleep` to wake up, so that it has its record.
        log.seek(0)
        show_records(console, [json.loads(line) for line in log])


def show_records(console: Console, entries: list[dict[str, Any]]) -> None:
    """One record a call, as they stand on the server's stderr."""
    table = Table(title="\nWhat was recorded: one line a call, on stderr", title_justify="left", title_style="bold")
    for column in ("tool", "outcome", "code", "ms", "bytes"):
        table.add_column(column, justify="right" if column in ("ms", "bytes") else "left")
    for entry in entries:
        if entry["message"] == "tool call completed":
            table.add_row(
                entry["toolName"],
                entry["outcome"],
                str(entry.get("errorCode", "")),
                f"{entry['durationMs']:.3f}",
                str(entry["payloadBytes"]),
            )
    console.print(table)
    console.print("\nNext: [bold]dragoman serve your_tools.py[/bold], or see README.md.")


if __name__ == "__main__":
    asyncio.run(main())
