"""Histories of stores and deletions, and the plain dictionaries that memories are compared with."""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import Any

from hypothesis import strategies as st

from dragoman.errors import OverQuota
from dragoman.memories.port import Matches, Memories, Page, Space
from dragoman.search.words import text_in, words_in
from tests.support.words import beginnings_of

names = st.sampled_from(["a", "ab", "b", "é", "a\0", "東京"])
spaces = st.builds(Space, st.sampled_from(["ada", "bob"]), st.sampled_from(["default", "n"]))
texts = st.sampled_from(["red", "redder", "green apple", "Äpfel", "東京 red", ""])
step = st.tuples(st.just("store"), spaces, names, texts) | st.tuples(
    st.just("delete"), spaces, st.lists(names, max_size=3), st.none()
)
histories = st.lists(st.lists(step, max_size=6), max_size=8)
QUOTA = 60
"""Bytes that each owner may keep in a history."""


def keys(page: Page | Matches) -> list[str]:
    return [item.key for item in page.items]


async def compare(memories: Memories, steps: list[Any]) -> None:
    """Take the steps, and compare each outcome and what is left. Steps that are taken together come to the same as one
    after the other."""
    model: dict[Space, dict[str, str]] = {}
    outcomes: list[Any] = []
    for together in steps:
        outcomes += await asyncio.gather(
            *(
                memories.delete(space, name) if what == "delete" else memories.store(space, name, text)
                for what, space, name, text in together
            ),
            return_exceptions=True,
        )
    for (what, space, name, text), outcome in zip(chain.from_iterable(steps), outcomes, strict=True):
        held = model.setdefault(space, {})
        if what == "delete":
            there = set(name) & set(held)
            assert outcome == len(there)
            for key in there:
                del held[key]
            continue
        changed = {**model, space: {**held, name: text}}
        is_larger = size(space, name, text) > (size(space, name, held[name]) if name in held else 0)
        if is_larger and used(changed, space.owner) > QUOTA:
            assert isinstance(outcome, OverQuota)
        else:
            assert outcome.created == (name not in held)
            held.pop(name, None)  # So that the model, too, is in the order of storing.
            held[name] = text
    for space, held in model.items():
        assert keys(await memories.list(space, 100)) == sorted(held)
        for prefix in ("a", "é"):
            found = await memories.list(space, 1, prefix=prefix)
            assert keys(found) == sorted(key for key in held if key.startswith(prefix))[:1]
        for query in ("red", "apple", "re", "東", "ab", "green app", "a red", "red re"):
            words = words_in(query)
            assert keys(await memories.search(space, words, 100)) == [
                key for key, text in reversed(held.items()) if has_all(f"{key} {text_in(text)}", words)
            ], query


def has_all(text: str, words: tuple[str, ...]) -> bool:
    return set(words) <= {beginning for word in words_in(text) for beginning in beginnings_of(word)}


def size(space: Space, key: str, text: str) -> int:
    return len(f'{space.namespace}{key}"{text}"'.encode())


def used(model: dict[Space, dict[str, str]], owner: str) -> int:
    return sum(
        size(space, key, text) for space, held in model.items() if space.owner == owner for key, text in held.items()
    )
