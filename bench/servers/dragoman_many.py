"""Three tools and a thousand, to see whether a call gets dearer with the number of tools."""

from dragoman_tools import noop, once, sync

from dragoman import Tool, tool


def _search(number: int) -> Tool:
    async def search(query: str, limit: int = 10, tags: list[str] | None = None) -> dict[str, int]:
        return {"found": number}

    return tool(name=f"search_{number}", description=f"Searches shelf {number}.")(search)


few = [noop, once, sync]
many = [*few, *map(_search, range(1000 - len(few)))]
