"""The tools that the container serves: replace them with yours."""

from dragoman import tool


@tool(read_only=True)
async def greet(name: str) -> str:
    """Greets somebody."""
    return f"Hello, {name}!"
