"""Whatever calls there are, their metrics add up, can be read back, and say the truth about how long they took."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families as parse

from dragoman.cache.bounded import BoundedCache
from dragoman.calls.call import Completion
from dragoman.cli.scrape import quantile
from dragoman.telemetry.figures import OTHER
from dragoman.telemetry.log import CompletionRecord
from dragoman.telemetry.metrics import BOUNDS_MS, Levels, Metrics

LEVELS = Levels(
    in_flight=0, slots=1, slots_in_use=0, lag_seconds=0, memory_bytes=1, sessions=0, cache=BoundedCache[Any]().stats()
)
names = st.text(max_size=20)
durations = st.floats(0, 1_200_000)


class Ended(Struct):
    is_found: bool
    ran: bool = True


def samples(metrics: Metrics, name: str) -> dict[tuple[str, ...], float]:
    return {
        tuple(sample.labels[label] for label in sorted(sample.labels)): sample.value
        for family in parse(metrics.snapshot().page()[0].decode())
        for sample in family.samples
        if sample.name == name
    }


@pytest.mark.slow
@given(st.lists(st.tuples(names, st.booleans(), st.sampled_from(Completion), durations), max_size=60))
def test_every_call_is_counted_once_under_its_tool_or_as_one_of_no_tool(
    calls: list[tuple[str, bool, Completion, float]],
) -> None:
    tools = {name for name, is_tool, _, _ in calls if is_tool}
    metrics = Metrics(lambda name: name if name in tools else None, lambda: LEVELS)
    wanted: Counter[tuple[str, str]] = Counter()
    for name, _, outcome, duration in calls:
        record = CompletionRecord("", "info", "", "", "", name, duration, outcome.value, 1)
        metrics.observe(record, Ended(name in tools))
        wanted[outcome.value, name if name in tools else OTHER] += 1
    assert samples(metrics, "dragoman_calls_total") == wanted
    assert samples(metrics, "dragoman_request_bytes_total") == {(): len(calls)}
    by_tool = Counter(name if name in tools else OTHER for name, *_ in calls)
    assert samples(metrics, "dragoman_call_duration_seconds_count") == {(name,): n for name, n in by_tool.items()}


@given(st.lists(durations, min_size=1, max_size=200), st.floats(0.01, 1))
def test_a_quantile_is_in_the_bucket_of_the_call_that_it_stands_for(taken: list[float], share: float) -> None:
    metrics = Metrics(lambda name: name, lambda: LEVELS)
    for duration in taken:
        metrics.observe(CompletionRecord("", "info", "", "", "", "add", duration, "success", 1), Ended(True))
    buckets = {bound: count for (bound, _), count in samples(metrics, "dragoman_call_duration_seconds_bucket").items()}
    estimated = quantile(share, buckets)
    actual = sorted(taken)[ceil(share * len(taken)) - 1]
    assert estimated is not None
    bucket = bisect_left(BOUNDS_MS, actual)
    lower = BOUNDS_MS[bucket - 1] if bucket else 0.0
    upper = BOUNDS_MS[min(bucket, len(BOUNDS_MS) - 1)]
    assert lower * 0.999 <= estimated <= upper * 1.001
