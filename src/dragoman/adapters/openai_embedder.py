"""The `Embedder` that asks a server with OpenAI's API for vectors.

1. Texts are sent in batches, and each is cut off at `MOST_CHARACTERS`.
2. A batch is sent again if the server is busy, fails or cannot be reached, a few times.
3. If the server refuses a batch, each text is sent by itself, and a shorter beginning of a text that is refused: one
   text that is too long for the model must not keep others from being embedded.
4. Errors name the address and the status, and never the key, a text, or what the server said.
"""

from __future__ import annotations

import asyncio
import math
import random
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from dragoman.clock import Clock, sleep
from dragoman.errors import ModelUnavailable, TextRefused
from dragoman.messaging.retries import RetryPolicy, backoff_ms

if TYPE_CHECKING:
    import httpx2

PREFIX: Final = "openai/"
"""Of the names of models."""
MOST_TEXTS: Final = 16
"""Of one batch."""
MOST_CHARACTERS: Final = 8_000
_MOST_REPLY_BYTES = 8 << 20
_MOST_DIMENSIONS = 8_192
_RETRIES = RetryPolicy(max_attempts=3, base_delay_ms=500, max_delay_ms=5_000)
_TRANSIENT = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_REFUSALS = frozenset({400, 413, 422})
_SHORTEST_BEGINNING = 100
"""Characters. If less than twice as many are refused, it is not for their number."""


class _Embedding(Struct):
    index: int
    embedding: list[float]


class _Reply(Struct):
    data: list[_Embedding]


class _Busy(ModelUnavailable):
    """Worth another attempt."""


class OpenAiEmbedder:
    """Implements `Embedder`. `url` is that of the API, which ends with `/v1` in most places."""

    def __init__(self, url: str, name: str, key: str | None, clock: Clock, timeout: float = 30.0) -> None:
        """`timeout` is in seconds, for one batch."""
        self._url = f"{url.rstrip('/')}/embeddings"
        self._name = name
        self._headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self._clock = clock
        self._timeout = timeout
        self._verify: Any = None
        self._dimensions = 0
        """Of the first vector: all are alike, or the model behind the name has changed."""

    @property
    def model(self) -> str:
        """The name of the model; a server tells the dimensions with each vector."""
        return f"{PREFIX}{self._name}"

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        import httpx2  # Most servers never need it.

        # Without TLS there is no certificate to verify, and no proxy is on the way to this machine.
        is_local = self._url.startswith("http:")
        if self._verify is None:  # Loading the certificates of the authorities takes a while.
            self._verify = False if is_local else await asyncio.to_thread(httpx2.create_ssl_context)
        vectors: list[bytes] = []
        async with httpx2.AsyncClient(timeout=None, trust_env=not is_local, verify=self._verify) as client:
            for start in range(0, len(texts), MOST_TEXTS):
                # A server need not take an empty text.
                batch = [text[:MOST_CHARACTERS].strip() or "-" for text in texts[start : start + MOST_TEXTS]]
                vectors += await self._by_parts(client, batch)
        return vectors

    async def _by_parts(self, client: httpx2.AsyncClient, texts: Sequence[str]) -> list[bytes]:
        try:
            return await self._patiently(client, texts)
        except TextRefused:
            if len(texts) > 1:
                return [vector for text in texts for vector in await self._by_parts(client, [text])]
            if len(texts[0]) < 2 * _SHORTEST_BEGINNING:
                raise
        return await self._by_parts(client, [texts[0][: len(texts[0]) // 2]])

    async def _patiently(self, client: httpx2.AsyncClient, texts: Sequence[str]) -> list[bytes]:
        retries = 0
        while True:
            try:
                return await self._once(client, texts)
            except _Busy:
                if not _RETRIES.has_attempt_left(retries):
                    raise
            await sleep(self._clock, backoff_ms(_RETRIES, retries, random.random) / 1000)
            retries += 1

    async def _once(self, client: httpx2.AsyncClient, texts: Sequence[str]) -> list[bytes]:
        import httpx2

        asked = {"model": self._name, "input": texts, "encoding_format": "float"}
        try:
            async with asyncio.timeout(self._timeout):
                content = await self._post(client, msgspec.json.encode(asked))
        except TimeoutError:
            raise _Busy(f"{self._url} did not answer within {self._timeout:g} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise _Busy(f"{self._url} cannot be reached: {type(error).__name__}") from error
        try:
            found = sorted(msgspec.json.decode(content, type=_Reply).data, key=lambda each: each.index)
        except (msgspec.MsgspecError, ValueError):
            raise ModelUnavailable(f"{self._url} answered with something else than vectors") from None
        if [each.index for each in found] != list(range(len(texts))):
            raise ModelUnavailable(f"{self._url} answered with {len(found)} vectors for {len(texts)} texts")
        return list(map(self._unit, (each.embedding for each in found)))

    async def _post(self, client: httpx2.AsyncClient, body: bytes) -> bytes:
        # Not compressed: a small answer could unpack to a huge one.
        headers = {"content-type": "application/json", "accept-encoding": "identity", **self._headers}
        async with client.stream("POST", self._url, content=body, headers=headers) as response:
            if response.status_code != 200:
                said = f"{self._url} answered with status {response.status_code}"
                if response.status_code in _REFUSALS:
                    raise TextRefused(said)
                raise (_Busy if response.status_code in _TRANSIENT else ModelUnavailable)(said)
            content = bytearray()
            async for chunk in response.aiter_raw():
                content += chunk
                if len(content) > _MOST_REPLY_BYTES:
                    raise ModelUnavailable(f"{self._url} answered with more than {_MOST_REPLY_BYTES} bytes")
        return bytes(content)

    def _unit(self, numbers: list[float]) -> bytes:
        length = math.sqrt(sum(number * number for number in numbers))
        self._dimensions = self._dimensions or len(numbers)
        if len(numbers) != self._dimensions or len(numbers) > _MOST_DIMENSIONS:
            raise ModelUnavailable(f"{self._url} answered with a vector that cannot be used")
        if not 0 < length < math.inf:
            raise TextRefused(f"{self._url} answered with a vector that cannot be used")
        return struct.pack(f"<{len(numbers)}f", *(number / length for number in numbers))
