"""Since when this process has been awake: neither it nor the machine was stopped meanwhile.

Processes that were stopped together find each other's leases expired when they go on. None of them was silent: it had
no time to speak. So a lease counts as expired only for a process that has been awake for as long as the lease is.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable


class Wakefulness:
    """Begins when it is made. `note` is called again and again, from any thread, several times in each lease."""

    def __init__(self, boot_clock: Callable[[], float]) -> None:
        self._boot_clock = boot_clock
        self._lock = threading.Lock()
        self._noted = boot_clock()
        self._pauses = [(self._noted, math.inf)]
        """Times between two notes: when each ended, and how long it was. Those behind which a longer one came are left
        out. The first is the time before it was made."""

    def note(self) -> float:
        """This process is awake now; the time on the boot clock."""
        with self._lock:
            return self._note()

    def expiry(self, lease: float) -> float:
        """The time at which a lease of so many seconds must have ended to be expired: now, or never.

        A holder renews its lease every third of it. So more than half is left of one that is not renewed because its
        holder is stopped, and a pause that is no longer can be ignored.
        """
        with self._lock:
            now = self._note()
            awake_since = next(end for end, length in reversed(self._pauses) if length > lease / 2)
        return now if now - awake_since >= lease else -math.inf

    def _note(self) -> float:
        now = self._boot_clock()
        if (pause := now - self._noted) > 0:
            while self._pauses[-1][1] <= pause:
                self._pauses.pop()
            self._pauses.append((now, pause))
            self._noted = now
        return now
