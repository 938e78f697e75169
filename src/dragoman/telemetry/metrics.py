"""What calls add up to: counted as they end, and worded for Prometheus when it asks.

1. Counting is a few additions on the event loop. Everything else happens on whatever thread words the page.
2. The number of series is bounded: `MOST_TOOLS` tools have their own, and the rest, with every name that no tool has,
   are `other`. Nothing that a client makes up becomes a label, and nobody's name does.
3. A call that was refused took no time worth knowing: it is counted, and not part of the durations.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import add
from typing import TYPE_CHECKING, Protocol, TypeVar

from msgspec import UNSET, Struct, field
from msgspec.structs import replace

from dragoman.cache.bounded import CacheStats
from dragoman.telemetry.figures import MOST_VALUES, OTHER, Figure, Gauge, added_up, read_figure
from dragoman.telemetry.log import CompletionRecord
from dragoman.version import __version__

if TYPE_CHECKING:
    from prometheus_client import Metric

K = TypeVar("K")
N = TypeVar("N", int, float)

SNAPSHOT = "application/x-dragoman-snapshot"
"""What one process of a server asks another for, to add it to its own."""

MOST_TOOLS = MOST_VALUES - 1
MOST_REASONS = 40
BOUNDS_MS = (
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    25,
    50,
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    30_000,
    120_000,
    600_000,
)
"""The upper bounds of the histogram's buckets: from what a call costs by itself to the longest deadlines."""

NAMING = ("tenant", "principal")
"""The labels whose values are names of callers and of their organisations."""
_OPEN_METRICS = "application/openmetrics-text"


class Levels(Struct, frozen=True, kw_only=True):
    """What is not counted but looked at: how things stand this moment."""

    in_flight: int
    slots: int
    slots_in_use: int
    lag_seconds: float
    memory_bytes: int
    sessions: int
    cache: CacheStats


class RecordedCall(Protocol):
    """What is asked of a call besides its record."""

    @property
    def is_found(self) -> bool:
        """Whether what it runs is known; not if it was refused before, or there is no such tool."""
        ...

    @property
    def ran(self) -> bool: ...


class _Series(Struct, eq=False):
    """One tool's calls."""

    outcomes: dict[str, int] = field(default_factory=dict)
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_MS) + 1))
    milliseconds: float = 0.0

    def copy(self) -> _Series:
        return _Series(dict(self.outcomes), list(self.buckets), self.milliseconds)


class Metrics:
    """Counts every call that it is shown. Lives on the event loop."""

    def __init__(
        self, is_tool: Callable[[str], object], levels: Callable[[], Levels], gauges: Sequence[Gauge] = ()
    ) -> None:
        """`is_tool` says, by anything that is not None, whether there is a tool of a name."""
        self._is_tool = is_tool
        self._levels = levels
        self._gauges = gauges
        self._tools: dict[str, _Series] = {OTHER: _Series()}
        self._refusals: Counter[str] = Counter()
        self._http_refusals: Counter[int] = Counter()
        self._payload_bytes = 0
        self.received_bytes = 0
        self.sent_bytes = 0
        """Over HTTP connections, heads and all; counted by our own server, and by no other."""

    def observe(self, record: CompletionRecord, call: RecordedCall) -> None:
        """Count a call that has ended."""
        series = self._tools.get(record.tool_name) or self._series_for(record.tool_name, call)
        outcome = record.outcome
        series.outcomes[outcome] = series.outcomes.get(outcome, 0) + 1
        self._payload_bytes += record.payload_bytes
        if record.error_code is UNSET or call.ran:
            duration = record.duration_ms
            series.buckets[bisect_left(BOUNDS_MS, duration)] += 1
            series.milliseconds += duration
        else:
            self._refused(record)

    def refused_request(self, status: int) -> None:
        """Count an HTTP request that was turned away before it was anybody's call."""
        self._http_refusals[status] += 1

    def snapshot(self) -> Snapshot:
        """Everything as it is now, to be worded on any thread."""
        return Snapshot(
            self._levels(),
            {name: series.copy() for name, series in self._tools.items() if series.outcomes},
            dict(self._refusals),
            dict(self._http_refusals),
            self._payload_bytes,
            self.received_bytes,
            self.sent_bytes,
            {gauge.name: figure for gauge in self._gauges if (figure := read_figure(gauge)) is not None},
        )

    def _series_for(self, name: str, call: RecordedCall) -> _Series:
        """The series of a tool that has not been called before; of no tool, the one that they all share."""
        if len(self._tools) > MOST_TOOLS or (not call.is_found and self._is_tool(name) is None):
            return self._tools[OTHER]
        return self._tools.setdefault(name, _Series())

    def _refused(self, record: CompletionRecord) -> None:
        reason = str(record.error_code).lower() if record.reason is UNSET else record.reason
        if reason not in self._refusals and len(self._refusals) >= MOST_REASONS:
            reason = OTHER
        self._refusals[reason] += 1


class Snapshot(Struct, frozen=True):
    """The figures of one moment."""

    levels: Levels
    tools: dict[str, _Series]
    refusals: dict[str, int]
    http_refusals: dict[int, int]
    payload_bytes: int
    received_bytes: int
    sent_bytes: int
    gauges: dict[str, Figure] = field(default_factory=dict)

    @classmethod
    def together(cls, snapshots: Sequence[Snapshot]) -> Snapshot:
        """Several processes as one: everything added up, but for the lag, which is the longest."""
        if len(snapshots) == 1:
            return snapshots[0]
        names = {name for each in snapshots for name in each.tools}
        kept = set(sorted(names - {OTHER})[:MOST_TOOLS])
        tools: dict[str, _Series] = {}
        for each in snapshots:
            for name, series in each.tools.items():
                total = tools.setdefault(name if name in kept else OTHER, _Series())
                total.outcomes = _added(total.outcomes, series.outcomes)
                total.buckets = list(map(add, total.buckets, series.buckets))
                total.milliseconds += series.milliseconds
        caches = [each.levels.cache for each in snapshots]
        hits, misses = sum(cache.hit_count for cache in caches), sum(cache.miss_count for cache in caches)
        levels = [each.levels for each in snapshots]
        return cls(
            Levels(
                in_flight=sum(each.in_flight for each in levels),
                slots=sum(each.slots for each in levels),
                slots_in_use=sum(each.slots_in_use for each in levels),
                lag_seconds=max(each.lag_seconds for each in levels),
                memory_bytes=sum(each.memory_bytes for each in levels),
                sessions=sum(each.sessions for each in levels),
                cache=CacheStats(
                    entry_count=sum(cache.entry_count for cache in caches),
                    current_size_bytes=sum(cache.current_size_bytes for cache in caches),
                    max_size_bytes=sum(cache.max_size_bytes for cache in caches),
                    hit_count=hits,
                    miss_count=misses,
                    hit_rate=hits / (hits + misses) if hits + misses else 0.0,
                    eviction_count=sum(cache.eviction_count for cache in caches),
                    pressure_level=caches[0].pressure_level,
                ),
            ),
            tools,
            _added(*(each.refusals for each in snapshots)),
            _added(*(each.http_refusals for each in snapshots)),
            sum(each.payload_bytes for each in snapshots),
            sum(each.received_bytes for each in snapshots),
            sum(each.sent_bytes for each in snapshots),
            _figures_together([each.gauges for each in snapshots]),
        )

    def anonymous(self) -> Snapshot:
        """The same without the labels that name tenants and principals."""
        return replace(self, gauges={name: figure.without(NAMING) for name, figure in self.gauges.items()})

    @property
    def calls(self) -> dict[tuple[str, str], int]:
        """How many have ended, by tool and outcome."""
        return {
            (name, outcome): count
            for name, series in sorted(self.tools.items())
            for outcome, count in sorted(series.outcomes.items())
        }

    def page(self, accept: str = "") -> tuple[bytes, str]:
        """The text and its content type: OpenMetrics for whoever accepts that, else the older format.

        Takes a while: the first time its library is imported, and each time a line is written for every series.
        """
        from prometheus_client.exposition import choose_encoder

        # Not the header itself, which the library trusts to be well made.
        encode, content_type = choose_encoder(f"{_OPEN_METRICS}; version=1.0.0" if _OPEN_METRICS in accept else "")
        return encode(self), content_type

    def collect(self) -> Iterator[Metric]:
        """As the library wants it: one family after the other."""
        yield from self._counts()
        yield from self._figures()

    def _counts(self) -> Iterator[Metric]:
        """What calls and requests add up to."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        info = GaugeMetricFamily("dragoman_build_info", "1, for the version that is running.", labels=["version"])
        info.add_metric([__version__], 1)
        yield info
        calls = CounterMetricFamily("dragoman_calls", "Calls that have ended.", labels=["tool", "outcome"])
        durations = HistogramMetricFamily(
            "dragoman_call_duration_seconds", "How long calls took that were not refused.", labels=["tool"]
        )
        bounds = [*(repr(bound / 1000) for bound in BOUNDS_MS), "+Inf"]
        for labels, count in self.calls.items():
            calls.add_metric(labels, count)
        for name, series in sorted(self.tools.items()):
            if any(series.buckets):
                buckets = list(zip(bounds, accumulate(series.buckets), strict=True))
                durations.add_metric([name], buckets, series.milliseconds / 1000)
        yield calls
        yield durations
        refusals = CounterMetricFamily(
            "dragoman_refusals", "Calls whose handler was not run, by why not.", labels=["reason"]
        )
        for reason, count in sorted(self.refusals.items()):
            refusals.add_metric([reason], count)
        yield refusals
        requests = CounterMetricFamily(
            "dragoman_http_refusals", "HTTP requests turned away before they were calls.", labels=["status"]
        )
        for status, count in sorted(self.http_refusals.items()):
            requests.add_metric([str(status)], count)
        yield requests
        yield CounterMetricFamily(
            "dragoman_request_bytes", "What the arguments of calls weighed, as JSON.", value=self.payload_bytes
        )
        if self.received_bytes:  # Whoever asks has sent something: behind another server, nobody counted it.
            for name, said, size in (
                ("dragoman_http_received_bytes", "What came over HTTP connections.", self.received_bytes),
                ("dragoman_http_sent_bytes", "What was sent over HTTP connections.", self.sent_bytes),
            ):
                yield CounterMetricFamily(name, said, value=size)

    def _figures(self) -> Iterator[Metric]:
        """How things stand this moment, the cache's and the parts' figures included."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        levels, cache = self.levels, self.levels.cache
        for name, said, level in (
            ("dragoman_calls_in_flight", "Calls that have not ended, late ones included.", levels.in_flight),
            ("dragoman_slots", "Calls that may run at a time.", levels.slots),
            ("dragoman_slots_in_use", "Slots that are taken.", levels.slots_in_use),
            ("dragoman_event_loop_lag_seconds", "How late timers are, the 99th percentile.", levels.lag_seconds),
            ("dragoman_memory_bytes", "Resident memory of the process.", levels.memory_bytes),
            ("dragoman_sessions", "HTTP sessions past their handshake.", levels.sessions),
            ("dragoman_cache_entries", "Results and artifacts that are kept.", cache.entry_count),
            ("dragoman_cache_bytes", "What they weigh.", cache.current_size_bytes),
            ("dragoman_cache_limit_bytes", "What they may weigh.", cache.max_size_bytes),
        ):
            yield GaugeMetricFamily(name, said, value=level)
        for name, said, count in (
            ("dragoman_cache_hits", "What was looked for in the cache and found.", cache.hit_count),
            ("dragoman_cache_misses", "What was looked for in the cache and not found.", cache.miss_count),
            ("dragoman_cache_evictions", "What had to make room in the cache.", cache.eviction_count),
        ):
            yield CounterMetricFamily(name, said, value=count)
        for name, figure in self.gauges.items():
            yield figure.family(name)


def _figures_together(gauges: Sequence[Mapping[str, Figure]]) -> dict[str, Figure]:
    names = dict.fromkeys(name for each in gauges for name in each)
    return {name: added_up([each[name] for each in gauges if name in each]) for name in names}


def _added(*counts: Mapping[K, N]) -> dict[K, N]:
    total: Counter[K] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)
