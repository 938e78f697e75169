"""How deleted documents leave: in pieces, between the writes of others.

1. A document is gone in the moment in which it is marked as deleted, or at its `delete_at`, and with it all that is
   below: every reader asks for the documents above.
2. The rows follow: each document below is marked, and passages are forgotten, each piece in a transaction of its own.
3. A document below that was due before the one above was deleted keeps its own time, and has an event of its own.
4. Events have exact counts: the event of a deletion that is not finished at once has none, and another one follows.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from dragoman.knowledge.port import AuditEvent
from dragoman.knowledge.rows import Leaving, LeavingRows, Room, Unmarked

_ROWS_OF_ONE: Final = 4
"""Rows that are written for a document that leaves, besides its passages."""


def leave(rows: LeavingRows, tenant: str, id: str, at: float, room: Room) -> int | None:
    """Delete a document and all below it; how many documents those are. None if a part is left to `go_on`."""
    piece = _Piece(rows, tenant, at, room)
    return piece.run(until=piece.begin(rows.find(tenant, id), at))


def go_on(rows: LeavingRows, tenant: str, now: float, room: Room) -> int:
    """One more piece of what leaves, and of what is due; how many documents were marked as deleted."""
    piece = _Piece(rows, tenant, now, room)
    piece.run()
    while room.is_left and room.documents and (due := rows.first_due(tenant, now)) is not None:
        piece.begin(due, due.delete_at or 0.0, is_scheduled=True)
        piece.run()
    return piece.marked


class _Piece:
    """What one transaction does of the documents of a tenant that leave. The one that began last comes first."""

    def __init__(self, rows: LeavingRows, tenant: str, now: float, room: Room) -> None:
        self._rows = rows
        self._tenant = tenant
        self._now = now
        self._room = room
        self._counts: Counter[int] = Counter()
        self.marked = 0

    def begin(self, document: Unmarked, at: float, *, top: int | None = None, is_scheduled: bool = False) -> int:
        """Mark a document as deleted; the number that is its turn's, and that of the top of all that leave with it."""
        self.marked += 1
        self._room.rows -= _ROWS_OF_ONE
        self._room.documents -= 1
        turn = self._rows.begin(self._tenant, document.number, at, top, is_scheduled=is_scheduled)
        self._counts[turn if top is None else top] += 1
        return turn

    def run(self, until: int | None = None) -> int | None:
        """Go on until a top has left, or all have; how many documents have left with it, None if it is still there."""
        while self._room.is_left and (leaving := self._rows.last(self._tenant)) is not None:
            if not self._rows.forget(leaving, self._room):
                break
            child = self._rows.first_below(self._tenant, leaving.id)
            if child is not None and not self._room.documents:
                break
            if child is not None:
                self._take_along(child, leaving)
                continue
            self._rows.end(leaving)
            if leaving.turn == leaving.top:
                count = leaving.documents + self._counts.pop(leaving.turn, 0)
                if leaving.turn == until:
                    return count
                self._note(leaving, count)
        for turn, count in self._counts.items():
            self._rows.count(turn, count)
        self._counts.clear()
        return None

    def _take_along(self, child: Unmarked, above: Leaving) -> None:
        if child.delete_at is not None and child.delete_at <= above.at:
            self.begin(child, child.delete_at, is_scheduled=True)
        else:
            self.begin(child, above.at, top=above.top)

    def _note(self, top: Leaving, documents: int) -> None:
        """Note that a top has left with all below it, if that could not be said when it was deleted."""
        details = {"documents": documents, **({"scheduled": True} if top.is_scheduled else {})}
        self._rows.note(
            AuditEvent(
                tenant=self._tenant,
                event="document.deleted" if top.is_scheduled else "document.removed",
                principal="dragoman",
                subject=top.id,
                at=top.at if top.is_scheduled else self._now,
                details=details,
            )
        )
