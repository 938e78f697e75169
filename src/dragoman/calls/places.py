"""Places that tenants share: how many there are, who holds them, and who is next.

1. A tenant may hold half of the places, and more only while a fifth of all, at least one, stays free for others: a
   place that is held cannot be taken back.
2. A key may hold half of what its tenant may at this moment, and more in the same way. A key is something that was
   verified, such as the key of a signature: a name that somebody chose could be another one for each request.
3. Those that wait have their turns: the tenants, and for each tenant its keys.
4. The server's own work has no holder and no share: it takes any place that is free.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sized
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

K = TypeVar("K", bound=Hashable)
Q = TypeVar("Q", bound=Sized)
W = TypeVar("W")
Release: TypeAlias = Callable[[], None]


class Holder(NamedTuple):
    """For whom something is held."""

    tenant: str
    key: str = ""
    """Empty if nobody in the tenant is known: there is no share in its share then."""


class Full(NamedTuple):
    """Why there is no place: so many are taken."""

    taken: int
    whose: str = ""
    """Empty, unless others could have one."""
    setting: str | None = None
    """The setting that says how many places there are."""


class Turns(Generic[W]):
    """Those that wait, in the order of their turns."""

    def __init__(self) -> None:
        self.tenants: OrderedDict[str | None, OrderedDict[str, deque[W]]] = OrderedDict()
        """By tenant and key, in the order in which they are asked; only those of whom somebody waits."""

    def __bool__(self) -> bool:
        return bool(self.tenants)

    def add(self, waiter: W, holder: Holder | None = None, *, is_next: bool = False) -> None:
        """Wait behind the others of the same key; with `is_next`, before all others."""
        tenant, key = holder or (None, "")
        keys = self.tenants.setdefault(tenant, OrderedDict())
        waiting = keys.setdefault(key, deque())
        if is_next:
            waiting.appendleft(waiter)
            keys.move_to_end(key, last=False)
            self.tenants.move_to_end(tenant, last=False)
        else:
            waiting.append(waiter)

    def take(self, has_room: Callable[[Holder | None], bool]) -> tuple[W, Holder | None] | None:
        """The first one for whose holder there is room. Its tenant is asked last the next time, and so is its key."""
        for tenant, keys in self.tenants.items():
            for key, waiting in keys.items():
                holder = None if tenant is None else Holder(tenant, key)
                if has_room(holder):
                    waiter = waiting.popleft()
                    _rotate(keys, key)
                    _rotate(self.tenants, tenant)
                    return waiter, holder
        return None


def _rotate(queues: OrderedDict[K, Q], name: K) -> None:
    """Put one at the end, or away if nothing is left in it."""
    if queues[name]:
        queues.move_to_end(name)
    else:
        del queues[name]


class Places:
    """A fixed number of places."""

    def __init__(self, limit: int, setting: str | None = None) -> None:
        self.limit = limit
        self.setting = setting
        self.in_use = 0
        self._held: dict[Hashable, int] = {}
        """By tenant, and by holder; only those that hold some."""

    def full(self, holder: Holder | None = None) -> Full | None:
        """Why there is no place for one more; None if there is one."""
        free = self.limit - self.in_use
        if free <= 0:
            return Full(self.limit, setting=self.setting)
        if holder is None:
            return None
        held = self.held_by(holder.tenant)
        left = min(free, max(_half(self.limit) - held, free - _fifth(self.limit)))
        if left <= 0:
            return Full(held, " of this tenant", self.setting)
        if not holder.key:
            return None
        most, of_key = held + left, self._held.get(holder, 0)
        if of_key < _half(most) or left > _fifth(most):
            return None
        return Full(of_key, " of this caller", self.setting)

    def held_by(self, tenant: str) -> int:
        """How many places a tenant holds."""
        return self._held.get(tenant, 0)

    def has_room(self, holder: Holder | None = None) -> bool:
        """Whether there is a place for one more."""
        return self.full(holder) is None

    def hold(self, holder: Holder | None = None) -> None:
        """Hold one more."""
        self.in_use += 1
        if holder is not None:
            for each in (holder, holder.tenant):
                self._held[each] = self._held.get(each, 0) + 1

    def let_go(self, holder: Holder | None = None) -> None:
        """Hold one less."""
        self.in_use -= 1
        if holder is not None:
            for each in (holder, holder.tenant):
                self._held[each] -= 1
                if not self._held[each]:
                    del self._held[each]


def _half(count: int) -> int:
    return max(1, count // 2)


def _fifth(count: int) -> int:
    return max(1, count // 5)


class AwaitedPlaces(Places):
    """Places that can be waited for. Lives on one event loop."""

    def __init__(self, limit: int, setting: str | None = None) -> None:
        super().__init__(limit, setting)
        self.waiting: Turns[asyncio.Future[None]] = Turns()

    async def acquire(self, holder: Holder | None = None) -> Release:
        """Wait for a place; the function gives it back, however often it is called."""
        is_next = False
        while not self.has_room(holder):
            turn = asyncio.get_running_loop().create_future()
            self.waiting.add(turn, holder, is_next=is_next)
            if is_next:
                self.wake_next()  # There may be room for another holder.
            is_next = True  # Whoever is overtaken after being woken keeps its place.
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.wake_next()
                raise
        release = self.take(holder)
        if is_next:
            self.wake_next()  # What was given back may have made room for another one, too.
        return release

    def take(self, holder: Holder | None = None) -> Release:
        """Hold a place; the function gives it back, however often it is called."""
        self.hold(holder)
        return _Held(self, holder)

    def give_back_of(self, holder: Holder | None) -> None:
        """Hold one less, and let whoever is next try again."""
        self.let_go(holder)
        self.wake_next()

    def wake_next(self) -> None:
        """Let whoever is next, and has room, try again."""
        while (found := self.waiting.take(self.has_room)) is not None:
            turn, _ = found
            if not turn.done():
                turn.set_result(None)
                return


class _Held(msgspec.Struct, eq=False):
    """Gives a place back the first time it is called, and never again."""

    places: AwaitedPlaces | None
    holder: Holder | None

    def __call__(self) -> None:
        places = self.places
        if places is not None:
            self.places = None
            places.give_back_of(self.holder)
