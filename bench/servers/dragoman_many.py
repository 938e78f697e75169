"""Ten thousand tools, to see whether a call gets dearer with the number of tools."""

from dragoman_tools import noop

from dragoman import Tool, tool


def _search(number: int) -> Tool:
    async def search(query: str, limit: int = 10, tags: list[str] | None = None) -> dict[str, int]:
        return {"found": number}

    return tool(name=f"search_{number}", description=f"Searches shelf {number}.")(search)


many = [noop, *map(_search, range(10_000 - 1))]
