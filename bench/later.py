"""Requests that are carried out later, beside the same ones that are answered at once: `python -m bench later`.

1. A run is so many creates of 1 KB of text by 64 clients, of 1, 10 or 100 tenants. It has ended when the last request
   has its reply. The latency of one that is carried out later is that of the acceptance.
2. The limits that would refuse such a load are raised by settings, as for actions.
3. A small tenant hands in one request after the other, alone or beside a flood: requests of another tenant that were
   accepted before the clock runs, at least half of which are still waiting when the last one is handed in. Its time is
   from there to the reply. Limits are the defaults, but for requests a minute.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from bench.actions import LIMITS
from bench.handing_in import Seen, Sender, flood, hand_in, keep_keys, seen, site_of
from bench.http_load import Load
from bench.over_http import HttpServer, started
from bench.process import BenchError
from bench.rounds import Figures, Plan, Run, Way, compared, rate_of, ratio_of, spread_of, take_turns

CLIENTS = 64
TENANTS = (1, 10, 100)
REQUESTS = 1_536
"""Of one run: enough that the time of the last one, from its acceptance to its reply, hardly counts."""
AT_ONCE = "answered at once"
PATH = f"later, create, {CLIENTS} clients"
ALONE, FEW, MANY = "alone", "few", "many"
WAITING = {ALONE: 0, FEW: 1_000, MANY: 10_000}
_SHORT_WAITING = {ALONE: 0, FEW: 100, MANY: 500}
_SAMPLES = 300
_SHORT_SAMPLES = 20
_WARM_UP = 64
_IN_FLIGHT = {"DRAGOMAN_GATEWAY__MAX_IN_FLIGHT_PER_TENANT": str(CLIENTS)}
_RATES = {name: value for name, value in LIMITS.items() if name.endswith(("PER_TENANT", "PER_PRINCIPAL"))}


def of_tenants(number: int) -> str:
    return f"later, {number} tenant{'s' * (number > 1)}"


def later(plan: Plan) -> Figures:
    """Requests a second that are accepted and finished, and how long a small tenant waits beside a flood."""
    return {**_rates(plan), "small": _small_tenant(plan)}


def _rates(plan: Plan) -> Figures:
    folder = plan.folder / "later"
    senders = [Sender(f"tenant-{number}") for number in range(max(TENANTS))]
    keep_keys(folder, senders)
    number = REQUESTS // (4 if plan.is_short else 1)
    accepted: dict[int, list[float]] = {tenants: [] for tenants in TENANTS}
    with started(plan, [site_of(PATH, folder, LIMITS | _IN_FLIGHT, records=True)]) as (server,), seen(folder) as found:

        def run(tenants: int, *, later: bool) -> Run:
            def put(port: int) -> Load:
                batches = _batches(port, senders[:tenants], number, later=later)
                done, began = found.completed(), time.perf_counter()
                load = hand_in(port, batches, later=later)
                if not later:
                    return load
                accepted[tenants].append(number / load.seconds)
                found.until_quiet()
                seconds = time.perf_counter() - began
                if found.completed() - done != number:
                    raise BenchError(f"{found.completed() - done} of {number} accepted requests were completed")
                return Load(seconds, load.cpu, load.latencies)

            return server.under(put)

        for tenants in TENANTS:
            run(tenants, later=True)
            accepted[tenants].clear()
        ways = [
            Way(AT_ONCE, partial(run, 1, later=False)),
            *(Way(of_tenants(tenants), partial(run, tenants, later=True)) for tenants in TENANTS),
        ]
        rounds = take_turns(plan, ways, PATH)
    return {
        "works": {PATH: compared(rounds, AT_ONCE)},
        "accepted": {of_tenants(tenants): spread_of(each) for tenants, each in accepted.items()},
        "rate_ratios": {
            of_tenants(tenants): ratio_of(rounds[of_tenants(tenants)], rounds[AT_ONCE], rate_of) for tenants in TENANTS
        },
    }


def _batches(port: int, senders: Sequence[Sender], number: int, *, later: bool) -> list[list[bytes]]:
    """The requests of each client, which belong to the tenants in turn."""
    requests = [senders[place % len(senders)].signed(port, later=later) for place in range(number)]
    return [requests[client::CLIENTS] for client in range(CLIENTS)]


def _small_tenant(plan: Plan) -> Figures:
    """The time from handing a request in to its reply, in milliseconds."""
    waiting, samples = (_SHORT_WAITING, _SHORT_SAMPLES) if plan.is_short else (WAITING, _SAMPLES)
    figures: Figures = {}
    for name, number in waiting.items():
        folder = plan.folder / f"later-{name}"
        small, large = Sender("small"), Sender("large")
        keep_keys(folder, [small, large])
        with started(plan, [site_of(f"{PATH}, {name}", folder, _RATES, records=False)]) as (server,):
            times = _times(server, folder, small, large, number, samples)
        cuts = statistics.quantiles(times, n=100)
        figures[name] = {"waiting": number, "requests": len(times), "p50_ms": cuts[49] * 1e3, "p99_ms": cuts[98] * 1e3}
        plan.say(f"later, small tenant beside {number:,}: p50 {cuts[49] * 1e3:.1f} ms, p99 {cuts[98] * 1e3:.1f} ms")
    return figures


def _times(server: HttpServer, folder: Path, small: Sender, large: Sender, waiting: int, samples: int) -> list[float]:
    times: list[float] = []

    def put(port: int) -> Load:
        with seen(folder) as found:
            _one_after_the_other(port, small, found, lambda done: done < _WARM_UP)
            while len(times) < samples:
                missing = waiting - found.waiting(large.signer.tenant)
                if missing > 0:
                    flood(folder, large, missing)
                    _one_after_the_other(port, small, found, lambda done: done < 1)

                def goes_on(done: int) -> bool:
                    is_flooded = found.waiting(large.signer.tenant) >= waiting / 2
                    return len(times) + done < samples and is_flooded

                times.extend(_one_after_the_other(port, small, found, goes_on))
        return Load(1.0, 0.0, times)

    server.under(put, leaves_records=False)
    return times


def _one_after_the_other(port: int, small: Sender, found: Seen, goes_on: Callable[[int], bool]) -> list[float]:
    """Hand requests in, each when the last one has its reply; the time of each."""
    times: list[float] = []
    while goes_on(len(times)):
        id = str(uuid.uuid4())
        request = small.signed(port, id, later=True)
        began = time.perf_counter()
        hand_in(port, [[request]], later=True)
        found.until_replied(small.signer.tenant, id)
        times.append(time.perf_counter() - began)
    return times
