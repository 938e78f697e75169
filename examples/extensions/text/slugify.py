"""A module as a class: one to a file, known by where the file is. This one is `text.slugify`."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

from apcore import Context, ModuleAnnotations
from pydantic import BaseModel, Field


class SlugifyInput(BaseModel):
    """What it takes."""

    title: str = Field(description="Any text, such as the title of a page.")
    longest: int = Field(default=60, ge=1, le=200, description="The most characters that the slug may have.")


class SlugifyOutput(BaseModel):
    """What it gives."""

    slug: str


class Slugify:
    """Turns a title into the last part of an address."""

    description = "Turn a title into a slug for an address: lower case, without accents, words joined by hyphens."
    documentation = (
        "Letters keep their base form (é becomes e), everything that is neither letter nor digit becomes a hyphen, and "
        "the slug is cut between words where it would be too long."
    )
    input_schema = SlugifyInput
    output_schema = SlugifyOutput
    tags = ("text",)
    annotations = ModuleAnnotations(readonly=True, idempotent=True, open_world=False)

    def execute(self, inputs: dict[str, Any], context: Context[Any]) -> dict[str, Any]:
        """Make the slug."""
        longest = inputs.get("longest", 60)
        plain = unicodedata.normalize("NFKD", inputs["title"]).encode("ascii", "ignore").decode().lower()
        slug = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
        if len(slug) > longest:
            slug = slug[: longest + 1].rpartition("-")[0] or slug[:longest]
        return {"slug": slug}
