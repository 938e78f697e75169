"""A call's answer, where somebody waits for it."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Awaited(Generic[T]):
    """Holds the future that `Call.reply` settles. The code that awaits it then deletes `future`.

    An error in the future leads to the frames that it passes through, these to the call, and the call to its `reply`.
    Were the future still there, only the garbage collector would free them all.
    """

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
