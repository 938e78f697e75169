"""Figures of parts: what a part shows as a metric, how processes add it up, and how Prometheus is told.

1. A figure is rows of numbers by the values of its labels. A count and a level have one number, a histogram one for
   each bucket and then the sum; so all of them are added up in the same way.
2. The number of rows is bounded. Labels that a figure folds become `other` in rows beyond the most that are shown,
   one label after the other: what the rest of the labels say stays true.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from math import isfinite
from operator import add
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

if TYPE_CHECKING:
    from prometheus_client import Metric

LabelValues: TypeAlias = tuple[str, ...]

OTHER = "other"
MOST_VALUES = 201
"""Of a figure with one label."""
MOST_SERIES = 1_000
"""Of a figure with several labels: sets of their values."""
_ROOM = (700, 900)
"""From how many rows on the first label is folded in new ones, and from how many the second one too."""

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


class Gauge(Struct, frozen=True):
    """A figure of a part, read when somebody asks for the metrics."""

    name: str
    about: str
    read: Callable[[], float | Mapping[str, float] | Mapping[LabelValues, float | Sequence[float]]]
    """Returns a number; numbers by the value of `label`; or, if there are several labels, by tuples of their values.

    The numbers of a histogram are sequences: how many are in each bucket, from the lowest on, and the sum of all.
    """
    is_counter: bool = False
    """Whether it only ever grows. Its name is then shown with `_total` at the end."""
    label: str | tuple[str, ...] | None = None
    """The names of the labels. `MOST_VALUES` figures with one label are shown, `MOST_SERIES` with several."""
    bounds: tuple[float, ...] = ()
    """The upper bounds of the buckets of a histogram, which has a last one without a bound."""
    folds: tuple[str, ...] = ()
    """Up to two labels that are `other` if there would be too many figures; all others have few values."""

    def __post_init__(self) -> None:
        for name in (self.name, *self.labels):
            if _NAME.fullmatch(name) is None:
                raise ValueError(f"{name!r} is not a name that Prometheus takes")

    @property
    def labels(self) -> tuple[str, ...]:
        if self.label is None:
            return ()
        return (self.label,) if isinstance(self.label, str) else self.label


class Rows:
    """Rows of numbers by labels, at most `MOST_SERIES` of them. Adding to one is a look into a dict and an addition."""

    def __init__(self, labels: Sequence[str], folds: Sequence[str] = (), bounds: Sequence[float] = ()) -> None:
        self.rows: dict[LabelValues, list[float]] = {}
        self._bounds = bounds
        self._width = len(bounds) + 2 if bounds else 1
        self._folds = tuple(map(labels.index, folds))

    def count(self, labels: LabelValues) -> None:
        """Add one."""
        self.row(labels)[0] += 1

    def observe(self, labels: LabelValues, value: float) -> None:
        """Add a value to the histogram."""
        row = self.row(labels)
        row[bisect_left(self._bounds, value)] += 1
        row[-1] += value

    def add(self, labels: LabelValues, numbers: Sequence[float]) -> None:
        """Add a row of another process."""
        row = self.row(labels)
        row[:] = map(add, row, numbers)

    def row(self, labels: LabelValues) -> list[float]:
        """The row of these labels, or the one that they share with others."""
        found = self.rows.get(labels)
        return self._new_row(labels) if found is None else found

    def _new_row(self, labels: LabelValues) -> list[float]:
        for most, place in zip(_ROOM, self._folds, strict=False):
            if labels in self.rows or len(self.rows) < most:
                break
            labels = (*labels[:place], OTHER, *labels[place + 1 :])
        if labels not in self.rows and len(self.rows) >= MOST_SERIES - 1:
            labels = (OTHER,) * len(labels)
        return self.rows.setdefault(labels, [0.0] * self._width)


class Figure(Struct, frozen=True):
    """What a gauge showed."""

    about: str
    rows: list[tuple[LabelValues, list[float]]]
    """One without labels for a figure that has none."""
    is_counter: bool
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    folds: tuple[str, ...] = ()

    def without(self, names: Collection[str]) -> Figure:
        """The same without some of its labels: rows that only those tell apart are added up."""
        kept = [place for place, name in enumerate(self.labels) if name not in names]
        if len(kept) == len(self.labels):
            return self
        sums: dict[LabelValues, list[float]] = {}
        for labels, numbers in self.rows:
            fewer = tuple(labels[place] for place in kept)
            sums[fewer] = [*map(add, sums[fewer], numbers)] if fewer in sums else numbers
        labels = tuple(self.labels[place] for place in kept)
        folds = tuple(each for each in self.folds if each in labels)
        return replace(self, rows=[*sums.items()], labels=labels, folds=folds)

    def family(self, name: str) -> Metric:
        """As Prometheus's library wants it."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        if self.bounds:
            histogram = HistogramMetricFamily(name, self.about, labels=self.labels)
            bounds = [*map(repr, map(float, self.bounds)), "+Inf"]
            for labels, (*buckets, total) in self.rows:
                histogram.add_metric(labels, list(zip(bounds, accumulate(buckets), strict=True)), total)
            return histogram
        family = (CounterMetricFamily if self.is_counter else GaugeMetricFamily)(name, self.about, labels=self.labels)
        for labels, (value,) in self.rows:
            family.add_metric(labels, value)
        return family


def read_figure(gauge: Gauge) -> Figure | None:
    """None for a gauge that fails: one part must not take the metrics of the others away.

    So does one that shows no number, which other processes could not be told.
    """
    try:
        shown: Any = gauge.read()
        if isinstance(shown, Mapping) is (gauge.label is None):
            return None
        rows = [*_rows_of(gauge, shown)]
    except (Exception, SystemExit):
        return None
    width = len(gauge.bounds) + 2 if gauge.bounds else 1
    if not all(len(labels) == len(gauge.labels) and len(row) == width for labels, row in rows):
        return None
    if not all(isfinite(number) for _, row in rows for number in row):
        return None
    return Figure(gauge.about, rows, gauge.is_counter, gauge.labels, gauge.bounds, gauge.folds)


def _rows_of(gauge: Gauge, shown: Any) -> Iterable[tuple[LabelValues, list[float]]]:
    if not isinstance(shown, Mapping):
        shown = {(): shown}
    most = MOST_VALUES if isinstance(gauge.label, str) else MOST_SERIES
    for key in sorted(shown)[:most]:
        labels = tuple(map(str, key)) if isinstance(key, tuple) else (str(key),)
        yield labels, [*map(float, shown[key] if gauge.bounds else (shown[key],))]


def added_up(figures: Sequence[Figure]) -> Figure:
    """A figure of several processes."""
    first = figures[0]
    if len(figures) == 1:
        return first
    together = Rows(first.labels, first.folds, first.bounds)
    for figure in figures:
        for labels, numbers in figure.rows:
            together.add(labels, numbers)
    return Figure(first.about, [*together.rows.items()], first.is_counter, first.labels, first.bounds, first.folds)
