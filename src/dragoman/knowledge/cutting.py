"""Answers to queries that weigh no more than a tool may answer: the best passages stay, whole."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from dragoman.tools.pages import ANSWER_FRAME, weight_in_answer

_CUT = "…"


def cut_to(data: dict[str, Any], most_bytes: int) -> dict[str, Any]:
    """The data of an action with fewer passages, and less of a response that takes more than half, and `truncated`.

    What is light enough, or has no passages, stays as it is.
    """
    room = most_bytes - ANSWER_FRAME
    if "context" not in data or weight_in_answer(data) <= room:
        return data
    kept = {**data, "response": _beginning(data["response"], room // 2), "context": [], "truncated": True}
    left = room - weight_in_answer(kept)
    weights = accumulate(weight_in_answer(passage) + 4 for passage in data["context"])
    return {**kept, "context": data["context"][: sum(weight <= left for weight in weights)]}


def _beginning(text: str, room: int) -> str:
    """As much of a text as weighs so much."""
    if weight_in_answer(text) <= room:
        return text
    least, most = 0, len(text)
    while least < most:
        middle = (least + most + 1) // 2
        if weight_in_answer(text[:middle] + _CUT) <= room:
            least = middle
        else:
            most = middle - 1
    return text[:least] + _CUT
