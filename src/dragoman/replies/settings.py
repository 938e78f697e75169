"""How answers are worded, and how large they may be."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from dragoman.sections import Count, Section, about


class ResponseConfig(Section, frozen=True):
    """How answers are worded, and how large they may be."""

    dialect: Annotated[
        Literal["structured", "envelope", "plain"], about("The wording of answers; see the guide to dialects.")
    ] = "structured"
    max_response_bytes: Annotated[
        Annotated[int, Meta(ge=1024)],
        about(
            "The most that a result may weigh. `envelope` shortens what is larger; elsewhere it is an error.",
            is_limit=True,
        ),
    ] = 1_048_576
    max_kept_bytes: Annotated[
        Annotated[int, Meta(ge=1024)],
        about(
            "`envelope`: the most that a result may weigh to be shortened and kept. A larger one is an error, unless "
            "`max_response_bytes` allows it.",
            is_limit=True,
        ),
    ] = 4_194_304
    max_list_items: Annotated[
        Count, about("`envelope`: the most items of a list before it is shortened.", is_limit=True)
    ] = 100
    max_string_length: Annotated[
        Count,
        about(
            "`envelope`: the most characters of a string before it is shortened, the suffix included.", is_limit=True
        ),
    ] = 10_000
    truncation_suffix: Annotated[
        Annotated[str, Meta(max_length=100)], about("`envelope`: what a shortened string ends with.")
    ] = "... [truncated]"

    @property
    def max_value_bytes(self) -> int:
        """The most that the JSON of a value may weigh that can be answered with, in whole or in part."""
        return max(self.max_response_bytes, self.max_kept_bytes if self.dialect == "envelope" else 0)
