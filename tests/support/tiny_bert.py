"""A BERT of two layers, with weights that a formula gives, in the file that a model is read from."""

from __future__ import annotations

import json
from pathlib import Path

import numpy

_HIDDEN, _WIDE, _PLACES = 64, 128, 16
VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##aff", "##able", "fast", ",", "東", "京", "a", "##b", "cafe")


def tiny_weights() -> dict[str, numpy.ndarray]:
    """The weights by name."""
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (len(VOCABULARY), _HIDDEN),
        "embeddings.position_embeddings.weight": (_PLACES, _HIDDEN),
        "embeddings.token_type_embeddings.weight": (2, _HIDDEN),
        "embeddings.LayerNorm.weight": (_HIDDEN,),
        "embeddings.LayerNorm.bias": (_HIDDEN,),
    }
    for layer in ("encoder.layer.0", "encoder.layer.1"):
        for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            shapes |= {f"{layer}.{name}.weight": (_HIDDEN, _HIDDEN), f"{layer}.{name}.bias": (_HIDDEN,)}
        shapes |= {f"{layer}.intermediate.dense.weight": (_WIDE, _HIDDEN), f"{layer}.intermediate.dense.bias": (_WIDE,)}
        shapes |= {f"{layer}.output.dense.weight": (_HIDDEN, _WIDE), f"{layer}.output.dense.bias": (_HIDDEN,)}
        for name in ("attention.output", "output"):
            shapes |= {f"{layer}.{name}.LayerNorm.weight": (_HIDDEN,), f"{layer}.{name}.LayerNorm.bias": (_HIDDEN,)}
    return {name: _numbers(number, shape) for number, (name, shape) in enumerate(shapes.items())}


def _numbers(seed: int, shape: tuple[int, ...]) -> numpy.ndarray:
    place = numpy.arange(numpy.prod(shape), dtype="f8")
    return (numpy.sin(place * place * 0.37 + seed) * 0.4).astype("<f4").reshape(shape)


def write_tiny_model(folder: Path) -> None:
    """Write the files of the model into a folder."""
    header, data = {}, b""
    for name, numbers in tiny_weights().items():
        start, data = len(data), data + numbers.tobytes()
        header[name] = {"dtype": "F32", "shape": numbers.shape, "data_offsets": (start, len(data))}
    header["position_ids"] = {"dtype": "I64", "shape": (1,), "data_offsets": (len(data), len(data) + 8)}
    encoded = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(len(encoded).to_bytes(8, "little") + encoded + data + bytes(8))
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", "utf-8")
