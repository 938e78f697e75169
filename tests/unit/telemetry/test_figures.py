"""Figures of parts with several labels, and histograms: read, added up over processes, bounded, and worded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from prometheus_client.core import Metric

from dragoman.telemetry.figures import MOST_SERIES, OTHER, Figure, Gauge, LabelValues, Rows, added_up, read_figure

LABELS = ("action", "tenant", "principal")
FOLDS = ("principal", "tenant")
BOUNDS = (1.0, 2.5)


def told(gauge: Gauge) -> Figure:
    """What another process hears of a gauge."""
    figure = read_figure(gauge)
    assert figure is not None
    return msgspec.json.decode(msgspec.json.encode(figure), type=Figure)


def shown(family: Metric) -> list[tuple[str, Mapping[str, str], float]]:
    return [(sample.name, sample.labels, sample.value) for sample in family.samples]


def counted(*labels: LabelValues) -> Figure:
    rows = Rows(LABELS, FOLDS)
    for each in labels:
        rows.count(each)
    return told(
        Gauge(
            "asked",
            "",
            lambda: {key: row[0] for key, row in rows.rows.items()},
            label=LABELS,
            folds=FOLDS,
            is_counter=True,
        )
    )


def test_counts_with_several_labels_are_added_up_over_processes() -> None:
    first, second = counted(("a", "acme", "ann")), counted(("a", "acme", "ann"), ("b", "acme", "bob"))
    family = added_up([first, second]).family("asked")
    assert shown(family) == [
        ("asked_total", {"action": "a", "tenant": "acme", "principal": "ann"}, 2),
        ("asked_total", {"action": "b", "tenant": "acme", "principal": "bob"}, 1),
    ]


def test_a_histogram_is_added_up_bucket_by_bucket_and_shown_cumulatively() -> None:
    rows = Rows(("action",), bounds=BOUNDS)
    for value in (0.5, 1.0, 2.0, 100.0):
        rows.observe(("a",), value)
    figure = told(Gauge("took", "", lambda: rows.rows, label=("action",), bounds=BOUNDS))
    assert shown(added_up([figure, figure]).family("took")) == [
        ("took_bucket", {"action": "a", "le": "1.0"}, 4),
        ("took_bucket", {"action": "a", "le": "2.5"}, 6),
        ("took_bucket", {"action": "a", "le": "+Inf"}, 8),
        ("took_count", {"action": "a"}, 8),
        ("took_sum", {"action": "a"}, 207.0),
    ]


def test_beyond_the_most_series_the_labels_with_many_values_become_other_one_after_the_other() -> None:
    flood = [("a", "acme", f"p{number}") for number in range(5 * MOST_SERIES)]
    flood += [("a", f"t{number}", f"p{number}") for number in range(5 * MOST_SERIES)]
    for figure in (counted(*flood), added_up([counted(*flood), counted(*reversed(flood))])):
        assert len(figure.rows) <= MOST_SERIES
        assert {labels[0] for labels, _ in figure.rows} == {"a"}
        rows = dict(figure.rows)
        assert ("a", "acme", OTHER) in rows
        assert ("a", OTHER, OTHER) in rows
    assert sum(row[0] for _, row in figure.rows) == 20 * MOST_SERIES


def test_series_that_were_there_before_the_flood_are_still_counted_on_their_own() -> None:
    flood = [("a", "acme", f"p{number}") for number in range(2 * MOST_SERIES)]
    figure = counted(("a", "acme", "ann"), *flood, ("a", "acme", "ann"), ("b", "acme", "ann"))
    rows = dict(figure.rows)
    assert rows["a", "acme", "ann"] == [2]
    assert rows["b", "acme", OTHER] == [1]


def test_not_even_labels_that_are_not_folded_exceed_the_most_series() -> None:
    figure = counted(*((f"a{number}", "", "") for number in range(3 * MOST_SERIES)))
    rows = dict(figure.rows)
    assert len(rows) == MOST_SERIES
    assert rows[OTHER, OTHER, OTHER][0] > 0


@pytest.mark.parametrize(
    "read",
    [
        lambda: {("a",): 1.0},
        lambda: {("a", "b"): 1.0},
        lambda: {("a",): [1.0, 2.0]},
        lambda: {("a",): [1.0, 2.0, float("nan"), 4.0]},
        lambda: 1.0,
    ],
)
def test_a_histogram_that_shows_something_else_is_left_out(read: Any) -> None:
    figure = read_figure(Gauge("took", "", read, label=("action",), bounds=BOUNDS))
    assert figure is None
