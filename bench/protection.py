"""What protection costs: `python -m bench.protection [ROUNDS] [RUNS]` prints JSON.

Stage by stage it is what `bench.profile` finds for a tool that does nothing. What a setting costs is the difference
that it makes to a call with ordinary arguments, made through the whole pipeline: runtimes with other settings take
turns in short rounds, and the median of the differences within a round is what counts. The dialect that is shipped
takes part twice; how far it is from itself tells how far the rest can be trusted. What watches calls is held against
the same call unwatched: metrics are counted as they are over HTTP; spans are those of OpenTelemetry's SDK, and what its
thread takes to encode them for a collector is part of their cost.
"""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import sys
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import msgspec
import uvloop

import dragoman
from bench import profile
from bench.in_process import Records
from bench.rounds import rotated
from dragoman.telemetry.log import StructuredLogger
from dragoman.tools.tool import tool

SHIPPED = "as shipped"
KEPT = "a kept result, found"
METRICS, SPANS, UNSAMPLED = "metrics counted", "spans recorded", "spans, none of them sampled"

_CALLS = 200
_DIALECTS = ("structured", "envelope", "plain")
_NO_LIMITS = {"limits": {"max_array_size": None, "max_string_length": None, "max_object_depth": None}}
_RATES_AND_SHARES = {
    "limits": {
        "calls_per_minute_per_caller": 10_000_000,
        "tools": {"order": {"calls_per_minute": 10_000_000, "max_concurrent": 32}},
    },
    "resources": {"max_concurrent_per_caller": 32},
}
TYPICAL: dict[str, Any] = {
    "customer": "Ada Lovelace",
    "email": "ada@example.org",
    "reference": "2026-11-0042",
    "quantity": 3,
    "price": 19.95,
    "express": True,
    "note": "Please ring twice and leave the parcel with the neighbours if nobody opens the door.",
    "tags": ["books", "gift", "fragile"],
    "address": {
        "street": "12 St James's Square",
        "city": "London",
        "code": "SW1Y 4JH",
        "geo": {"lat": 51.5, "lon": -0.1},
    },
    "contact": {"name": "Charles Babbage", "phone": "+44 20 7946 0000"},
}
_COMMAS = {**TYPICAL, "note": "a, " * 200}  # As many in a string as could separate the items of too large an array.
_ARRAY = {**TYPICAL, "tags": ["tag"] * 99}


async def _order(
    customer: str,
    email: str,
    reference: str,
    quantity: int,
    price: float,
    express: bool,
    note: str,
    tags: list[str],
    address: dict[str, Any],
    contact: dict[str, str],
) -> dict[str, Any]:
    """Takes an order."""
    return {"accepted": True, "total": 59.85}


TOOLS = (
    tool(name="order")(_order),
    tool(name="kept_order", read_only=True, cache_ttl_ms=3_600_000)(_order),
)


@dataclass(frozen=True)
class Variant:
    """A call that differs in one thing from another, which it is held against."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=lambda: TYPICAL)
    tool: str = "order"
    against: str = SHIPPED
    is_counted: bool = False
    """Whether there are metrics."""
    sampled: float | None = None
    """The share of calls whose spans are recorded; None: there are no spans."""


def _provider(sampled: float) -> Any:
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

    class Encoded(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            encode_spans(spans).SerializeToString()
            return SpanExportResult.SUCCESS

    provider = TracerProvider(sampler=TraceIdRatioBased(sampled))
    provider.add_span_processor(BatchSpanProcessor(Encoded()))
    return provider


COMMAS_BASE, ARRAY_BASE = "200 commas in a string, limits off", "99 items in an array, limits off"
VARIANTS = {
    SHIPPED: Variant(),
    "limits off": Variant(_NO_LIMITS),
    "rates and shares set": Variant(_RATES_AND_SHARES),
    COMMAS_BASE: Variant(_NO_LIMITS, _COMMAS),
    "200 commas in a string, every element looked at": Variant(arguments=_COMMAS, against=COMMAS_BASE),
    ARRAY_BASE: Variant(_NO_LIMITS, _ARRAY),
    "99 items in an array, every element looked at": Variant(arguments=_ARRAY, against=ARRAY_BASE),
    KEPT: Variant(tool="kept_order"),
    METRICS: Variant(is_counted=True),
    SPANS: Variant(sampled=1.0),
    UNSAMPLED: Variant(sampled=0.0),
    **{f"dialect {name}": Variant({"response": {"dialect": name}}) for name in _DIALECTS},
}


class Candidate:
    """A variant with a runtime of its own."""

    def __init__(self, variant: Variant, runtime: dragoman.Runtime, records: Records, provider: Any = None) -> None:
        self.variant = variant
        self.runtime = runtime
        self._records = records
        self._provider = provider
        if variant.is_counted:
            runtime.http()
        self._made = 0
        self.costs: list[float] = []

    async def run(self) -> None:
        """Make some calls; how many microseconds of the processor's time each took is added to `costs`."""
        call, tool, arguments = self.runtime.call, self.variant.tool, self.variant.arguments
        started = time.process_time()
        for _ in range(_CALLS):
            (await call(tool, arguments)).unwrap()
        if self._provider is not None:
            self._provider.force_flush()
        self.costs.append((time.process_time() - started) / _CALLS * 1e6)
        self._made += _CALLS

    def check(self, name: str) -> None:
        """Exit unless every call has its record, is counted where calls are, and kept results were found."""
        if self._records.count != self._made:
            raise SystemExit(f"{name}: {self._records.count} records of {self._made} calls")
        if self.variant.is_counted and sum(self.runtime.metrics.snapshot().calls.values()) != self._made:
            raise SystemExit(f"{name}: not all of {self._made} calls are counted")
        hits = self.runtime.cache.stats().hit_count
        if hits != (self._made - 1 if self.variant.tool == "kept_order" else 0):
            raise SystemExit(f"{name}: {hits} results found in the cache in {self._made} calls")


async def measure_settings(rounds: int) -> dict[str, Any]:
    """What each variant of a call takes, and how much more than what it is held against."""
    async with AsyncExitStack() as stack:
        candidates: dict[str, Candidate] = {}
        left_out: dict[str, str] = {}
        for name, variant in VARIANTS.items():
            records = Records()
            provider = None if variant.sampled is None else _provider(variant.sampled)
            logger = StructuredLogger(records.put)
            opening = dragoman.open(TOOLS, variant.settings, logger=logger, tracer_provider=provider)
            if "response" not in variant.settings:
                candidates[name] = Candidate(variant, await stack.enter_async_context(opening), records, provider)
                continue
            try:
                runtime = await stack.enter_async_context(opening)
            except Exception as error:  # A version that has no such dialect may say so in any way.
                left_out[name] = f"refused: {error}"
                continue
            if _is_ineffective(runtime, candidates[SHIPPED].runtime):
                left_out[name] = "changes nothing in this version"
                continue
            candidates[name] = Candidate(variant, runtime, records)
        gc.freeze()
        for turn in range(rounds + 1):
            for name in rotated([*candidates], turn):
                await candidates[name].run()
        gc.unfreeze()
        for name, candidate in candidates.items():
            candidate.check(name)
    costs = {name: candidate.costs[1:] for name, candidate in candidates.items()}
    return {
        "argument_bytes": len(msgspec.json.encode(TYPICAL)),
        "calls": {name: _compared(costs, name) for name in costs},
        "left_out": left_out,
    }


def _is_ineffective(runtime: dragoman.Runtime, shipped: dragoman.Runtime) -> bool:
    chosen, default = runtime.config.response.dialect, shipped.config.response.dialect
    return chosen != default and type(runtime.edge.services.dialect) is type(shipped.edge.services.dialect)


def _compared(costs: Mapping[str, list[float]], name: str) -> dict[str, Any]:
    mine, against = costs[name], VARIANTS[name].against
    facts: dict[str, Any] = {"us": statistics.median(mine), "best_us": min(mine)}
    if name != against:
        rounds = [*zip(mine, costs[against], costs[SHIPPED], strict=True)]
        facts["against"] = against
        facts["more_us"] = statistics.median(this - that for this, that, _ in rounds)
        facts["more_share"] = statistics.median((this - that) / shipped for this, that, shipped in rounds)
    return facts


async def measure_stages(runs: int) -> list[dict[str, Any]]:
    """What each part of a call takes, and which share of the whole."""
    costs = await profile.measure(runs)
    whole = next(cost.microseconds for cost in costs if cost.kind == "whole")
    return [
        {"name": name, "kind": kind, "us": microseconds, "share": microseconds / whole}
        for name, microseconds, kind in costs
    ]


async def measure(rounds: int, runs: int) -> dict[str, Any]:
    """Both. The stages come first, while theirs is the only runtime of the process."""
    return {"stages": await measure_stages(runs), "settings": await measure_settings(rounds)}


if __name__ == "__main__":
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 300
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(measure(rounds, runs))))
