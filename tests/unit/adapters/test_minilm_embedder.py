"""The embedder in NumPy, on a small model; `tests/minilm` has the real one. The expected numbers are PyTorch's."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from importlib import import_module
from pathlib import Path

import numpy
import pytest

from dragoman.adapters import minilm_embedder
from dragoman.adapters.minilm_embedder import MiniLmEmbedder, use_one_core
from dragoman.adapters.minilm_model import MiniLm
from dragoman.adapters.safetensors import map_tensors
from dragoman.adapters.wordpiece import WordPiece
from dragoman.errors import ModelUnavailable
from tests.support.tiny_bert import VOCABULARY, tiny_weights, write_tiny_model

LONG = [-0.2746554, -0.1117659, 0.1476789, 0.1311595, -0.1103522, 0.135774, 0.0568224, -0.168708]
EMPTY = [-0.2689296, -0.1265054, 0.1315677, 0.1443915, -0.1104153, 0.135847, 0.0567242, -0.1679447]


@pytest.mark.parametrize(("tokens", "expected"), [([2, 4, 5, 6, 7, 8, 3], LONG), ([2, 3], EMPTY)])
def test_a_vector_is_that_of_the_reference(tokens: list[int], expected: list[float]) -> None:
    vector = MiniLm(tiny_weights()).embed(tokens)
    assert vector[:8] == pytest.approx(expected, abs=1e-6)
    assert float(numpy.linalg.norm(vector)) == pytest.approx(1)


async def test_texts_become_vectors_of_32_bit_numbers(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    for embedder in (MiniLmEmbedder(tmp_path), MiniLmEmbedder(tmp_path, is_patient=True)):
        long, empty = await embedder.embed(["UNAFFABLE fast,", ""])
        assert numpy.frombuffer(long, "<f4")[:8] == pytest.approx(LONG, abs=1e-6)
        assert numpy.frombuffer(empty, "<f4")[:8] == pytest.approx(EMPTY, abs=1e-6)


async def test_a_patient_embedder_works_on_one_thread_of_low_priority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny_model(tmp_path)
    seen: list[tuple[int, int]] = []

    class Watched(WordPiece):
        def encode(self, text: str, most: int) -> list[int]:
            thread = threading.get_native_id()
            seen.append((thread, os.getpriority(os.PRIO_PROCESS, thread)))
            return super().encode(text, most)

    monkeypatch.setattr("dragoman.adapters.wordpiece.WordPiece", Watched)
    usual = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    await MiniLmEmbedder(tmp_path, is_patient=True).embed(["a", "b", "c"])
    assert {priority for _, priority in seen} == {minilm_embedder.LOW_PRIORITY if sys.platform == "linux" else usual}
    assert len({thread for thread, _ in seen} | {threading.get_native_id()}) == 2
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == usual


async def test_the_blas_of_numpy_uses_no_threads_of_its_own_once_the_model_is_loaded(tmp_path: Path) -> None:
    if not use_one_core():
        return  # It is another one.
    library = ctypes.CDLL(import_module("numpy._core._multiarray_umath").__file__)
    library.scipy_openblas_set_num_threads64_(2)
    write_tiny_model(tmp_path)
    await MiniLmEmbedder(tmp_path).embed(["a"])
    assert library.scipy_openblas_get_num_threads64_() == 1


@pytest.mark.parametrize("damage", ["no files", "no vocabulary", "cut off", "no tensor", "no header"])
async def test_a_model_that_cannot_be_loaded_is_unavailable(tmp_path: Path, damage: str) -> None:
    if damage != "no files":
        write_tiny_model(tmp_path)
        file = tmp_path / "model.safetensors"
        content = file.read_bytes()
        if damage == "no vocabulary":
            (tmp_path / "vocab.txt").write_text("a\nb\n")
        elif damage == "cut off":
            file.write_bytes(content[:-400])
        elif damage == "no tensor":
            file.write_bytes(
                content.replace(b"encoder.layer.1.output.dense.bias", b"encoder.layer.1.output.dense.bios")
            )
        else:
            file.write_bytes(b"\xff" * 100)
    embedder = MiniLmEmbedder(tmp_path)
    with pytest.raises(ModelUnavailable, match="cannot be loaded"):
        await embedder.embed(["a"])
    write_tiny_model(tmp_path)
    assert len((await embedder.embed(["a"]))[0]) == 4 * 64


def test_tensors_are_read_by_name_and_those_of_other_kinds_left_out(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    found = map_tensors(tmp_path / "model.safetensors")
    assert found.keys() == tiny_weights().keys()
    assert all((found[name] == numbers).all() for name, numbers in tiny_weights().items())


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", []),
        ("unaffable", ["un", "##aff", "##able"]),
        ("UN,fast", ["un", ",", "fast"]),
        ("Café CAFE\u0301", ["cafe", "cafe"]),
        ("東京", ["東", "京"]),
        ("a\u200bb a\x00b a\ufffdb", ["a", "##b"] * 3),
        ("a\u00a0a\u3000a\ta", ["a"] * 4),
        ("unfast", ["[UNK]"]),
        ("a" + "b" * 99, ["a", *["##b"] * 99]),
        ("a" + "b" * 100, ["[UNK]"]),
        ("[SEP]", ["[UNK]"] * 3),
    ],
)
def test_a_text_is_cut_into_the_longest_pieces_that_the_vocabulary_has(text: str, pieces: list[str]) -> None:
    tokens = WordPiece(VOCABULARY).encode(text, 256)
    assert [VOCABULARY[each] for each in tokens] == ["[CLS]", *pieces, "[SEP]"]


def test_a_long_text_is_cut_off_and_still_ends_as_every_text() -> None:
    for text in ("fast " * 1_000_000, "x" * 1_000_000, "é" * 1_000_000):
        tokens = WordPiece(VOCABULARY).encode(text, 16)
        assert len(tokens) <= 16
        assert (tokens[0], tokens[-1]) == (2, 3)
