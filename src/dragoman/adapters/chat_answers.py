"""A model behind an OpenAI-compatible API that writes answers: `POST /chat/completions`, streamed."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from dragoman.errors import ConfigError, ModelUnavailable
from dragoman.knowledge.answering import Tell

if TYPE_CHECKING:
    import httpx2

    from dragoman.knowledge.settings import KnowledgeConfig

MOST_BYTES: Final = 4 * 1_048_576
"""Of a whole response. A stream has a few hundred bytes for each word."""
MOST_CHARACTERS: Final = 32_768
"""Of an answer."""
_TIMEOUT_SECONDS: Final = 60.0
_PREFIX: Final = b"data:"


class _Text(Struct):
    content: str | None = None


class _Choice(Struct):
    delta: _Text | None = None
    message: _Text | None = None
    finish_reason: str | None = None


class _Completion(Struct):
    """A whole completion, or a piece of one."""

    choices: list[_Choice] = []


_decoder = msgspec.json.Decoder(_Completion)


def make_writer(settings: KnowledgeConfig, environ: Mapping[str, str]) -> ChatAnswers | None:
    """The model that the settings name; None if they name none. Raises `ConfigError` if there is no key for it."""
    if settings.answers_url is None or settings.answers_model is None:
        return None
    key, variable = None, settings.answers_key_variable
    if variable is not None:
        key = environ.get(variable)
        if not key or not key.isascii() or not key.isprintable():
            said = f"the environment variable {variable} is not set, or holds no key"
            raise ConfigError([("knowledge.answers_key_variable", said)])
    return ChatAnswers(settings.answers_url, settings.answers_model, key)


class ChatAnswers:
    """Implements `AnswerWriter`. Nothing is followed elsewhere, and the key is sent to this address alone."""

    def __init__(self, url: str, model: str, key: str | None = None) -> None:
        """`url` is https, or on this machine; the settings see to that."""
        self._url = f"{url.rstrip('/')}/chat/completions"
        self._model = model
        self._key = key
        self._verify: ssl.SSLContext | bool | None = None

    async def write(self, messages: Sequence[dict[str, str]], tell: Tell) -> str:
        """See `AnswerWriter`."""
        # On a thread: what is loaded for the first answer would keep the event loop from other calls.
        client = await asyncio.to_thread(self._open)
        import httpx2

        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS), client:
                return await self._write(client, messages, tell)
        except TimeoutError:
            raise ModelUnavailable(f"{self._url} did not finish within {_TIMEOUT_SECONDS:g} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise ModelUnavailable(f"{self._url} cannot be asked: {type(error).__name__}") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ModelUnavailable(f"{self._url} gave no completion") from error

    def _open(self) -> httpx2.AsyncClient:
        import httpx2  # Most servers never need it.

        is_local = self._url.startswith("http:")  # Without TLS there is no certificate, and no proxy on the way.
        if self._verify is None:
            self._verify = False if is_local else ssl.create_default_context()
        return httpx2.AsyncClient(timeout=None, trust_env=not is_local, verify=self._verify)

    async def _write(self, client: httpx2.AsyncClient, messages: Sequence[dict[str, str]], tell: Tell) -> str:
        # Not compressed: a small answer could unpack to a huge one.
        headers = {"accept": "text/event-stream, application/json", "accept-encoding": "identity"}
        headers["content-type"] = "application/json"
        if self._key is not None:
            headers["authorization"] = f"Bearer {self._key}"
        body = msgspec.json.encode({"model": self._model, "messages": messages, "stream": True})
        async with client.stream("POST", self._url, headers=headers, content=body) as response:
            if response.status_code != 200:
                raise ModelUnavailable(f"{self._url} answered with status {response.status_code}")
            text = ""
            async for piece in _pieces(response):
                text += piece
                if len(text) > MOST_CHARACTERS:
                    raise ModelUnavailable(f"{self._url} wrote more than {MOST_CHARACTERS} characters")
                tell(len(text))
            return text


async def _pieces(response: httpx2.Response) -> AsyncIterator[str]:
    """The text of a completion as it comes; all at once from a server that does not stream."""
    if response.headers.get("content-type", "").startswith("application/json"):
        for choice in _choices_in(b"".join([line async for line in _lines(response)])):
            yield _text_of(choice)
        return
    is_finished = False
    async for line in _lines(response):
        data = line.removeprefix(_PREFIX).strip() if line.startswith(_PREFIX) else b""
        if data == b"[DONE]":
            return
        for choice in _choices_in(data) if data else ():
            is_finished = is_finished or choice.finish_reason is not None
            yield _text_of(choice)
    if not is_finished:  # A connection that breaks looks like the end of a body without a length.
        raise ModelUnavailable(f"{response.url} ended in the middle of an answer")


def _choices_in(data: bytes) -> list[_Choice]:
    return _decoder.decode(data).choices[:1]


def _text_of(choice: _Choice) -> str:
    texts = (part.content for part in (choice.delta, choice.message) if part is not None and part.content)
    return next(texts, "")


async def _lines(response: httpx2.Response) -> AsyncIterator[bytes]:
    """The lines of a body. Raises `ModelUnavailable` for one that is too large."""
    rest, count = b"", 0
    async for chunk in response.aiter_raw():
        count += len(chunk)
        if count > MOST_BYTES:
            raise ModelUnavailable(f"{response.url} sent more than {MOST_BYTES} bytes")
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
    yield rest
