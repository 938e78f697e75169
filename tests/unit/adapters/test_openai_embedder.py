"""Vectors from a server with OpenAI's API: a real one on this machine, which does as it is told."""

from __future__ import annotations

import asyncio
import json
import struct
import threading
from collections.abc import Callable

import pytest

from dragoman.adapters.openai_embedder import MOST_CHARACTERS, MOST_TEXTS, OpenAiEmbedder
from dragoman.errors import ModelUnavailable, TextRefused
from dragoman.testing import ManualClock
from tests.support.scripted_http import Answer, Asked, Said, scripted_server
from tests.support.waiting import PATIENCE


def reply(vectors: list[list[float]]) -> Said:
    """Vectors as the API gives them; in another order, because `index` counts."""
    data = [{"object": "embedding", "index": place, "embedding": each} for place, each in enumerate(vectors)]
    return Said(body=json.dumps({"object": "list", "data": data[::-1], "usage": {}}).encode())


def lengths(asked: Asked) -> Said:
    """A vector for each text: its length, and 3."""
    return reply([[float(len(text)), 3.0] for text in json.loads(asked.body)["input"]])


def unit(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


async def embed_with(
    answer: Answer,
    texts: list[str],
    key: str | None = None,
    timeout: float = PATIENCE,
    clock: ManualClock | None = None,
) -> list[bytes]:
    with scripted_server(answer) as url:
        return await OpenAiEmbedder(f"{url}/v1/", "small", key, clock or ManualClock(), timeout).embed(texts)


async def test_texts_are_sent_with_the_key_and_vectors_come_back_at_unit_length() -> None:
    seen: list[Asked] = []
    vectors = await embed_with(lambda asked: seen.append(asked) or lengths(asked), ["four", ""], "the key")  # type: ignore[func-returns-value]
    assert vectors == [unit(0.8, 0.6), unit(1 / 10**0.5, 3 / 10**0.5)]
    (asked,) = seen
    assert (asked.path, asked.headers["authorization"]) == ("/v1/embeddings", "Bearer the key")
    assert json.loads(asked.body) == {"model": "small", "input": ["four", "-"], "encoding_format": "float"}


async def test_many_and_long_texts_are_sent_in_batches_and_cut_off() -> None:
    batches: list[list[int]] = []

    def answer(asked: Asked) -> Said:
        batches.append([len(text) for text in json.loads(asked.body)["input"]])
        return lengths(asked)

    texts = ["x" * (MOST_CHARACTERS + 1)] + ["y"] * MOST_TEXTS
    assert len(await embed_with(answer, texts)) == len(texts)
    assert batches == [[MOST_CHARACTERS] + [1] * (MOST_TEXTS - 1), [1]]


async def let_time_pass(clock: ManualClock, asking: asyncio.Task[list[bytes]]) -> None:
    """Return when the task has ended, however often it waits."""
    while not asking.done():
        clock.advance(1)
        await asyncio.sleep(0.002)


@pytest.mark.parametrize("failures", [1, 2])
async def test_a_busy_server_is_asked_again_after_a_while(failures: int) -> None:
    clock, count = ManualClock(), 0

    def answer(asked: Asked) -> Said:
        nonlocal count
        count += 1
        return Said(503) if count <= failures else lengths(asked)

    asking = asyncio.create_task(embed_with(answer, ["four"], clock=clock))
    await let_time_pass(clock, asking)
    assert await asking == [unit(0.8, 0.6)]
    assert count == failures + 1


async def test_a_server_that_stays_busy_is_left_alone() -> None:
    clock, count = ManualClock(), 0

    def answer(asked: Asked) -> Said:
        nonlocal count
        count += 1
        return Said(429)

    asking = asyncio.create_task(embed_with(answer, ["four"], clock=clock))
    await let_time_pass(clock, asking)
    with pytest.raises(ModelUnavailable, match="answered with status 429"):
        await asking
    assert count == 3


async def test_a_text_that_is_refused_keeps_no_other_from_being_embedded() -> None:
    sent: list[list[int]] = []

    def answer(asked: Asked) -> Said:
        sent.append([len(text) for text in json.loads(asked.body)["input"]])
        return Said(400) if max(sent[-1]) > 500 else lengths(asked)

    assert (await embed_with(answer, ["four", "x" * 1_600, "four"]))[::2] == [unit(0.8, 0.6)] * 2
    assert sent == [[4, 1_600, 4], [4], [1_600], [800], [400], [4]]


async def test_a_server_that_refuses_everything_is_not_asked_for_each_text() -> None:
    sent: list[Asked] = []

    def answer(asked: Asked) -> Said:
        sent.append(asked)
        return Said(422)

    with pytest.raises(TextRefused, match="status 422"):
        await embed_with(answer, ["x" * 1_600] * MOST_TEXTS)
    assert len(sent) == 6


def huge(asked: Asked) -> Said:
    return Said(body=b'{"data": [' + b" " * (9 << 20))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda _: Said(401), "status 401"),
        (lambda _: Said(302, headers={"location": "http://127.0.0.1:1/"}), "status 302"),
        (lambda _: Said(body=b"no"), "something else than vectors"),
        (lambda _: Said(body=b'{"data": 1}'), "something else than vectors"),
        (lambda _: reply([]), "0 vectors for 1 texts"),
        (lambda _: reply([[1.0], [2.0]]), "2 vectors for 1 texts"),
        (lambda _: reply([[0.0, 0.0]]), "a vector that cannot be used"),
        (lambda _: reply([[]]), "a vector that cannot be used"),
        (lambda _: reply([[1e200, 1e200]]), "a vector that cannot be used"),
        (lambda _: reply([[1.0] * 9_000]), "a vector that cannot be used"),
        (huge, "more than 8388608 bytes"),
    ],
)
async def test_an_answer_that_cannot_be_used_is_an_error_without_key_text_or_answer(
    answer: Callable[[Asked], Said], reason: str
) -> None:
    with pytest.raises(ModelUnavailable, match=reason) as raised:
        await embed_with(answer, ["a secret text"], "the key")
    assert "secret" not in str(raised.value)
    assert "the key" not in str(raised.value)


async def test_a_text_without_a_vector_of_any_length_is_the_only_one_that_is_refused() -> None:
    with scripted_server(lambda asked: reply([[0.0, 0.0]] if b"bad" in asked.body else [[1.0, 0.0]])) as url:
        embedder = OpenAiEmbedder(url, "small", None, ManualClock())
        with pytest.raises(TextRefused):
            await embedder.embed(["bad"])
        assert await embedder.embed(["good"]) == [unit(1.0, 0.0)]


async def test_vectors_of_another_length_than_before_are_refused() -> None:
    vectors = iter([[1.0, 0.0], [1.0, 0.0, 0.0]])
    with scripted_server(lambda _: reply([next(vectors)])) as url:
        embedder = OpenAiEmbedder(url, "small", None, ManualClock())
        assert await embedder.embed(["a"]) == [unit(1.0, 0.0)]
        with pytest.raises(ModelUnavailable, match="a vector that cannot be used"):
            await embedder.embed(["a"])
    assert embedder.model == "openai/small"


async def test_a_server_that_does_not_answer_is_not_waited_for() -> None:
    clock, let_go = ManualClock(), threading.Event()

    def answer(asked: Asked) -> Said:
        let_go.wait(PATIENCE)
        return lengths(asked)

    asking = asyncio.create_task(embed_with(answer, ["a"], timeout=0.05, clock=clock))
    await let_time_pass(clock, asking)
    let_go.set()
    with pytest.raises(ModelUnavailable, match=r"did not answer within 0\.05 s"):
        await asking


async def test_a_server_that_is_not_there_is_an_error() -> None:
    clock = ManualClock()
    asking = asyncio.create_task(OpenAiEmbedder("http://127.0.0.1:1/v1", "small", None, clock).embed(["a"]))
    await let_time_pass(clock, asking)
    with pytest.raises(ModelUnavailable, match="cannot be reached: ConnectError"):
        await asking
