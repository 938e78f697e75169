"""The port to a message bus: messages are published on subjects, and delivered until they are settled.

1. A message is published once `publish` has returned. A second one with the same subject and id is the first one, also
   after that was settled, for `REMEMBERED_SECONDS` at least: until `DeadLetters.purge` forgets it.
2. Messages of one subject are first delivered in the order in which they were published. One that is retried does not
   hold up those behind it. At most `most_per_subject` messages of a subject are held at a time, by all subscriptions of
   all processes together.
3. Subjects take turns: however many messages one of them has, a message of another waits for one turn of each.
4. A delivery is held until it is settled: acknowledged, retried or given up. While its subscription is alive it stays
   held, however long its handling takes. When the process ends, stops renewing for `ack_seconds`, or closes the
   subscription, it is delivered again, to whichever subscription asks first.
5. Each delivery has a higher fence than the one before. To settle one that was settled or delivered again has no
   effect, and returns False. One that its process lost and nobody has taken since is settled all the same.
6. Given up messages are dead letters: kept with every error, until they are redriven or purged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Final, Protocol

from msgspec import Struct

REMEMBERED_SECONDS: Final = 2 * 86_400.0
"""How long the id of a settled message is remembered: longer than any request lives."""
MOST_MESSAGES: Final = 100_000
"""How many messages of one subject may wait or be held; one more is refused."""
MOST_BYTES: Final = 268_435_456
"""How many bytes their bodies and headers may have together."""
MOST_HEADER_BYTES: Final = 65_536
"""How many bytes the names and values of the headers of one published message may have together."""
MOST_DEAD: Final = 10_000
"""How many dead letters of one subject are kept; the oldest are forgotten for others."""
MOST_DEAD_BYTES: Final = MOST_BYTES
"""How many bytes their bodies and headers may have together, in the same way."""


class BusMessage(Struct, frozen=True, kw_only=True):
    """Something to be published."""

    subject: str
    id: str
    body: bytes
    headers: Mapping[str, str] = {}
    expires_at: float | None = None
    """In seconds since 1970: nobody gets it from then on, and a purge forgets it. None: it waits for ever."""


def check_headers(message: BusMessage) -> None:
    """Raise `ValueError` for headers that are too large: they are read with the message, wherever it is looked at."""
    size = sum(len(name.encode()) + len(value.encode()) for name, value in message.headers.items())
    if size > MOST_HEADER_BYTES:
        raise ValueError(f"the headers have {size} bytes, and at most {MOST_HEADER_BYTES} are taken")


class BusDelivery(Struct, frozen=True, kw_only=True):
    """A message, as a subscription holds it."""

    message: BusMessage
    number: int
    """In the order of publication, over all subjects."""
    published_at: float
    attempt: int
    """How often it was delivered, this time included, and not given back by a subscription that was closed."""
    fence: int
    errors: tuple[bytes, ...] = ()
    """JSON of the errors of earlier attempts."""


class Subscription(Protocol):
    """Hands out messages. Belongs to one event loop."""

    async def take(self) -> BusDelivery:
        """The next message, when there is one and the limits allow it. Cancelling it loses nothing."""
        ...

    async def close(self) -> None:
        """Give back at once what is not settled, and hand out no more."""
        ...


class Bus(Protocol):
    """Raises `StorageError`s; `BusFull` where a subject has too many messages, or too many bytes."""

    def publish(self, message: BusMessage) -> Awaitable[bool]:
        """Whether it is new: see rule 1. Raises `ValueError` as `check_headers` does."""
        ...

    def subscribe(self, pattern: str, *, most_per_subject: int, ack_seconds: float) -> Subscription:
        """Take messages of a subject, or of all that a pattern such as `dragoman.actions.*` matches."""
        ...

    async def ack(self, delivery: BusDelivery) -> bool:
        """The message is done."""
        ...

    async def retry(self, delivery: BusDelivery, after_seconds: float, error: bytes) -> bool:
        """Deliver it again, that much later."""
        ...

    async def give_up(self, delivery: BusDelivery, error: bytes) -> bool:
        """Make a dead letter of it."""
        ...


class DeadLetter(Struct, frozen=True, kw_only=True):
    """A message that was given up."""

    number: int
    message: BusMessage
    published_at: float
    died_at: float
    attempts: int
    errors: tuple[bytes, ...]
    """JSON of the error of each attempt, the last one's last."""


class DeadLetters(Protocol):
    """The operators' side of a bus, usable beside running servers. Raises `StorageError`s."""

    async def page(
        self, pattern: str | None, limit: int, *, after: int = 0, died_before: float | None = None
    ) -> list[DeadLetter]:
        """In the order of their numbers, from behind `after`; of all subjects, or of those that a pattern matches."""
        ...

    async def get(self, number: int) -> DeadLetter | None: ...

    async def redrive(self, number: int, headers: Mapping[str, str] | None = None) -> int | None:
        """Deliver one again, behind all others of its subject, without its errors: its new number.

        Its headers stay as they are, or are replaced. None if it is no dead letter.
        """
        ...

    async def purge(self, limit: int, *, died_before: float, until: float | None = None) -> int:
        """Forget up to so many dead letters, and settled and expired messages whose time is over at `until`; how many.

        `until` is now by default.
        """
        ...
