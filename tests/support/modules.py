"""Modules of several kinds, and a server in memory that has them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from apcore import Context, Executor, ModuleAnnotations, Registry
from pydantic import BaseModel, Field

from apcore_mcp.server.serve import attach
from dragoman.offers.catalogue import Offers
from dragoman.testing import TestServer, open_server

SECRET = "hunter2-is-not-for-you"


class ResizeInput(BaseModel):
    """What the most ordinary of them takes."""

    width: int = Field(ge=1)
    height: int = 1
    password: str = Field(default="", max_length=50, json_schema_extra={"x-sensitive": True})


class Anything(BaseModel):
    """Any object."""

    model_config = {"extra": "allow"}


class Resize:
    """A class module, sync."""

    description = "Resize an image"
    documentation: str | None = "Give a width."
    input_schema: Any = ResizeInput
    output_schema: Any = Anything
    tags = ("image", "public")
    annotations = ModuleAnnotations(idempotent=True)

    def execute(self, inputs: dict[str, Any], context: Context[Any]) -> dict[str, Any]:
        return {"width": inputs["width"], "height": inputs.get("height", 1)}


class Does:
    """A module that does what it is given to do, with its context."""

    input_schema: Any = Anything
    output_schema: Any = Anything
    documentation: str | None = None

    def __init__(self, do: Any, **facts: Any) -> None:
        self._do = do
        self.description = "Does something"
        for name, value in facts.items():
            setattr(self, name, value)

    async def execute(self, inputs: dict[str, Any], context: Context[Any]) -> Any:
        value = self._do(inputs, context)
        return await value if asyncio.iscoroutine(value) else value


class Streams(Does):
    """A module that streams its chunks, and answers `{"whole": True}` to who does not want a stream."""

    annotations = ModuleAnnotations(streaming=True)

    def __init__(self, *chunks: Any) -> None:
        super().__init__(lambda inputs, context: {"whole": True})
        self._chunks = chunks

    async def stream(self, inputs: dict[str, Any], context: Context[Any]) -> AsyncIterator[dict[str, Any]]:
        for chunk in self._chunks:
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk


def registry_of(**modules: Any) -> Registry:
    """A registry; `a__b` stands for `a.b`."""
    registry = Registry()
    for name, module in modules.items():
        registry.register(name.replace("__", "."), module)
    return registry


PLAIN = {"response": {"dialect": "plain"}}


@asynccontextmanager
async def serving(source: Registry | Executor, **options: Any) -> AsyncIterator[TestServer]:
    """A server with the modules of `source`; `config` and what `attach` takes."""
    config = {**PLAIN, **options.pop("config", {})}
    async with open_server([], config, has_health=False, offers=Offers(expected=["resources"])) as server:
        listener = attach(server.runtime, source, **options)
        try:
            yield server
        finally:
            listener.stop()


def text_of(result: dict[str, Any]) -> str:
    (block,) = result["content"]
    text: str = block["text"]
    return text
