"""A server of apcore modules, one for each way in which a call can end; run as a script."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from apcore import Context, Registry
from pydantic import BaseModel

import apcore_mcp


class Width(BaseModel):
    """What every module here takes."""

    width: int = 1


class Anything(BaseModel):
    """Any object."""

    model_config = {"extra": "allow"}


class Module:
    """A module that does as its name says."""

    input_schema = Width
    output_schema = Anything
    description = "Does as its name says"

    def __init__(self, name: str) -> None:
        self._name = name

    async def execute(self, inputs: dict[str, Any], context: Context[Any]) -> dict[str, Any]:
        """Succeed, fail, answer with too much, or go on until the server stops."""
        if self._name == "fails":
            raise ValueError("the reason")
        if self._name == "waits":
            await asyncio.sleep(60)
        return {"text": "x" * (5_000_000 if self._name == "floods" else inputs["width"])}


if __name__ == "__main__":
    registry = Registry()
    for name in ("works", "fails", "floods", "waits"):
        registry.register(name, Module(name))
    transport, port, *rest = sys.argv[1:]
    apcore_mcp.serve(
        registry, transport=transport, port=int(port), log_level="DEBUG", validate_inputs="validate" in rest
    )
