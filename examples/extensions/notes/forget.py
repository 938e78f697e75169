"""A module that somebody has to approve: the client asks its user before it runs, and it tells how far it is."""

from __future__ import annotations

from typing import Any

from apcore import Context, ModuleAnnotations
from pydantic import BaseModel, Field

from apcore_mcp import report_progress

NOTES = ["water the plants", "call Ada", "buy bread"]


class ForgetInput(BaseModel):
    """What it takes."""

    containing: str = Field(min_length=1, description="Notes with this text in them are forgotten.")


class ForgetOutput(BaseModel):
    """What it gives."""

    forgotten: list[str]
    left: int


class Forget:
    """Forgets notes, for good."""

    description = "Forget all notes that contain a text. They cannot be brought back."
    input_schema = ForgetInput
    output_schema = ForgetOutput
    tags = ("notes",)
    annotations = ModuleAnnotations(destructive=True, requires_approval=True, open_world=False)

    async def execute(self, inputs: dict[str, Any], context: Context[Any]) -> dict[str, Any]:
        """Look at the notes one by one."""
        forgotten = []
        for number, note in enumerate(list(NOTES), 1):
            if inputs["containing"] in note:
                NOTES.remove(note)
                forgotten.append(note)
            if context.cancel_token is not None:
                context.cancel_token.check()
            await report_progress(context, number, len(NOTES) + len(forgotten), note)
        return {"forgotten": forgotten, "left": len(NOTES)}
