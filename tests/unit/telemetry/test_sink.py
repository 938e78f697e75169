"""Where entries go: a descriptor that may be slow, full, broken, or read by nobody."""

from __future__ import annotations

import json
import os
import select
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.telemetry.log import CompletionRecord, Entry, EntryWriter, StructuredLogger
from dragoman.telemetry.sink import MOST_BYTES, MOST_ENTRIES, MOST_RECORDS, DescriptorSink
from dragoman.testing import ManualClock
from tests.support.waiting import PATIENCE


def entry(number: int = 0, message: str = "m") -> Entry:
    return {"timestamp": "2024-01-15T10:30:00.000Z", "level": "info", "message": message, "number": number}


class Pipe:
    """A pipe whose reader does nothing until it is told to."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        self._read: list[bytes] = []
        self._reader: threading.Thread | None = None

    def read_on(self) -> None:
        """Start to take in everything that comes."""
        self._reader = threading.Thread(target=self._drain)
        self._reader.start()

    def _drain(self) -> None:
        while data := os.read(self.reading, 65536):
            self._read.append(data)

    def wait_for_data(self) -> None:
        assert select.select([self.reading], [], [], PATIENCE)[0]

    def everything(self) -> bytes:
        """All that was ever written; ends the pipe."""
        if self._reader is None:
            self.read_on()
        os.close(self.writing)
        self.writing = -1
        assert self._reader is not None
        self._reader.join(PATIENCE)
        return b"".join(self._read)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.everything().splitlines()]

    def close(self) -> None:
        for descriptor in (self.reading, self.writing):
            if descriptor >= 0:
                os.close(descriptor)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()


def test_entries_arrive_in_order_and_close_waits_for_them(pipe: Pipe) -> None:
    sink = DescriptorSink(pipe.writing, EntryWriter())
    for number in range(500):
        sink.put(entry(number))
    assert sink.close(PATIENCE)
    assert pipe.lines() == [entry(number) for number in range(500)]


def test_entries_are_written_without_being_asked_for(pipe: Pipe) -> None:
    sink = DescriptorSink(pipe.writing, EntryWriter())
    sink.put(entry())
    pipe.wait_for_data()
    assert sink.close(PATIENCE)
    assert pipe.lines() == [entry()]


@pytest.mark.slow
def test_a_reader_that_stalls_holds_up_nobody_but_the_log(pipe: Pipe) -> None:
    sink = DescriptorSink(pipe.writing, EntryWriter())
    assert not sink.is_full
    sink.put(entry(0, "x" * 1_000_000))  # More than the pipe takes: from here on, nothing can be written.
    pipe.wait_for_data()
    for number in range(1, 20_001):
        sink.put(entry(number))
    assert sink.is_full
    assert not sink.close(timeout=0.01)
    pipe.read_on()
    assert sink.close(PATIENCE)
    assert not sink.is_full
    assert [line["number"] for line in pipe.lines()] == list(range(20_001))


def test_a_few_entries_that_wait_are_no_reason_to_stop_taking_work(pipe: Pipe) -> None:
    sink = DescriptorSink(pipe.writing, EntryWriter())
    sink.put(entry(0, "x" * 1_000_000))
    pipe.wait_for_data()
    for number in range(1, 101):
        sink.put(entry(number))
    assert not sink.is_full
    pipe.read_on()
    assert sink.close(PATIENCE)
    assert len(pipe.lines()) == 101


def test_a_descriptor_that_does_not_block_loses_nothing(pipe: Pipe) -> None:
    os.set_blocking(pipe.writing, False)
    sink = DescriptorSink(pipe.writing, EntryWriter())
    for number in range(5_000):
        sink.put(entry(number))
    pipe.wait_for_data()
    pipe.read_on()
    assert sink.close(PATIENCE)
    assert [line["number"] for line in pipe.lines()] == list(range(5_000))


def test_entries_may_come_from_many_threads(pipe: Pipe) -> None:
    sink = DescriptorSink(pipe.writing, EntryWriter())
    pipe.read_on()
    logger = StructuredLogger(sink.put, ManualClock())

    def work(worker: int) -> None:
        for number in range(200):
            logger.info("m", {"worker": worker, "number": number})

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sink.close(PATIENCE)
    lines = pipe.lines()
    for worker in range(8):
        assert [line["number"] for line in lines if line["worker"] == worker] == list(range(200))


def test_a_reader_that_left_is_survived(pipe: Pipe) -> None:
    os.close(pipe.reading)
    pipe.reading = -1
    sink = DescriptorSink(pipe.writing, EntryWriter())
    for _ in range(3):
        sink.put(entry())
        assert sink.close(PATIENCE)
    assert not sink.is_full


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
def test_a_disk_that_is_full_is_survived() -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    try:
        sink = DescriptorSink(descriptor, EntryWriter())
        for _ in range(3):
            sink.put(entry())
            assert sink.close(PATIENCE)
        assert not sink.is_full
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize(
    "facts", [{1: "x"}, {None: 1}, {"level": "fatal"}, {"timestamp": 1}, {"message": 1}, {"a": "\ud800"}, {"a": 2**80}]
)
def test_no_facts_whatever_end_the_log(pipe: Pipe, facts: dict[Any, Any], text: bool) -> None:
    sink = DescriptorSink(pipe.writing, EntryWriter(text=text))
    logger = StructuredLogger(sink.put, ManualClock())
    logger.info("odd", facts)
    assert sink.close(PATIENCE)
    logger.info("afterwards")
    assert sink.close(PATIENCE)
    assert b"afterwards" in pipe.everything()


RECORD = CompletionRecord("t", "info", "tool call completed", "r", "c", "echo", 0.1, "success", 2)


def stalled(pipe: Pipe, **options: Any) -> DescriptorSink:
    """A sink whose writer waits for the reader."""
    sink = DescriptorSink(pipe.writing, EntryWriter(**options))
    sink.put(entry(0, "x" * 200_000))
    deadline = time.monotonic() + PATIENCE
    while select.select([], [pipe.writing], [], 0)[1] and time.monotonic() < deadline:
        time.sleep(0.001)  # Until the pipe is full.
    return sink


def summary(pipe: Pipe) -> tuple[Counter[str], list[int]]:
    """How often each message was written, and the counts of dropped entries."""
    lines = pipe.lines()
    assert all("timestamp" in line for line in lines)
    return Counter(line["message"] for line in lines), [line["count"] for line in lines if "count" in line]


@pytest.mark.slow
def test_entries_beyond_the_bound_are_dropped_and_counted_once_while_records_are_kept(pipe: Pipe) -> None:
    sink = stalled(pipe)
    for number in range(30_000):
        sink.put(entry(number, "noise"))
        if number % 3_000 == 0:
            sink.put(RECORD)
    pipe.read_on()
    assert sink.close(PATIENCE)
    messages, (dropped,) = summary(pipe)
    assert messages["noise"] == MOST_ENTRIES - 7  # The records that were there before it was full.
    assert (messages["noise"] + dropped, messages["tool call completed"]) == (30_000, 10)


@pytest.mark.slow
def test_records_beyond_their_bound_are_dropped_and_counted_once(pipe: Pipe) -> None:
    sink = stalled(pipe, worker=3)
    for _ in range(MOST_RECORDS + 5_000):
        sink.put(RECORD)
    pipe.read_on()
    assert sink.close(PATIENCE)
    assert summary(pipe) == (
        Counter({"tool call completed": MOST_RECORDS, "x" * 200_000: 1, "log entries dropped": 1}),
        [5_000],
    )


def test_entries_are_dropped_when_they_weigh_too_much_and_taken_again_afterwards(pipe: Pipe) -> None:
    sink = stalled(pipe)
    text, count = "y" * 100_000, 2 * MOST_BYTES // 100_000
    for number in range(count):
        sink.put({**entry(number), "nested": {"texts": [text]}})
    sink.put(RECORD)
    pipe.read_on()
    assert sink.close(PATIENCE)
    for number in range(10):
        sink.put(entry(number, "afterwards"))
    assert sink.close(PATIENCE)
    messages, (dropped,) = summary(pipe)
    assert messages["m"] + dropped == count
    assert messages["m"] <= MOST_BYTES // 100_000
    assert (messages["tool call completed"], messages["afterwards"]) == (1, 10)


def test_entries_that_grow_while_they_wait_are_not_counted_twice(pipe: Pipe) -> None:
    sink, text = stalled(pipe), "é" * 100_000
    for number in range(20):
        sink.put(entry(number, text))
    msgspec.json.encode(text)
    assert sys.getsizeof(text) > 300_000  # It keeps its UTF-8 from now on.
    pipe.read_on()
    assert sink.close(PATIENCE)
    assert sink._held == 0
    pipe.everything()


def test_an_entry_that_is_heavier_than_the_bound_is_written_if_no_other_waits(pipe: Pipe) -> None:
    sink = DescriptorSink(pipe.writing, EntryWriter())
    pipe.read_on()
    sink.put(entry(0, "z" * (MOST_BYTES + 1)))
    assert sink.close(PATIENCE)
    assert len(pipe.everything()) > MOST_BYTES


def test_sinks_that_take_turns_do_not_mix_their_lines(pipe: Pipe, tmp_path: Path) -> None:
    sinks = [DescriptorSink(pipe.writing, EntryWriter(), turns=tmp_path / "turns") for _ in range(3)]
    for number in range(20):
        for sink in sinks:
            sink.put(entry(number, "x" * 100_000))  # More than the pipe takes at once.
    pipe.read_on()
    assert all(sink.close(PATIENCE) for sink in sinks)
    assert sorted(line["number"] for line in pipe.lines()) == sorted([*range(20)] * 3)
