"""Passages get their vectors behind the changes, and another model takes over when it has caught up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman.errors import ModelUnavailable, TextRefused
from dragoman.knowledge.vectors import REFUSED_SECONDS, STEP, ServingModel, VectorWork
from dragoman.testing import ManualClock
from tests.support.passage_vectors import CountingEmbedder, ListedVectors
from tests.support.waiting import until


async def let_time_pass(clock: ManualClock, task: asyncio.Task[Any], seconds: float) -> bool:
    """Whether a task ends within so many seconds of the clock."""
    for _ in range(int(seconds * 10)):
        clock.advance(0.1)
        for _ in range(5):
            await asyncio.sleep(0)
        if task.done():
            return True
    return False


async def test_passages_are_embedded_in_steps_in_the_order_in_which_they_were_written() -> None:
    texts = [f"p{number}" for number in range(2 * STEP + 1)]
    vectors, embedder = ListedVectors(texts), CountingEmbedder()
    assert await VectorWork(vectors, embedder, ManualClock()).run() == {"model": "new", "embedded": len(texts)}
    assert [len(batch) for batch in embedder.batches] == [STEP, STEP, 1]
    assert vectors.stored == {"new": {number: text.encode() for number, text in enumerate(texts, 1)}}


async def test_a_change_is_noticed_within_about_a_second() -> None:
    vectors, embedder, clock = ListedVectors(), CountingEmbedder(), ManualClock()
    run = asyncio.create_task(VectorWork(vectors, embedder, clock).run())
    assert not await let_time_pass(clock, run, 10)
    vectors.passages[1] = "new text"
    assert await let_time_pass(clock, run, 1.2)
    assert (await run)["embedded"] == 1
    assert embedder.batches == [["new text"]]


async def test_a_run_ends_after_a_while_so_that_its_record_is_seen() -> None:
    vectors, embedder = ListedVectors(map(str, range(5_000))), CountingEmbedder()
    work = VectorWork(vectors, embedder, ManualClock())
    first = (await work.run())["embedded"]
    assert 1_000 <= first < 1_100
    assert len(vectors.stored["new"]) == first
    while len(vectors.stored["new"]) < 5_000:
        await work.run()


async def test_a_model_that_fails_is_tried_again_after_waits_that_grow_and_end() -> None:
    vectors, embedder, clock = ListedVectors(["a"]), CountingEmbedder(failures=9), ManualClock()
    work, waits = VectorWork(vectors, embedder, clock, random=lambda: 1.0), list[float]()
    for _ in range(9):
        began = clock.monotonic()
        run = asyncio.create_task(work.run())
        assert await let_time_pass(clock, run, 61)
        with pytest.raises(ModelUnavailable):
            await run
        waits.append(round(clock.monotonic() - began))
    assert waits == [0, 1, 2, 4, 8, 16, 32, 60, 60]
    run = asyncio.create_task(work.run())
    assert await let_time_pass(clock, run, 61)
    assert vectors.stored == {"new": {1: b"a"}}
    vectors.passages[2] = "b"
    assert (await work.run())["embedded"] == 1, "what follows a success is not waited for"


async def test_a_text_that_its_model_refuses_is_put_off_and_the_others_do_not_wait() -> None:
    texts = [f"p{number}" for number in range(3 * STEP)]
    vectors, embedder, clock = (
        ListedVectors(texts),
        CountingEmbedder(refuses=["p3", *texts[STEP : STEP + 4]]),
        ManualClock(),
    )
    work = VectorWork(vectors, embedder, clock, random=lambda: 1.0)
    with pytest.raises(TextRefused):  # As a model that is set up wrongly would: a wait follows.
        await work.run()
    assert (len(vectors.stored["new"]), len(embedder.batches)) == (STEP - 1, 1 + STEP + 1 + 4)
    run = asyncio.create_task(work.run())
    assert await let_time_pass(clock, run, 2)
    assert (await run)["embedded"] == 2 * STEP - 4
    assert {*vectors.stored["new"].values()} == {each.encode() for each in {*texts} - embedder.refuses}
    assert {*vectors.put_off_for.values()} == {REFUSED_SECONDS}


async def test_work_that_is_cancelled_ends_and_keeps_what_it_has_stored() -> None:
    vectors, clock = ListedVectors(map(str, range(STEP + 1))), ManualClock()
    reached = asyncio.Event()

    class Slow(CountingEmbedder):
        async def embed(self, texts: Any) -> list[bytes]:
            if self.batches:
                reached.set()
                await asyncio.Event().wait()
            return await super().embed(texts)

    run = asyncio.create_task(VectorWork(vectors, Slow(), clock).run())
    await reached.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert len(vectors.stored["new"]) == STEP


async def test_vectors_of_another_model_are_forgotten_once_each_passage_has_a_new_one() -> None:
    vectors, embedder, clock = ListedVectors(map(str, range(1_200))), CountingEmbedder(), ManualClock()
    await vectors.put("old", dict.fromkeys(vectors.passages, b"old"))
    work = VectorWork(vectors, embedder, clock)
    await work.run()
    assert len(vectors.stored["old"]) == 1_200
    await work.run()
    waiting = asyncio.create_task(work.run())
    await until(lambda: not vectors.stored["old"])
    assert await vectors.models() == {"new": 1_200}
    waiting.cancel()


def serving(vectors: ListedVectors, clock: ManualClock, *known: str) -> ServingModel:
    def find(model: str) -> CountingEmbedder | None:
        return CountingEmbedder(model) if model in known else None

    return ServingModel(vectors, CountingEmbedder("new"), find, clock)


async def test_the_old_model_serves_until_the_new_one_has_caught_up() -> None:
    vectors, clock = ListedVectors("abc"), ManualClock()
    await vectors.put("old", dict.fromkeys(vectors.passages, b""))
    model = serving(vectors, clock, "old")
    assert (await model.embedder()).model == "old"
    await vectors.put("new", {1: b"", 2: b""})
    clock.advance(1)
    old = await model.embedder()
    assert (old.model, await model.embedder() is old) == ("old", True)
    await vectors.put("new", {3: b""})
    assert (await model.embedder()).model == "old", "it is not asked for each query"
    clock.advance(1)
    assert (await model.embedder()).model == "new"
    await vectors.forget("new", 2)
    clock.advance(1)
    assert (await model.embedder()).model == "new", "nothing leads back"


async def test_a_model_that_cannot_be_had_any_more_does_not_serve() -> None:
    vectors, clock = ListedVectors("abc"), ManualClock()
    await vectors.put("gone", dict.fromkeys(vectors.passages, b""))
    await vectors.put("old", {1: b""})
    assert (await serving(vectors, clock).embedder()).model == "new"
    assert (await serving(vectors, clock, "old").embedder()).model == "old"


async def test_the_model_that_is_set_serves_when_there_are_no_vectors() -> None:
    assert (await serving(ListedVectors("abc"), ManualClock(), "old").embedder()).model == "new"
