"""Counts requests for actions: for Prometheus, and for the service levels that outlive the process.

1. Each request is counted once, when it ends. One that is carried out later has two more moments: it is acknowledged
   when it was accepted, and done when it ends.
2. Counting is a few additions on the event loop; nothing is written here.
3. Nothing that a stranger says becomes a label: before its sender is known, a request has no tenant and no principal,
   and before it is understood, no action.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from dragoman.replies.vocabulary import STATUSES, ContractCode
from dragoman.slo.port import LevelKey
from dragoman.telemetry.figures import OTHER, Gauge, LabelValues, Rows

BOUNDS_MS: Final = (
    5.0,
    10.0,
    25.0,
    50.0,
    100.0,
    250.0,
    500.0,
    1_000.0,
    2_000.0,
    4_000.0,
    10_000.0,
    30_000.0,
    60_000.0,
    90_000.0,
    300_000.0,
    3_600_000.0,
)
"""The upper bounds of all buckets: those of the objectives are among them."""
LABELS: Final = ("action", "tenant", "principal", "status", "error_code")
ACK_LABELS: Final = ("action", "tenant", "principal", "caller")
FOLDS: Final = ("principal", "tenant")

SUCCESS, REFUSED, FAILED, ABORTED = STATUS = ("SUCCESS", "REFUSED", "FAILED", "ABORTED")
"""How a request ends: as asked; not, because of what was asked; not, because of the server; its sender gave it up."""
RETRYING: Final = "RETRYING"
LATENCY, ACK, DONE, DEAD, RETRIES = "latency", "ack", "done", "dead", "retries"
"""Figures of service levels besides the statuses; the first three are histograms."""
INTERNAL, EXTERNAL = "internal", "external"

MOST_TENANTS: Final = 200
"""Of the service levels of one process."""
_LONGEST_NAME: Final = 128
_FAILURES: Final = frozenset(code for code, status in STATUSES.items() if status >= 500)


class Requested(NamedTuple):
    """The facts about a request that are counted. Those that are not known yet are empty."""

    action: str = ""
    tenant: str = ""
    principal: str = ""
    caller: str = ""
    """`INTERNAL` for a caller with a token, `EXTERNAL` for one that signs each request."""


STRANGER: Final = Requested()


def status_of(code: str, *, was_accepted: bool = False) -> str:
    """The status of a request that ended with a code of the contract, with `ABORTED`, or with none: it succeeded.

    A request that expires after it was accepted has waited for the server.
    """
    if not code:
        return SUCCESS
    if code == ABORTED:
        return ABORTED
    return FAILED if code in _FAILURES or (was_accepted and code == ContractCode.EXPIRED) else REFUSED


class ActionMeter:
    """Of one process. Lives on the event loop."""

    def __init__(self) -> None:
        self._latency = Rows(LABELS, FOLDS, BOUNDS_MS)
        self._done = Rows(LABELS, FOLDS, BOUNDS_MS)
        self._acks = Rows(ACK_LABELS, FOLDS, BOUNDS_MS)
        self._dead = Rows(LABELS, FOLDS)
        self._retries = Rows(LABELS, FOLDS)
        self._tenants: set[str] = set()
        self._pending: dict[LevelKey, int] = {}

    def ended(
        self, asked: Requested, code: str, took_ms: float, *, was_accepted: bool = False, is_dead: bool = False
    ) -> None:
        """Count a request: see `status_of`. With `is_dead` it is a dead letter now."""
        status = status_of(code, was_accepted=was_accepted)
        labels = _labels(asked, status, code)
        self._latency.observe(labels, took_ms)
        self._add(asked, status)
        self._add(asked, LATENCY, took_ms)
        if was_accepted:
            self._done.observe(labels, took_ms)
            self._add(asked, DONE, took_ms)
        if is_dead:
            self._dead.count(labels)
            self._add(asked, DEAD)

    def acknowledged(self, asked: Requested, took_ms: float) -> None:
        """Count that a request was accepted, which ends later."""
        self._acks.observe((asked.action, asked.tenant, asked.principal[:_LONGEST_NAME], asked.caller), took_ms)
        self._add(asked, ACK, took_ms)

    def retried(self, asked: Requested, code: str) -> None:
        """Count a retry of a request that goes on."""
        self._retries.count(_labels(asked, RETRYING, code))
        self._add(asked, RETRIES)

    def take(self) -> dict[LevelKey, int]:
        """What was counted since this was called before."""
        taken, self._pending = self._pending, {}
        return taken

    def put_back(self, counts: Mapping[LevelKey, int]) -> None:
        """Undo a `take` whose counts could not be kept."""
        for key, count in counts.items():
            self._pending[key] = self._pending.get(key, 0) + count

    def gauges(self) -> tuple[Gauge, ...]:
        """The metrics of the action contract, and the two that its objectives need besides."""

        def requests() -> Mapping[LabelValues, float]:
            return {labels: sum(row[:-1]) for labels, row in self._latency.rows.items()}

        def counter(name: str, about: str, read: Callable[[], Mapping[LabelValues, float]]) -> Gauge:
            return Gauge(name, about, read, is_counter=True, label=LABELS, folds=FOLDS)

        def histogram(name: str, about: str, rows: Rows, labels: tuple[str, ...] = LABELS) -> Gauge:
            return Gauge(name, about, lambda: rows.rows, label=labels, folds=FOLDS, bounds=BOUNDS_MS)

        return (
            counter("a2a_requests", "Requests for actions that have ended.", requests),
            histogram("a2a_latency_ms", "How long they took, from arrival or acceptance to the end.", self._latency),
            counter("a2a_dlq", "Those that became dead letters.", _counts_of(self._dead)),
            counter("a2a_retries", "Attempts that failed and are followed by another.", _counts_of(self._retries)),
            histogram("a2a_ack_ms", "How long it took to accept requests for later.", self._acks, ACK_LABELS),
            histogram("a2a_job_done_ms", "How long accepted requests took, from acceptance to the end.", self._done),
        )

    def _add(self, asked: Requested, figure: str, took_ms: float | None = None) -> None:
        tenant = asked.tenant
        if tenant not in self._tenants:
            if len(self._tenants) < MOST_TENANTS:
                self._tenants.add(tenant)
            else:
                tenant = OTHER
        bucket = 0 if took_ms is None else bisect_left(BOUNDS_MS, took_ms)
        key = LevelKey(tenant, asked.action, asked.caller, figure, bucket)
        self._pending[key] = self._pending.get(key, 0) + 1


def _labels(asked: Requested, status: str, code: str) -> LabelValues:
    return asked.action, asked.tenant, asked.principal[:_LONGEST_NAME], status, str(code)


def _counts_of(rows: Rows) -> Callable[[], Mapping[LabelValues, float]]:
    return lambda: {labels: count for labels, (count,) in rows.rows.items()}
