"""What a server's `/metrics`, `/health` and `/ready` say, and what two looks at them amount to."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from dragoman.access.settings import TOKEN_PATTERN
from dragoman.telemetry import quantiles
from dragoman.telemetry.clean import sanitize

Samples: TypeAlias = dict[str, dict[tuple[str, ...], float]]
"""Values by the name of their sample and their labels' values, in the order of the labels' names."""

_TIMEOUT = 5.0
_LONGEST_REASON = 200


class Unreachable(Exception):
    """There is nothing to look at; says why, and what might help."""


class Look(Struct, frozen=True):
    """How a server stood at one moment."""

    at: float
    state: str
    uptime: float
    samples: Samples

    def value(self, name: str) -> float:
        """The sum of a metric's samples."""
        return sum(self.samples.get(name, {}).values())

    def by(self, name: str, position: int = 0) -> dict[str, float]:
        """The sums of a metric's samples by one of their labels."""
        found: dict[str, float] = defaultdict(float)
        for labels, value in self.samples.get(name, {}).items():
            found[labels[position]] += value
        return dict(found)


class ToolView(Struct, frozen=True, rename="camel"):
    """What one tool did. Rates and percentiles are those of the time between the looks."""

    name: str
    calls: int
    calls_per_second: float
    failures_per_second: float
    p50_ms: float | None
    p95_ms: float | None


class ReasonView(Struct, frozen=True, rename="camel"):
    """How often something was refused."""

    reason: str
    refusals: int
    refusals_per_second: float


class View(Struct, frozen=True, rename="camel"):
    """What two looks amount to."""

    version: str
    state: str
    uptime_seconds: float
    interval_seconds: float
    calls: int
    calls_per_second: float
    p50_ms: float | None
    p95_ms: float | None
    in_flight: int
    slots: int
    slots_in_use: int
    lag_ms: float
    memory_bytes: int
    sessions: int
    cache_hit_share: float | None
    tools: list[ToolView]
    """The busiest first."""
    refusals: list[ReasonView]
    """Of calls, and of HTTP requests by their status; the most frequent first."""


def look(url: str, token: str | None) -> Look:
    """How the server at `url` stands; raises `Unreachable`."""
    import httpx2

    if token is not None and not TOKEN_PATTERN.fullmatch(token):
        raise Unreachable("the token has characters that no bearer token can have")
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    is_local = url.startswith("http:")  # Proxies are for what is elsewhere.
    try:
        with httpx2.Client(headers=headers, timeout=_TIMEOUT, trust_env=not is_local) as client:
            page = client.get(f"{url}/metrics")
            at = time.monotonic()
            _check(page.status_code, page.text, url)
            health, ready = _facts(client.get(f"{url}/health").text), _facts(client.get(f"{url}/ready").text)
    except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as error:
        said = sanitize(str(error))[:_LONGEST_REASON] or type(error).__name__
        raise Unreachable(f"nobody answers at {url}: {said}") from None
    samples = _samples(page.text)
    if "dragoman_build_info" not in samples:
        raise Unreachable(f"what answers at {url} is not Dragoman")
    uptime = health.get("uptime_seconds")
    return Look(at, str(ready.get("status", "unknown")), uptime if isinstance(uptime, float | int) else 0.0, samples)


def _check(status: int, text: str, url: str) -> None:
    if status == 200:
        return
    if status == 401:
        raise Unreachable("the server wants to know who asks: give --token, or set DRAGOMAN_TOKEN")
    if status == 404:
        raise Unreachable(f"there are no metrics at {url}/metrics: is http.metrics off?")
    error = _facts(text).get("error")
    message = error.get("message", "") if isinstance(error, dict) else ""
    raise Unreachable(
        f"{url}/metrics answered with status {status}. {sanitize(str(message))[:_LONGEST_REASON]}".strip()
    )


def _facts(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}


def _samples(text: str) -> Samples:
    from prometheus_client.parser import text_string_to_metric_families

    samples: Samples = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = tuple(sample.labels[name] for name in sorted(sample.labels))
                samples.setdefault(sample.name, {})[labels] = sample.value
    except ValueError:
        raise Unreachable("what came are no metrics that can be read") from None
    return samples


def since_start(now: Look) -> Look:
    """The look that there would have been when the server started."""
    return Look(now.at - max(now.uptime, 0.001), now.state, 0.0, {})


def compare(before: Look, now: Look) -> View:
    """What happened in between."""
    seconds = max(now.at - before.at, 0.001)
    buckets = _grown(before, now, "dragoman_call_duration_seconds_bucket")  # Labelled with bound and tool.
    ended = _grown(before, now, "dragoman_calls_total")  # Labelled with outcome and tool.
    hits, misses = (now.value(f"dragoman_cache_{what}_total") for what in ("hits", "misses"))
    tools = []
    for name, calls in now.by("dragoman_calls_total", 1).items():
        mine = {outcome: count for (outcome, tool), count in ended.items() if tool == name}
        bounds = {bound: count for (bound, tool), count in buckets.items() if tool == name}
        rate = sum(mine.values()) / seconds
        failures = rate - mine.get("success", 0.0) / seconds
        tools.append(ToolView(name, int(calls), rate, failures, quantile(0.5, bounds), quantile(0.95, bounds)))
    whole: dict[str, float] = defaultdict(float)
    for (bound, _), count in buckets.items():
        whole[bound] += count
    return View(
        version=next(iter(now.samples["dragoman_build_info"]), ("",))[0],
        state=now.state,
        uptime_seconds=now.uptime,
        interval_seconds=seconds,
        calls=int(now.value("dragoman_calls_total")),
        calls_per_second=sum(ended.values()) / seconds,
        p50_ms=quantile(0.5, whole),
        p95_ms=quantile(0.95, whole),
        in_flight=int(now.value("dragoman_calls_in_flight")),
        slots=int(now.value("dragoman_slots")),
        slots_in_use=int(now.value("dragoman_slots_in_use")),
        lag_ms=now.value("dragoman_event_loop_lag_seconds") * 1000,
        memory_bytes=int(now.value("dragoman_memory_bytes")),
        sessions=int(now.value("dragoman_sessions")),
        cache_hit_share=hits / (hits + misses) if hits + misses else None,
        tools=sorted(tools, key=lambda tool: (-tool.calls_per_second, -tool.calls, tool.name)),
        refusals=sorted(
            (
                *_reasons(before, now, "dragoman_refusals_total", "{}", seconds),
                *_reasons(before, now, "dragoman_http_refusals_total", "HTTP {}", seconds),
            ),
            key=lambda each: (-each.refusals_per_second, -each.refusals, each.reason),
        ),
    )


def _reasons(before: Look, now: Look, name: str, wording: str, seconds: float) -> Iterable[ReasonView]:
    grown = _grown(before, now, name)
    for labels, count in now.samples.get(name, {}).items():
        yield ReasonView(wording.format(*labels), int(count), grown[labels] / seconds)


def _grown(before: Look, now: Look, name: str) -> dict[tuple[str, ...], float]:
    """By how much counters grew. One that is lower than it was began anew, with its server."""
    old = before.samples.get(name, {})
    return {
        labels: value - old.get(labels, 0.0) if value >= old.get(labels, 0.0) else value
        for labels, value in now.samples.get(name, {}).items()
    }


def quantile(share: float, buckets: Mapping[str, float]) -> float | None:
    """Milliseconds within which that share of calls had ended, from cumulative counts by upper bound in seconds."""
    seconds = quantiles.quantile(share, ((float(bound), count) for bound, count in buckets.items()))
    return None if seconds is None else seconds * 1000
