"""Notices what other processes change in a database, and which of them end, while this one sleeps most of the time.

1. It looks every 50 ms while somebody here waits for another process, and for a second after each change. Otherwise it
   looks as often as the most impatient of its watchers asks for: a process that has nothing to do has to sleep.
2. Other processes renew their leases all the time. That is told as any change is, as something else may have changed
   with it, but it is no reason to look more often.
3. What others held and lost is looked for twice a second, in the same wake-ups, and is told once.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

from msgspec import Struct

OFTEN_SECONDS = 0.05
SELDOM_SECONDS = 0.25
"""For those that take up what other processes leave for them."""
_LIVELY_SECONDS = 1.0
_LOST_SECONDS = 0.45
"""Less than half a second, so that looks that are half a second apart are none too early."""

_OTHERS = "SELECT id, until FROM ledger_process WHERE id IS NOT ?"
_FREE_AGENTS = (
    "SELECT space, id, epoch FROM ledger_agent WHERE process IS NULL OR process NOT IN (SELECT id FROM ledger_process)"
)
_FREE_RUNS = (
    "SELECT DISTINCT process FROM ledger_run "
    "WHERE process IS NOT NULL AND process NOT IN (SELECT id FROM ledger_process)"
)


class Watcher(Struct, frozen=True, eq=False, kw_only=True):
    """What one port wants to know. Its functions are called on the watching thread."""

    changed: Callable[[], None]
    """Something in the database may have changed."""
    lost: Callable[[], None]
    """Something that another process held may be taken over."""
    is_alive: Callable[[], bool]
    """Whether the lease is to be renewed."""
    lease_seconds: float
    most_seconds: float = SELDOM_SECONDS
    """Between two looks while nothing happens."""


class SqliteWatch:
    """Looks at a database, on a thread of its own from `start` on. The other methods may be called from any thread."""

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        watchers: Callable[[], tuple[Watcher, ...]],
        own: Callable[[], str | None],
        seems_alive: Callable[[str, float], bool],
        renew: Callable[[sqlite3.Connection], None],
        now: Callable[[], float] = time.monotonic,
        check: Callable[[], None] = lambda: None,
        saw: Callable[[BaseException], None] = lambda error: None,
        close: Callable[[sqlite3.Connection], None] = sqlite3.Connection.close,
    ) -> None:
        """`own` is the id of this process. `seems_alive` takes that of another one, and the end of its lease.

        `now` counts the time that the machine sleeps, so that the lease is renewed as soon as it goes on. `check` is
        called with each look, and raises when there is nothing to look at. `saw` is told of every error.
        `close` closes a connection.
        """
        self._connect = connect
        self._watchers = watchers
        self._own = own
        self._seems_alive = seems_alive
        self._renew = renew
        self._now = now
        self._check = check
        self._saw = saw
        self._close = close
        self._connection: sqlite3.Connection | None = None
        self._seen: int | None = None
        """The version that this connection saw last. Those of another connection say nothing."""
        self._leases: Mapping[str, float] = {}
        self._lost: frozenset[object] = frozenset()
        self._renewed = self._looked_for_lost = self._lively_until = float("-inf")
        self._waiting: set[object] = set()
        self._looks_seldom = False
        self._woken = threading.Event()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="dragoman-ledger", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over = True
        self._woken.set()
        self._thread.join(1.0)

    def look_often(self) -> Callable[[], None]:
        """Until the function that this returns is called, which may be more than once."""
        waiting = object()
        self._waiting.add(waiting)
        if self._looks_seldom:
            self._woken.set()
        return partial(self._waiting.discard, waiting)

    def hurry(self) -> None:
        """Look often for a while: something has been asked of other processes."""
        self._lively_until = self._now() + _LIVELY_SECONDS
        if self._looks_seldom:
            self._woken.set()

    def pause(self) -> float:
        """Seconds until it looks again, unless it is woken."""
        self._looks_seldom = True  # First: whoever comes from now on wakes it.
        if self._waiting or self._now() < self._lively_until:
            self._looks_seldom = False
            return OFTEN_SECONDS
        seldom = [min(each.most_seconds, each.lease_seconds / 3) for each in self._watchers()]
        every = max(OFTEN_SECONDS, min(seldom, default=SELDOM_SECONDS))
        return every - self._now() % every  # In the same moment as others, who renew their leases after their looks.

    def look(self) -> None:
        """Tell what has changed, and renew the lease if it is time."""
        try:
            self._check()
            if self._connection is None:
                self._connection = self._connect()
                # A lease is void when the machine starts again: it need not be on the disk by then.
                self._connection.execute("PRAGMA synchronous = NORMAL")
            self._look(self._connection, self._now())
        except Exception as error:  # The disk may be full, or the file locked: what can be renewed later is.
            self._saw(error)
            self.disconnect()

    def disconnect(self) -> None:
        """Close the connection, which the next look opens again."""
        connection, self._connection, self._seen = self._connection, None, None
        if connection is not None:
            self._close(connection)

    def _run(self) -> None:
        while not self._is_over:
            self._woken.wait(self.pause())
            self._woken.clear()
            if not self._is_over:
                self.look()
        self.disconnect()

    def _look(self, connection: sqlite3.Connection, now: float) -> None:
        watchers = self._watchers()
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        has_changed = version != self._seen
        if has_changed or now - self._looked_for_lost >= _LOST_SECONDS:
            leases = dict(connection.execute(_OTHERS, (self._own(),)).fetchall())
            if has_changed and leases == self._leases:
                self._lively_until = now + _LIVELY_SECONDS
            self._leases = leases
        if has_changed:
            self._seen = version
            for each in watchers:
                each.changed()
        if now - self._looked_for_lost >= _LOST_SECONDS:
            self._looked_for_lost = now
            self._look_for_lost(connection, watchers)
        # All processes in the same moment, after they have looked: each is disturbed once, by all others.
        every = min((each.lease_seconds for each in watchers), default=1.0) / 3
        if now // every != self._renewed // every:
            if all(each.is_alive() for each in watchers):
                self._renew(connection)
            self._renewed = now

    def _look_for_lost(self, connection: sqlite3.Connection, watchers: tuple[Watcher, ...]) -> None:
        gone = (process for process, until in self._leases.items() if not self._seems_alive(process, until))
        free = (*connection.execute(_FREE_AGENTS), *connection.execute(_FREE_RUNS))
        before, self._lost = self._lost, frozenset((*gone, *free))
        if self._lost - before:
            for each in watchers:
                each.lost()
