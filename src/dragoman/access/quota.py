"""How many of something each holder may have at a time."""

from __future__ import annotations

from collections.abc import Hashable


class Quota:
    """Counts what is held, by holder; only those that hold something are known."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._held: dict[Hashable, int] = {}

    def take(self, holder: Hashable) -> bool:
        """Hold one more; False when the holder has as many as it may."""
        held = self._held.get(holder, 0)
        if held >= self.most:
            return False
        self._held[holder] = held + 1
        return True

    def give_back(self, holder: Hashable) -> None:
        """Hold one less."""
        self._held[holder] -= 1
        if self._held[holder] == 0:
            del self._held[holder]

    def __len__(self) -> int:
        """How many holders there are."""
        return len(self._held)
