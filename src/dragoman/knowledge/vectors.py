"""Gives passages their vectors, which follow behind the changes, and says which model's are searched.

1. Passages are embedded a few at a time, of one tenant after the other, and of each in the order in which they were
   written. Each step is stored by itself, so an interruption costs no more than a step.
2. Vectors of another model are kept, and searched, until each passage has one of the model that is set now.
3. A model that fails is tried again, after waits that grow. A passage that it refuses is put off, so that the others do
   not wait for it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

from dragoman.clock import Clock, sleep
from dragoman.errors import ModelUnavailable, TextRefused
from dragoman.knowledge.embedding import Embedder, Embedders, GetEmbedder
from dragoman.knowledge.index import PassageVectors, WantedPassage
from dragoman.messaging.retries import Random, RetryPolicy, backoff_ms

JOB: Final = "knowledge.embed"
EVERY_SECONDS: Final = 2.0
"""Between runs, each of which waits for work."""
POLL_SECONDS: Final = 1.0
STEP: Final = 16
"""Passages that are embedded and stored together."""
_MOST_A_RUN = 1_000
_FORGOTTEN_AT_ONCE = 500
_WAITS = RetryPolicy(base_delay_ms=1_000, max_delay_ms=60_000)
_REMEMBERED_SECONDS = 1.0
_MOST_REFUSED = 4
REFUSED_SECONDS: Final = 3_600.0
"""Until a passage is tried again that its model has refused: the server may have been set up wrongly."""


class VectorWork:
    """Embeds what wants a vector. One process among those that share the storage should do it at a time."""

    def __init__(
        self, vectors: PassageVectors, embedder: Embedder, clock: Clock, random: Random = random.random
    ) -> None:
        self._vectors = vectors
        self._embedder = embedder
        self._clock = clock
        self._random = random
        self._failures = 0
        self._has_others = True

    async def run(self) -> dict[str, Any]:
        """Wait until passages want vectors, and embed many of them; a job, to be run again and again.

        Raises `ModelUnavailable` and `StorageError`; the next run waits before it tries again.
        """
        if self._failures:
            await sleep(self._clock, backoff_ms(_WAITS, self._failures - 1, self._random) / 1000)
        while not (embedded := await self._try()):
            await sleep(self._clock, POLL_SECONDS)
        while 0 < embedded < _MOST_A_RUN and (more := await self._try()):
            embedded += more
        return {"model": self._embedder.model, "embedded": embedded}

    async def _try(self) -> int:
        try:
            embedded = await self.step()
        except ModelUnavailable:
            self._failures += 1
            raise
        if embedded:
            self._failures = 0
        elif self._has_others:
            await self.forget_others()
        return embedded

    async def step(self) -> int:
        """Embed a few passages; how many those were. Raises `ModelUnavailable` and `StorageError`."""
        wanted = await self._vectors.wanted(self._embedder.model, STEP)
        if wanted:
            try:
                made = await self._embedder.embed([each.text for each in wanted])
            except TextRefused:
                return await self._embed_one_by_one(wanted)
            numbers = (each.number for each in wanted)
            await self._vectors.put(self._embedder.model, dict(zip(numbers, made, strict=True)))
        return len(wanted)

    async def _embed_one_by_one(self, wanted: Sequence[WantedPassage]) -> int:
        """How many could be embedded; those that are refused are put off. Raises `TextRefused` if the first few are.

        It may be that the server refuses everything, and is not to be asked for each passage there is.
        """
        made: dict[int, bytes] = {}
        refused: dict[int, TextRefused] = {}
        for each in wanted:
            try:
                (made[each.number],) = await self._embedder.embed([each.text])
            except TextRefused as error:
                refused[each.number] = error
            if not made and len(refused) >= _MOST_REFUSED:
                break
        await self._vectors.put(self._embedder.model, made)
        await self._vectors.put_off(self._embedder.model, [*refused], REFUSED_SECONDS)
        if not made:
            raise next(iter(refused.values()))
        return len(made)

    async def forget_others(self) -> None:
        """Remove the vectors of other models, once each passage has one of this model or was refused by it."""
        for model in await self._vectors.models():
            while model != self._embedder.model and await self._vectors.forget(model, _FORGOTTEN_AT_ONCE):
                pass
        self._has_others = False


class ServingModel:
    """The embedder whose vectors are searched now. `find` makes that of another model, if it can be had still."""

    def __init__(
        self, vectors: PassageVectors, embedder: Embedder, find: Callable[[str], Embedder | None], clock: Clock
    ) -> None:
        self._vectors = vectors
        self._embedder = embedder
        self._find = find
        self._clock = clock
        self._serving: Embedder | None = None
        self._until = 0.0

    async def embedder(self) -> Embedder:
        """The one of the model with the most vectors; once it is the one that is set, it stays that one.

        Raises `StorageError`.
        """
        if self._serving is not self._embedder and self._clock.monotonic() >= self._until:
            self._serving = await self._choose(self._serving)
            self._until = self._clock.monotonic() + _REMEMBERED_SECONDS
        assert self._serving is not None
        return self._serving

    async def _choose(self, before: Embedder | None) -> Embedder:
        counts = await self._vectors.models()
        own = counts.get(self._embedder.model, 0)
        for model, count in sorted(counts.items(), key=lambda each: -each[1]):
            if count <= own:
                break
            found = before if before is not None and before.model == model else self._find(model)
            if found is not None:
                return found
        return self._embedder


def embedder_of_queries(embedders: Embedders | None, vectors: PassageVectors, clock: Clock) -> GetEmbedder | None:
    """What embeds queries; None if the settings name no embedder. Raises `ConfigError`."""
    embedder = None if embedders is None else embedders.make()
    if embedders is None or embedder is None:
        return None
    return ServingModel(vectors, embedder, embedders.find, clock).embedder
