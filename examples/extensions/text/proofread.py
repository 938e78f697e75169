"""A module that streams: a client that asks for progress is sent every finding as soon as there is one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

from apcore import Context, ModuleAnnotations
from pydantic import BaseModel, Field


class ProofreadInput(BaseModel):
    """What it takes."""

    text: str = Field(description="The text to look through.")


class ProofreadOutput(BaseModel):
    """What it gives."""

    findings: dict[str, str] = Field(description="What is wrong, by the number of the line.")


class Proofread:
    """Looks for doubled words."""

    description = "Find words that are doubled by mistake, line by line."
    input_schema = ProofreadInput
    output_schema = ProofreadOutput
    tags = ("text",)
    annotations = ModuleAnnotations(readonly=True, idempotent=True, open_world=False, streaming=True)

    async def execute(self, inputs: dict[str, Any], context: Context[Any]) -> dict[str, Any]:
        """All findings at once."""
        return {"findings": dict(_findings(inputs["text"]))}

    async def stream(self, inputs: dict[str, Any], context: Context[Any]) -> AsyncIterator[dict[str, Any]]:
        """One finding after the other; what was found is put together at the end."""
        yield {"findings": {}}
        for line, finding in _findings(inputs["text"]):
            await asyncio.sleep(0)
            yield {"findings": {line: finding}}


def _findings(text: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        doubled = re.search(r"\b(\w+)\s+\1\b", line, re.IGNORECASE)
        if doubled:
            yield str(number), f"{doubled[1]!r} is there twice"
