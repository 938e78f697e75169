"""Where the time of one call goes: a second pipeline, the same stages with a look at the clock before each of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec import Struct

from dragoman.calls.call import Call, Service, Stage


class Span(Struct, frozen=True, rename="camel"):
    """How long a call was in one stage on its way in, in its handler, or on its way out."""

    name: str
    microseconds: float


def build_traced(stages: Sequence[Stage], service: Service, monotonic: Callable[[], float]) -> Service:
    """As `pipeline.compose`; calls need a `trace` to write to."""

    traced = _marked("handler", service, monotonic)
    for stage in reversed(stages):
        traced = _marked(name_of(stage), stage(traced), monotonic)

    def begin(call: Call) -> Awaitable[Any]:
        call.undo.append(end)  # The first to be added is the last to be called, when all else has been given back.
        return traced(call)

    def end(call: Call) -> None:
        _marks_of(call).append(("answer", monotonic()))

    return begin


def name_of(stage: Stage) -> str:
    """The name that a trace shows: the function's own, or the class's."""
    name: str = getattr(stage, "__name__", type(stage).__name__)
    return name


def _marked(name: str, service: Service, monotonic: Callable[[], float]) -> Service:
    def mark(call: Call) -> Awaitable[Any]:
        _marks_of(call).append((name, monotonic()))
        return service(call)

    return mark


def _marks_of(call: Call) -> list[tuple[str, float]]:
    assert call.trace is not None, "the call is not traced"
    return call.trace


def spans(call: Call, ended: float) -> list[Span]:
    """The time between the marks of a traced call, and from the last one to the end."""
    marks = _marks_of(call)
    ends = [moment for _, moment in marks[1:]] + [ended]
    return [Span(name, round((end - begun) * 1e6, 1)) for (name, begun), end in zip(marks, ends, strict=True)]
