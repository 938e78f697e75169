"""A model behind an OpenAI-compatible API, played by a real server: what it is sent, and what it may do to us."""

from __future__ import annotations

import asyncio
import json

import pytest

from dragoman.adapters import chat_answers
from dragoman.adapters.chat_answers import ChatAnswers, make_writer
from dragoman.app import configure
from dragoman.errors import ConfigError, ModelUnavailable
from tests.support.model_server import event, serving_model, whole
from tests.support.waiting import until

MESSAGES = [{"role": "system", "content": "Rules"}, {"role": "user", "content": "{}"}]
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


async def written(url: str, told: list[int] | None = None, key: str | None = None) -> str:
    return await ChatAnswers(url, "scripted", key).write(MESSAGES, ([] if told is None else told).append)


async def test_a_streamed_answer_is_told_of_while_it_comes() -> None:
    async with serving_model() as model:
        model.gate.clear()
        told: list[int] = []
        task = asyncio.ensure_future(written(model.url, told))
        await until(lambda: told)
        assert told[-1] == len("Owls hunt ")
        model.gate.set()
        assert await task == "Owls hunt at night [1]."
        assert model.requests == [{"model": "scripted", "messages": MESSAGES, "stream": True}]
        (headers,) = model.headers
        assert headers["request"] == "POST /v1/chat/completions HTTP/1.1"
        assert "authorization" not in headers


async def test_the_key_comes_from_the_variable_that_the_settings_name() -> None:
    async with serving_model() as model:
        settings = configure({"knowledge": {**model.settings, "answers_key_variable": "MODEL_KEY"}}).knowledge
        writer = make_writer(settings, {"MODEL_KEY": "sesame"})
        assert writer is not None
        await writer.write(MESSAGES, lambda _: None)
        assert model.headers[0]["authorization"] == "Bearer sesame"
        for environ in ({}, {"MODEL_KEY": ""}, {"MODEL_KEY": "a\nb"}):
            with pytest.raises(ConfigError, match="MODEL_KEY is not set"):
                make_writer(settings, environ)
    assert make_writer(configure({}).knowledge, {}) is None


@pytest.mark.parametrize(
    ("url", "problem"),
    [("http://models.example/v1", "answers_url"), ("file:///etc", "answers_url"), ("https://", "answers_url")],
)
def test_the_address_is_https_or_on_this_machine(url: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=rf"knowledge\.{problem}"):
        configure({"knowledge": {"answers_url": url, "answers_model": "m"}})
    with pytest.raises(ConfigError, match=r"knowledge\.answers_model"):
        configure({"knowledge": {"answers_url": "https://models.example/v1"}})


async def test_an_answer_that_is_not_streamed_is_taken_whole() -> None:
    body = json.dumps({"choices": [{"message": {"role": "assistant", "content": "Night [1].\nDay [2]."}}]}, indent=1)
    async with serving_model(raw=whole("200 OK", body.encode())) as model:
        assert await written(model.url) == "Night [1].\nDay [2]."


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (whole("500 Internal Server Error", b"{}"), "status 500"),
        (whole("302 Found", b""), "status 302"),
        (whole("200 OK", b"no json"), "no completion"),
        (STREAM + b"data: {\n\n", "no completion"),
        (STREAM + b'data: {"choices": 1}\n\n', "no completion"),
        (STREAM + event("Night [1], but not"), "ended in the middle of an answer"),
        (b"SSH-2.0-OpenSSH\r\n", "cannot be asked: RemoteProtocolError"),
        (whole("200 OK", b"x" * 10).replace(b": 10", b": 99"), "cannot be asked: RemoteProtocolError"),
    ],
)
async def test_a_response_that_is_none_is_an_error_that_says_why(raw: bytes, reason: str) -> None:
    async with serving_model(raw=raw) as model:
        with pytest.raises(ModelUnavailable, match=reason):
            await written(model.url)


async def test_an_answer_ends_with_the_stream_or_with_the_reason_of_its_end() -> None:
    last = b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n'
    for end in (b"data: [DONE]\n\n", last):
        async with serving_model(raw=STREAM + event("Night [1].") + end) as model:
            assert await written(model.url) == "Night [1]."


async def test_an_endless_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving_model(raw=STREAM + event("word " * 1000) * 10) as model:
        with pytest.raises(ModelUnavailable, match="more than 32768 characters"):
            await written(model.url)
    monkeypatch.setattr(chat_answers, "MOST_BYTES", 10_000)
    for raw in (STREAM + b"x" * 10_001, STREAM + event("") * 1000):
        async with serving_model(raw=raw) as model:
            with pytest.raises(ModelUnavailable, match="more than 10000 bytes"):
                await written(model.url)


async def test_a_model_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_answers, "_TIMEOUT_SECONDS", 0.05)
    async with serving_model() as model:
        model.gate.clear()
        with pytest.raises(ModelUnavailable, match="did not finish"):
            await written(model.url)


async def test_a_model_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ModelUnavailable, match="cannot be asked: ConnectError"):
        await written("http://127.0.0.1:1/v1")
