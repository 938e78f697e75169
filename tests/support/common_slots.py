"""Slots that several servers in this process share, as workers do."""

from __future__ import annotations

from functools import partial

from dragoman.calls.places import Full, Holder, Places, Release


class CountedSlots:
    """Implements `CommonSlots`."""

    def __init__(self) -> None:
        self._places: dict[str, Places] = {}

    @property
    def in_use(self) -> int:
        return sum(each.in_use for each in self._places.values())

    def take(self, name: str, limit: int, holder: Holder | None) -> Release | Full:
        places = self._places.setdefault(name, Places(limit))
        full = places.full(holder)
        if full is not None:
            return full
        places.hold(holder)
        return partial(places.let_go, holder)
