"""Resources and prompts of every kind, with the names that the public conformance suite asks for.

Run as a script, this is a server whose offers change when its tool is called.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from typing import Any

from dragoman import EmbeddedResource, Image, Message, TextResource, ToolContext, prompt, resource, tool
from dragoman.errors import NotFound

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

__test__ = False  # Prompts are functions, and some have the names that the conformance suite wants.


@resource("test://static-text")
def static_text() -> str:
    """A text that never changes."""
    return "This is the content of the static text resource."


@resource("test://static-binary", mime_type="image/png")
async def static_binary() -> bytes:
    """A picture of one dot."""
    return PNG


@resource("test://watched-resource", title="Watched")
def watched(ctx: ToolContext) -> dict[str, str]:
    """Says who reads it."""
    return {"caller": ctx.caller.name}


async def ids(typed: str, others: Mapping[str, str]) -> list[str]:
    """Every number of two digits that begins with what was typed."""
    return [str(each) for each in range(10, 100) if str(each).startswith(typed)]


@resource("test://template/{id}/data", mime_type="application/json", complete={"id": ids})
def template_data(id: int) -> dict[str, Any]:
    """Data by id."""
    if id == 404:
        raise NotFound("There is no such data")
    if id == 500:
        raise ValueError("the secret reason")
    return {"id": str(id), "templateTest": True, "data": f"Data for ID: {id}"}


@prompt
def test_simple_prompt() -> str:
    """A prompt without arguments."""
    return "This is a simple prompt for testing."


@prompt(complete={"arg1": ["paris", "park", "party"]})
def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """A prompt with two arguments."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@prompt
def test_prompt_with_embedded_resource(resourceUri: str) -> list[Message]:
    """A prompt that brings a resource along."""
    embedded = TextResource(resourceUri, "Embedded resource content for testing.", "text/plain")
    return [Message(EmbeddedResource(embedded)), Message("Please process the embedded resource above.")]


@prompt
async def test_prompt_with_image() -> list[Message | str]:
    """A prompt that brings a picture along."""
    return [Message(Image(PNG)), "Please analyze the image above."]


def serve_changing_offers() -> None:
    """Serve a tool that says that a resource has changed, and adds offers."""
    from dragoman import Offers, ServerOptions, create_server, start_server

    @tool
    def change() -> str:
        """Changes everything once."""
        server.resource_updated("test://static-text")
        server.resource_updated("test://watched-resource")
        server.offers.register(static_binary)
        server.offers.register(test_simple_prompt)
        return "changed"

    server = create_server(ServerOptions(tools=[change, static_text, watched], offers=Offers()))
    asyncio.run(start_server(server))


if __name__ == "__main__":
    serve_changing_offers()
