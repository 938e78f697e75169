"""The `Embedder` that runs all-MiniLM-L6-v2 on this machine, in NumPy, on one core."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import threading
from collections.abc import Sequence
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import MsgspecError

from dragoman.calls.threads import Threads
from dragoman.errors import ModelUnavailable

if TYPE_CHECKING:
    from dragoman.adapters.minilm_model import MiniLm
    from dragoman.adapters.wordpiece import WordPiece

MODEL: Final = "all-MiniLM-L6-v2/384"
WEIGHTS: Final = "model.safetensors"
VOCABULARY: Final = "vocab.txt"
MOST_TOKENS: Final = 256
"""The model was made for no more; the rest of a text is left out."""
LOW_PRIORITY: Final = 10
"""As `nice` counts."""
_SETTERS = ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_", "openblas_set_num_threads")


class MiniLmEmbedder:
    """Implements `Embedder`, with the files in `folder`, which are loaded for the first text.

    Texts are embedded one after the other, on a thread: with low priority if `is_patient`, where threads have one.
    """

    model = MODEL

    def __init__(self, folder: Path, *, is_patient: bool = False) -> None:
        self._folder = folder
        self._is_patient = is_patient
        self._threads = Threads()
        self._turn = asyncio.Lock()

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        vectors: list[bytes] = []
        for text in texts:
            async with self._turn:  # A turn for each text: nobody waits for all of another's.
                vectors.append(await self._threads.run(partial(self._embed, text)))
        return vectors

    def _embed(self, text: str) -> bytes:
        if self._is_patient and sys.platform == "linux":  # Elsewhere it would be the priority of the whole process.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOW_PRIORITY)
        tokenizer, model = self._loaded
        return model.embed(tokenizer.encode(text, MOST_TOKENS)).astype("<f4").tobytes()

    @cached_property
    def _loaded(self) -> tuple[WordPiece, MiniLm]:
        try:
            from dragoman.adapters.minilm_model import MiniLm
            from dragoman.adapters.safetensors import map_tensors
            from dragoman.adapters.wordpiece import WordPiece

            use_one_core()
            words = (self._folder / VOCABULARY).read_text("utf-8").rstrip("\n").split("\n")
            return WordPiece(words), MiniLm(map_tensors(self._folder / WEIGHTS))
        except (ImportError, OSError, ValueError, KeyError, MsgspecError) as error:
            raise ModelUnavailable(f"the model in {self._folder} cannot be loaded: {error!r}") from error


def use_one_core() -> bool:
    """Let the OpenBLAS that NumPy brings use no threads of its own, in this process; False if NumPy has another BLAS.

    A variable of the environment would do the same, if it were set before somebody's tool imports NumPy.
    """
    library = ctypes.CDLL(import_module("numpy._core._multiarray_umath").__file__)
    for name in _SETTERS:
        setter = getattr(library, name, None)
        if setter is not None:
            setter(1)
            return True
    return False
