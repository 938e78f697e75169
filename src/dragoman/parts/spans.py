"""The part that makes an OpenTelemetry span of each call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragoman.calls.stages.open_span import OpenSpan
from dragoman.parts.part import Contribution, Facilities, Part

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer


def spans_part(tracer: Tracer) -> Part:
    """A stage that opens a span, and an observer that ends it."""

    def build(given: Facilities) -> Contribution:
        spans = OpenSpan(tracer, given.catalogue)
        return Contribution(around=(spans,), observers=(spans.close,))

    return Part(name="spans", build=build)
