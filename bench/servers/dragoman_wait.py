"""The tool `wait` of MCP Toolbox for `dragoman serve`, for no time."""

from typing import Any

from dragoman import tool


@tool
async def wait(duration: str) -> Any:
    """Answers at once, in the other server's words."""
    return f"Wait for {duration} completed successfully."
