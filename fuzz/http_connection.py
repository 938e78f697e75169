"""Throws bytes at the HTTP connection that has no I/O, and looks for what must never happen.

`python -m fuzz.http_connection [libFuzzer options] FOLDER`, after `--seeds` has written inputs to begin with. These are
the messages of docs/http.md. The first four bytes of an input say where the rest is cut. After every input:

1. nothing was raised, and the connection is closed;
2. cut there, and cut into single bytes where there are few, the bytes were understood as they are as a whole;
3. nothing was understood after an error;
4. it took no more CPU time and left no more memory in use than `BOUNDS` allows.
"""

from __future__ import annotations

import sys
import time

import atheris

with atheris.instrument_imports(include=["dragoman"]):
    from dragoman.edge.http.connection import BadRequest
    from tests.support.http_requests_in import cut, understood

from fuzz.costs import Bounds, Cost, memory_in_use
from fuzz.fuzzer import OUT, fuzz, write_seeds
from tests.support.http_messages import MESSAGES, NEXT

CORPUS = OUT / "connection_corpus"
FEW = 300
BOUNDS = Bounds(seconds=0.05, seconds_per_byte=10e-6, seconds_per_step=20e-6, held=64 * 1024)
SEEDS = [b"\x01\x02\x10\x80" + message.data[:4000] + NEXT for part in MESSAGES.values() for message in part]


def one_input(data: bytes) -> Cost:
    places, data = data[:4], data[4:]
    before, started = memory_in_use(), time.process_time()
    found = understood([data])
    cpu = time.process_time() - started
    errors = [number for number, each in enumerate(found) if isinstance(each, BadRequest)]
    assert not errors or errors == [len(found) - 2], "something was understood after an error"
    assert understood(cut(data, (place * len(data) // 256 for place in places))) == found, (
        "cut, it means something else"
    )
    if len(data) <= FEW:
        assert understood(data[at : at + 1] for at in range(len(data))) == found, "in bytes, it means something else"
    del found
    return Cost(cpu, 1, memory_in_use() - before)


if __name__ == "__main__":
    if "--seeds" in sys.argv:
        write_seeds(CORPUS, {f"{number:03}": data for number, data in enumerate(SEEDS)})
    else:
        fuzz(__doc__, one_input, BOUNDS, SEEDS)
