"""The ports to what makes vectors of texts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias


class Embedder(Protocol):
    """Makes vectors of texts: texts that mean the same have vectors that are alike."""

    @property
    def model(self) -> str:
        """Names the model and its dimensions: vectors are compared only with those of the same name."""
        ...

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """A vector for each text, as `PassageVectors` keeps them. Raises `ModelUnavailable`.

        That is `TextRefused` if it was because of one of the texts, as far as can be told.
        """
        ...


GetEmbedder: TypeAlias = Callable[[], Awaitable[Embedder]]
"""The embedder of the model whose vectors are to be searched now. Raises `StorageError`s."""


class Embedders(Protocol):
    """Makes embedders by the settings."""

    def make(self, *, is_patient: bool = False) -> Embedder | None:
        """The one that the settings name; None for none. Raises `ConfigError` for one that cannot be used here.

        One that `is_patient` leaves the machine to others.
        """
        ...

    def find(self, model: str) -> Embedder | None:
        """The one of a model that passages have vectors of, from before; None if it cannot be had any more."""
        ...
