"""The real all-MiniLM-L6-v2, as `make test-minilm` installs it: tokens and vectors are those of the reference.

`reference.json` was made with `tokenizers` and PyTorch, in 32-bit numbers, of the same files. The first text has its
whole vector, and others the first eight numbers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest

from dragoman.adapters.minilm_embedder import MODEL, MOST_TOKENS, MiniLmEmbedder
from dragoman.adapters.model_files import MINILM
from dragoman.adapters.wordpiece import WordPiece

pytestmark = pytest.mark.slow
DATA = Path(sys.prefix) / "minilm"
REFERENCE: list[dict[str, Any]] = json.loads(Path(__file__).with_name("reference.json").read_text("utf-8"))
REPEATED = "word " * 400


@pytest.fixture(scope="module")
def folder() -> Path:
    if not MINILM.is_installed(DATA):
        pytest.skip("MiniLM is not installed: make test-minilm")
    return MINILM.place(DATA)


@pytest.mark.parametrize("expected", REFERENCE, ids=range(len(REFERENCE)))
def test_a_text_has_the_tokens_of_the_reference(folder: Path, expected: dict[str, Any]) -> None:
    words = (folder / "vocab.txt").read_text("utf-8").rstrip("\n").split("\n")
    tokens = WordPiece(words).encode(expected["text"], MOST_TOKENS)
    if expected["text"] == REPEATED:  # Cut off: not all of them are in the file.
        tokens = [*tokens[:2], len(tokens)]
    assert tokens == expected["tokens"]


async def test_texts_have_the_vectors_of_the_reference(folder: Path) -> None:
    embedder = MiniLmEmbedder(folder)
    for expected, made in zip(REFERENCE, await embedder.embed([each["text"] for each in REFERENCE]), strict=True):
        vector = numpy.frombuffer(made, "<f4")
        assert (embedder.model, len(vector)) == (MODEL, 384)
        assert vector[: len(expected["vector"])] == pytest.approx(expected["vector"], abs=2e-6), expected["text"]


async def test_texts_that_mean_the_same_are_nearer_than_texts_with_the_same_words(folder: Path) -> None:
    texts = ["How can I handle an error?", "Catching exceptions in Python", "How can I handle a horse?"]
    asked, same, other = (numpy.frombuffer(each, "<f4") for each in await MiniLmEmbedder(folder).embed(texts))
    assert asked @ same > asked @ other
