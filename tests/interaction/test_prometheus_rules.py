"""The rules in deploy/prometheus, and the contract's expressions, run by Prometheus's own promtool on our metrics.

Without promtool (`make promtool`) they are skipped.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families as parse

from dragoman.telemetry.quantiles import quantile
from tests.support.gateway import create_args
from tests.support.gateway_serving import GatewayApp, open_gateway, open_way
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "dragoman.rules.yml"
CREATE = "knowledge.create_document"
BEFORE, AFTER = 5, 40
"""Minutes for which the metrics stay as they were before the requests, and after them."""

LATENCY = f'histogram_quantile(0.95, sum(rate(a2a_latency_ms_bucket{{action="{CREATE}"}}[5m])) by (le))'
DEAD_LETTERS = "sum(increase(a2a_dlq_total[1d])) / sum(increase(a2a_requests_total[1d]))"
ERRORS = '(sum(increase(a2a_requests_total{status!="SUCCESS"}[7d])) / sum(increase(a2a_requests_total[7d]))) > 0.01'
ACK = 'histogram_quantile(0.95, sum(rate(a2a_ack_ms_bucket{principal=~"svc:.*"}[5m])) by (le, action))'
ACK_STEPS = f"max_over_time({ACK}[7d:1m])"


@pytest.fixture(scope="session")
def promtool() -> str:
    found = shutil.which("promtool") or shutil.which("promtool", path=str(Path(sys.prefix) / "bin"))
    if found is None:
        pytest.skip("there is no promtool: make promtool")
    return found


def page(gateway: GatewayApp) -> list[Metric]:
    assert gateway.runtime.metrics is not None
    return list(parse(gateway.runtime.metrics.snapshot().page()[0].decode()))


def samples(families: list[Metric]) -> dict[str, float]:
    """Values by the series that they are of, as Prometheus writes it."""
    found = {}
    for sample in (sample for family in families for sample in family.samples if family.name.startswith("a2a_")):
        labels = ",".join(f"{name}={json.dumps(value)}" for name, value in sorted(sample.labels.items()))
        found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


class Pages:
    """The metrics of a server at two moments: between them, 20 requests of which one failed, as a dead letter."""

    def __init__(self, before: list[Metric], after: list[Metric]) -> None:
        self.before, self.after = samples(before), samples(after)

    def series(self) -> list[dict[str, str]]:
        return [
            {"series": name, "values": f"{self.before[name]}+0x{BEFORE - 1} {value}+0x{AFTER}"}
            for name, value in self.after.items()
        ]

    def p95(self, metric: str) -> float:
        """By our own reckoning, of the requests between the moments."""
        counts: dict[float, float] = {}
        for name, value in self.after.items():
            if name.startswith(f"{metric}_bucket") and f'action="{CREATE}"' in name:
                bound = re.search(r'le="([^"]+)"', name)
                assert bound is not None
                key = float(bound[1])
                counts[key] = counts.get(key, 0) + value - self.before[name]
        found = quantile(0.95, counts.items())
        assert found is not None
        return found


@pytest.fixture
async def pages(tmp_path: Path) -> Pages:
    async with open_gateway(folder=tmp_path) as gateway:
        way, args = await open_way(gateway, "later"), create_args()
        now = await open_way(gateway, "signed")
        for each in (args, args, create_args(parent_id=args["document_id"])):  # Each series is there before it grows.
            await way.do("create_document", each)
        await now.do("create_document", create_args())
        await until(lambda: samples(page(gateway)) and total(gateway) == 4)
        before = page(gateway)
        for number in range(19):
            gateway.clock.advance(0.001)
            assert (await (way if number % 2 else now).do("create_document", create_args())).code is None
        assert (await way.do("create_document", args)).code == "CONFLICT"
        await until(lambda: total(gateway) == 24)
        return Pages(before, page(gateway))


def total(gateway: GatewayApp) -> float:
    return sum(value for name, value in samples(page(gateway)).items() if name.startswith("a2a_requests_total"))


def run(promtool: str, folder: Path, test: dict[str, Any]) -> str:
    """Run a test of promtool, whose files are YAML, and so may be JSON."""
    file = folder / "test.json"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}))
    done = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True, timeout=PATIENCE)
    return done.stdout + done.stderr if done.returncode else ""


@pytest.mark.requirement("MC-METRIC-03")
@pytest.mark.requirement("MC-METRIC-04")
@pytest.mark.requirement("MC-METRIC-05")
async def test_the_expressions_of_the_contract_say_of_our_metrics_what_we_say(
    promtool: str, pages: Pages, tmp_path: Path
) -> None:
    def expect(expression: str, value: float, labels: str = "{}", at: str = "6m") -> dict[str, Any]:
        return {"expr": expression, "eval_time": at, "exp_samples": [{"labels": labels, "value": value}]}

    of_action, of_caller = f'{{action="{CREATE}"}}', '{caller="external"}'
    latency, ack, done = (pages.p95(name) for name in ("a2a_latency_ms", "a2a_ack_ms", "a2a_job_done_ms"))
    end = f"{BEFORE + AFTER}m"
    recorded = [
        (f'a2a:latency_ms:p95_5m{{action="{CREATE}"}}', latency, "6m"),
        ('a2a:ack_ms:p95_5m{caller="external"}', ack, "6m"),
        ('a2a:ack_ms:p95_7d{caller="external"}', ack, end),
        (f'a2a:job_done_ms:p95_7d{{action="{CREATE}"}}', done, end),
        ("a2a:dlq_rate:1d", 1 / 20, end),
        ("a2a:error_rate:7d", 1 / 20, end),
    ]
    test = {
        "interval": "1m",
        "input_series": pages.series(),
        "promql_expr_test": [
            expect(f"round({expression}, 0.000001)", round(value, 6), labels, at)
            for expression, value, labels, at in (
                (LATENCY, latency, "{}", "6m"),
                (ACK, ack, of_action, "6m"),
                (ACK_STEPS.replace("[7d:", "[1h:"), ack, of_action, "20m"),  # promtool loads 10,000 samples at most.
                (DEAD_LETTERS, 1 / 20, "{}", end),
                (ERRORS, 1 / 20, "{}", end),
                *((name, value, re.sub(r"^[^{]*", "", name) or "{}", at) for name, value, at in recorded),
            )
        ],
    }
    assert of_caller in recorded[1][0]
    assert run(promtool, tmp_path, test) == ""
    test["promql_expr_test"] = [expect(DEAD_LETTERS, 0.5, at=end)]
    assert "FAILED" in run(promtool, tmp_path, test)


@pytest.mark.requirement("MC-METRIC-05")
async def test_alerts_fire_when_their_condition_has_held_for_a_quarter_of_an_hour(
    promtool: str, pages: Pages, tmp_path: Path
) -> None:
    budget = {
        "exp_labels": {"severity": "page"},
        "exp_annotations": {"summary": "More than 1 % of the requests of the last 7 days did not succeed."},
    }
    dead = {
        "exp_labels": {"severity": "ticket"},
        "exp_annotations": {"summary": "More than 0.1 % of the requests of the last day became dead letters."},
    }
    expected: list[tuple[str, int, list[Any]]] = [
        ("A2AErrorBudget", BEFORE + 14, []),
        ("A2AErrorBudget", BEFORE + 15, [budget]),
        ("A2ADeadLetters", BEFORE + 17, [dead]),
        ("A2AAckSlow", BEFORE + 30, []),
        ("A2AJobDoneSlow", BEFORE + 30, []),
    ]
    test = {
        "interval": "1m",
        "input_series": pages.series(),
        "alert_rule_test": [
            {"alertname": name, "eval_time": f"{minute}m", "exp_alerts": alerts} for name, minute, alerts in expected
        ],
    }
    assert run(promtool, tmp_path, test) == ""


@pytest.mark.parametrize(
    ("metric", "labels", "slow_ms", "name"),
    [
        ("a2a_ack_ms", 'caller="internal"', 1_500, "A2AAckSlow"),
        ("a2a_ack_ms", 'caller="external"', 1_500, None),
        ("a2a_ack_ms", 'caller="external"', 3_000, "A2AAckSlow"),
        ("a2a_job_done_ms", f'action="{CREATE}"', 80_000, None),
        ("a2a_job_done_ms", f'action="{CREATE}"', 200_000, "A2AJobDoneSlow"),
    ],
)
def test_slow_requests_break_the_objective_of_their_kind(
    promtool: str, tmp_path: Path, metric: str, labels: str, slow_ms: int, name: str | None
) -> None:
    from dragoman.slo.meter import BOUNDS_MS

    series = [
        {"series": f'{metric}_bucket{{{labels},le="{bound}"}}', "values": f"0+{10 if bound >= slow_ms else 0}x40"}
        for bound in (*BOUNDS_MS, float("inf"))
    ]
    series[-1]["series"] = f'{metric}_bucket{{{labels},le="+Inf"}}'
    quiet: list[dict[str, Any]] = [
        {"alertname": each, "eval_time": "30m", "exp_alerts": []}
        for each in ("A2AAckSlow", "A2AJobDoneSlow")
        if each != name
    ]
    assert run(promtool, tmp_path, {"interval": "1m", "input_series": series, "alert_rule_test": quiet}) == ""
    if name is not None:
        fires = [{"alertname": name, "eval_time": "30m", "exp_alerts": []}]
        assert name in run(promtool, tmp_path, {"interval": "1m", "input_series": series, "alert_rule_test": fires})


@pytest.mark.requirement("MC-METRIC-05")
@pytest.mark.parametrize("expression", [LATENCY, DEAD_LETTERS, ERRORS, ACK_STEPS])
def test_the_expressions_that_are_run_are_those_of_the_page(expression: str) -> None:
    def squeezed(text: str) -> str:
        return re.sub(r"\s+", "", text)

    shown = squeezed((ROOT / "docs" / "slo.md").read_text())
    assert squeezed(expression.replace(CREATE, "knowledge.query_knowledge")) in shown
