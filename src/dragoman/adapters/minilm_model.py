"""The model all-MiniLM-L6-v2 in NumPy: a BERT encoder, the mean of its last states, and unit length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers: TypeAlias = NDArray[numpy.float32]

_HEAD = 32
"""The dimensions of one head of attention."""
_EPSILON = 1e-12
_ROWS = 64
"""So many rows of the widest state fit into a core's cache."""


class MiniLm:
    """The forward pass over weights that are read as they are needed. Any number of threads may use one model."""

    def __init__(self, weights: Mapping[str, Numbers]) -> None:
        """Raises `KeyError` if a tensor is missing."""
        self._words = weights["embeddings.word_embeddings.weight"]
        self._places = weights["embeddings.position_embeddings.weight"]
        self._kind = weights["embeddings.token_type_embeddings.weight"][0]
        self._norm = _Norm(weights, "embeddings")
        count = len({name.split(".")[2] for name in weights if name.startswith("encoder.layer.")})
        self._layers = [_Layer(weights, f"encoder.layer.{number}") for number in range(count)]

    def embed(self, tokens: Sequence[int]) -> Numbers:
        """The vector of a text. There may be as many tokens as the model knows places."""
        states = self._norm(self._words[list(tokens)] + self._places[: len(tokens)] + self._kind)
        for layer in self._layers:
            states = layer(states)
        mean = states.mean(axis=0)
        vector: Numbers = mean / max(float(numpy.linalg.norm(mean)), _EPSILON)
        return vector


class _Layer:
    def __init__(self, weights: Mapping[str, Numbers], name: str) -> None:
        self._query, self._key, self._value = (
            _Linear(weights, f"{name}.attention.self.{each}") for each in ("query", "key", "value")
        )
        self._attended = _Linear(weights, f"{name}.attention.output.dense")
        self._attended_norm = _Norm(weights, f"{name}.attention.output")
        self._wide = _Linear(weights, f"{name}.intermediate.dense")
        self._narrow = _Linear(weights, f"{name}.output.dense")
        self._norm = _Norm(weights, f"{name}.output")

    def __call__(self, states: Numbers) -> Numbers:
        query, key, value = (_heads(each(states)) for each in (self._query, self._key, self._value))
        scores: Numbers = query @ key.transpose(0, 2, 1)
        scores *= _HEAD**-0.5
        scores -= scores.max(axis=-1, keepdims=True)
        numpy.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        seen = (scores @ value).transpose(1, 0, 2).reshape(states.shape)
        states = self._attended_norm(self._attended(seen) + states)
        wide = self._wide(states)
        for start in range(0, len(wide), _ROWS):
            _gelu(wide[start : start + _ROWS])
        return self._norm(self._narrow(wide) + states)


def _heads(states: Numbers) -> Numbers:
    return states.reshape(len(states), -1, _HEAD).transpose(1, 0, 2)


class _Linear:
    def __init__(self, weights: Mapping[str, Numbers], name: str) -> None:
        self._weight, self._bias = weights[f"{name}.weight"].T, weights[f"{name}.bias"]

    def __call__(self, states: Numbers) -> Numbers:
        made: Numbers = states @ self._weight
        made += self._bias
        return made


class _Norm:
    def __init__(self, weights: Mapping[str, Numbers], name: str) -> None:
        self._weight, self._bias = weights[f"{name}.LayerNorm.weight"], weights[f"{name}.LayerNorm.bias"]

    def __call__(self, states: Numbers) -> Numbers:
        states -= states.mean(axis=-1, keepdims=True)
        variance = numpy.square(states).mean(axis=-1, keepdims=True)
        states /= numpy.sqrt(variance + _EPSILON)
        states *= self._weight
        states += self._bias
        return states


_SCALE = 0.5**0.5
_P = 0.3275911
_TERMS = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)


def _gelu(states: Numbers) -> None:
    """GELU in place, with the error function by Abramowitz and Stegun, 7.1.26, which is exact to 1.5e-7."""
    distance = numpy.abs(states)
    distance *= _SCALE
    share = 1 / (1 + _P * distance)
    tail = numpy.full_like(share, _TERMS[0])
    for term in _TERMS[1:]:
        tail *= share
        tail += term
    tail *= share
    distance *= distance
    numpy.negative(distance, out=distance)
    tail *= numpy.exp(distance, out=distance)
    # tail is 1 - erf(|x| / sqrt 2): half of it is the chance beyond |x|.
    tail *= 0.5
    states *= numpy.where(states < 0, tail, 1 - tail)
