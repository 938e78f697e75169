"""The gates that a call passes: small values that can be listed, switched and read about.

A gate looks at facts and gives a verdict: pass, pass with a warning, pass with something for the audit, or fail. The
first three are asked before the handler runs, as part of step 4; the last one after it has ended, as part of step 9.
What they decided, other than to let the call pass, is in its completion record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias

from msgspec import Struct, to_builtins

from dragoman.calls.call import Call
from dragoman.calls.limits import ARRAY_TOO_LARGE, Violation, Violations
from dragoman.calls.settings import GuardsConfig, LimitsConfig
from dragoman.errors import LimitExceeded, MemoryPressure, PayloadTooLarge, ToolError
from dragoman.telemetry.load import PressureLevel, PressureMonitor

Mode: TypeAlias = Literal["enforce", "warn", "off"]
NEAR_TIMEOUT = 0.8
"""The part of its deadline above which a call is worth an audit."""


class Verdict(Struct, frozen=True, omit_defaults=True):
    """What a gate thinks of a call."""

    passed: bool
    reason: str | None = None
    recommendation: str | None = None
    warning: str | None = None
    audit: Mapping[str, Any] | None = None


class GateFacts(Struct, frozen=True, kw_only=True):
    """What gates may look at; what is not known is None, and then they let the call pass."""

    tool_name: str = ""
    pressure_level: PressureLevel | None = None
    request_size_bytes: int | None = None
    max_request_bytes: int | None = None
    array_size_violations: tuple[Violation, ...] = ()
    """The first of them."""
    array_size_violation_count: int = 0
    duration_ms: float | None = None
    timeout_ms: int | None = None


class Gate(Struct, frozen=True):
    """One rule, with a name that operators can switch it by."""

    id: str
    name: str
    description: str
    judge: Callable[[GateFacts], Verdict]

    async def check(self, facts: GateFacts) -> Verdict:
        """`judge`, for those who await every gate."""
        return self.judge(facts)


class GatePolicy(Struct, frozen=True):
    """Gates in the order in which they are asked."""

    id: str
    name: str
    description: str
    gates: tuple[Gate, ...]


_PASS = Verdict(True)


def _memory_pressure(facts: GateFacts) -> Verdict:
    match facts.pressure_level:
        case "critical":
            return Verdict(False, "Memory pressure is critical", "Wait for cache eviction or increase maxSizeBytes")
        case "high":
            return Verdict(True, warning="Memory pressure is high, consider reducing cache usage")
    return _PASS


def _request_size(facts: GateFacts) -> Verdict:
    size, limit = facts.request_size_bytes, facts.max_request_bytes
    if size is None or limit is None or size <= limit:
        return _PASS
    return Verdict(False, f"Request size ({size} bytes) exceeds limit ({limit} bytes)", "Reduce request payload size")


def _array_size(facts: GateFacts) -> Verdict:
    if not facts.array_size_violations:
        return _PASS
    said = ", ".join(f"{each.path} has {each.actual} items (max: {each.limit})" for each in facts.array_size_violations)
    return Verdict(False, f"Array size violations: {said}", "Reduce array sizes or paginate requests")


def _timeout_audit(facts: GateFacts) -> Verdict:
    if not facts.duration_ms or not facts.timeout_ms or facts.duration_ms / facts.timeout_ms <= NEAR_TIMEOUT:
        return _PASS
    audit = {
        "event": "near_timeout",
        "tool": facts.tool_name,
        "durationMs": facts.duration_ms,
        "timeoutMs": facts.timeout_ms,
        "ratio": f"{facts.duration_ms / facts.timeout_ms:.1%}",
    }
    return Verdict(True, audit=audit)


POLICY = GatePolicy(
    "mcp-runtime-policy",
    "MCP Runtime Governance",
    "Ensures MCP operations meet runtime governance requirements",
    (
        Gate(
            "memory-pressure-check",
            "Memory Pressure Check",
            "Refuses calls while the process's memory is nearly all that it may use",
            _memory_pressure,
        ),
        Gate("request-size-check", "Request Size Check", "Refuses oversized requests", _request_size),
        Gate("array-size-check", "Array Size Check", "Refuses requests with oversized arrays", _array_size),
        Gate("timeout-audit", "Timeout Audit", "Notes calls that came close to their deadline", _timeout_audit),
    ),
)
_BEFORE, _AFTER = POLICY.gates[:-1], POLICY.gates[-1]


class Decision(Struct, frozen=True, omit_defaults=True):
    """What a gate decided about one call, as the completion record has it."""

    gate: str
    decision: Literal["warn", "fail", "audit"]
    reason: str | None = None
    recommendation: str | None = None
    audit: Mapping[str, Any] | None = None


class Listed(Struct, frozen=True):
    """A gate as operators see it."""

    id: str
    name: str
    description: str
    mode: Mode


def listed(config: GuardsConfig) -> list[Listed]:
    """The gates, in order, each with the mode that it is in."""
    return [Listed(gate.id, gate.name, gate.description, config.gates.get(gate.id, "enforce")) for gate in POLICY.gates]


class Guards:
    """The policy as it is configured, with the process's memory to judge by."""

    def __init__(self, config: GuardsConfig, limits: LimitsConfig, pressure: PressureMonitor) -> None:
        self.policy = POLICY
        self.pressure = pressure
        self._modes = {gate.id: gate.mode for gate in listed(config)}
        self._max_request_bytes = limits.max_request_bytes
        self.audits = self._modes[_AFTER.id] != "off"

    def before(self, call: Call, violations: Violations) -> None:
        """Ask the gates that stand before the handler; raises what the first that fails and is enforced says."""
        facts = GateFacts(
            tool_name=call.name,
            pressure_level=self.pressure.level,
            request_size_bytes=call.payload_bytes,
            max_request_bytes=self._max_request_bytes,
            array_size_violations=tuple(each for each in violations.listed if each.code == ARRAY_TOO_LARGE),
            array_size_violation_count=violations.counts.get(ARRAY_TOO_LARGE, 0),
        )
        for gate in _BEFORE:
            mode = self._modes[gate.id]
            if mode == "off":
                continue
            verdict = gate.judge(facts)
            if not verdict.passed and mode == "enforce":
                self._note(
                    call, Decision(gate.id, "fail", _for_the_record(gate, verdict, facts), verdict.recommendation)
                )
                raise _refusal(gate, verdict, facts)
            if not verdict.passed or verdict.warning is not None:
                self._note(
                    call, Decision(gate.id, "warn", _for_the_record(gate, verdict, facts), verdict.recommendation)
                )
        rest = [each for each in violations.listed if each.code != ARRAY_TOO_LARGE]
        if rest:
            total = violations.total - facts.array_size_violation_count
            raise LimitExceeded(
                "Arguments exceed a limit", {"errors": to_builtins(rest), "total": total, **set_by(rest)}
            )

    def after(self, call: Call, timeout_ms: int) -> None:
        """Ask the gate that looks back."""
        verdict = _AFTER.judge(GateFacts(tool_name=call.name, duration_ms=call.duration_ms, timeout_ms=timeout_ms))
        if verdict.audit is not None:
            self._note(call, Decision(_AFTER.id, "audit", audit=verdict.audit))

    @staticmethod
    def _note(call: Call, decision: Decision) -> None:
        call.decisions = (*call.decisions, decision)


def _for_the_record(gate: Gate, verdict: Verdict, facts: GateFacts) -> str | None:
    """What a gate said, without the names of members, which are the client's data."""
    if gate.judge is _array_size:
        return f"Array size violations: {facts.array_size_violation_count}"
    return verdict.warning or verdict.reason


def set_by(violations: Iterable[Violation]) -> dict[str, str]:
    """The setting of the first limit that is exceeded, for `details`; nothing if only the schema has limits."""
    return next(({"setting": each.setting} for each in violations if each.setting is not None), {})


def _refusal(gate: Gate, verdict: Verdict, facts: GateFacts) -> ToolError:
    said: dict[str, Any] = {"gate": gate.id, "recommendation": verdict.recommendation}
    assert verdict.reason is not None
    if gate.judge is _array_size:
        errors, total = to_builtins(list(facts.array_size_violations)), facts.array_size_violation_count
        said |= set_by(facts.array_size_violations)
        return LimitExceeded(verdict.reason, {"errors": errors, "total": total, **said})
    if gate.judge is _memory_pressure:
        said["setting"] = "guards.memory_budget_bytes"
        return MemoryPressure(verdict.reason, {"reason": "memory_pressure", "retryable": True, **said})
    assert facts.request_size_bytes is not None
    assert facts.max_request_bytes is not None
    refusal = PayloadTooLarge(facts.request_size_bytes, facts.max_request_bytes, "limits.max_request_bytes")
    refusal.message, refusal.details = verdict.reason, {**(refusal.details or {}), **said}
    return refusal
