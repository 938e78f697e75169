"""The port to what makes vectors of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Embedder(Protocol):
    """Makes vectors of texts: texts that mean the same have vectors that are alike."""

    @property
    def model(self) -> str:
        """Names the model and its dimensions: vectors are compared only with those of the same name."""
        ...

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """A vector for each text, as `PassageVectors` keeps them. Raises `ModelUnavailable`."""
        ...
