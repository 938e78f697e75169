"""Standard input that is a file: it is read on a thread."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from dragoman.edge.stdio import ThreadedReader
from tests.support.waiting import PATIENCE

SIZE = 16 * 1024 * 1024


async def test_a_file_is_read_on_only_when_the_reader_is_told_to_resume(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.touch()
    os.truncate(path, SIZE)
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    sizes, paused, early = list[int](), False, 0

    def receive(data: bytes) -> None:
        nonlocal paused, early
        early += paused
        sizes.append(len(data))
        paused = True
        reader.pause()
        loop.call_soon(go_on if data else ended.set)

    def go_on() -> None:
        nonlocal paused
        paused = False
        reader.resume()

    descriptor = os.open(path, os.O_RDONLY)
    try:
        reader = ThreadedReader(descriptor, receive)
        await asyncio.wait_for(ended.wait(), PATIENCE)
    finally:
        os.close(descriptor)
    assert (sum(sizes), early) == (SIZE, 0)
