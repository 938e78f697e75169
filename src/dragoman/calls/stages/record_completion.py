"""Every call leaves one thin record, written when its handler has really ended."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from dragoman.calls.call import Call, Completion, Outcome, Service
from dragoman.calls.guards import NEAR_TIMEOUT, Guards
from dragoman.calls.interrupts import raise_if_stopped
from dragoman.calls.origin import LOCAL_TRANSPORT
from dragoman.calls.run_handler import meaning_of
from dragoman.calls.slots import Slots
from dragoman.clock import Clock
from dragoman.errors import (
    Aborted,
    InternalError,
    InternalFailure,
    ProtocolError,
    ResourceExhausted,
    ToolError,
    drop_tracebacks,
)
from dragoman.schemas.sensitive import Hide, hide_within, hiding
from dragoman.telemetry.log import CompletionRecord, Logger, exception_facts
from dragoman.tools.tool import MOST_NAME

Observer: TypeAlias = Callable[[CompletionRecord, Call], None]
"""Looks at a record and its call, quickly, and changes neither; never raises."""

RETRY_HINT = "Clients should retry with exponential backoff and jitter."
_SUCCESS = Completion.SUCCESS
_NOT_COUNTED = frozenset({Completion.PROTOCOL_ERROR, Completion.TIMEOUT})
_WARNINGS = frozenset({Completion.LATE_COMPLETED, Completion.TIMEOUT, Completion.PROTOCOL_ERROR})


class Interrupted(InternalFailure):
    """The handler stopped because it was asked to."""


@dataclass(frozen=True)
class RecordCompletion:
    """Turns refusals into outcomes, and writes the record: ids, name, time, sizes and outcome; never the data."""

    logger: Logger
    clock: Clock
    slots: Slots
    guards: Guards
    under_way: MutableMapping[Call, Any] = field(repr=False)  # Their arguments are for nobody's eyes.
    """Calls that have not ended: answered, recorded, and their slots given back."""
    observers: list[Observer] = field(default_factory=list)
    """Who else is shown every record, on the event loop, once it is written."""
    event: str = "tool call completed"
    timeout_ms: int | None = None
    """In place of each tool's own."""

    def __call__(self, proceed: Service, /) -> Service:
        monotonic, record_end, forget = self.clock.monotonic, self.record, self.under_way.pop
        audits, audit, timeout_ms = self.guards.audits, self.guards.after, self.timeout_ms

        async def record(call: Call) -> None:
            call.started = monotonic()
            outcome: Outcome | None
            try:
                try:
                    try:
                        outcome = Outcome(await proceed(call))
                    finally:
                        undo = call.undo
                        while undo:
                            undo.pop()(call)
                except BaseException as error:
                    outcome = self._outcome_of(call, error)
                call.duration_ms = int((monotonic() - call.started) * 1e6) / 1000
                try:
                    if not call.answered:  # As `call.answer`. First, so that the client does not wait for the log.
                        call.reply(call, outcome)
                        call.answered = True
                except ToolError as error:
                    outcome = self._outcome_of(call, error)
                    call.answer(outcome)
                if audits and call.ran and call.duration_ms > NEAR_TIMEOUT * (timeout_ms or call.tool.timeout_ms):
                    audit(call, timeout_ms or call.tool.timeout_ms)
                if outcome.error is None and not call.expired and not call.disconnected:
                    record_end(call, _SUCCESS)
                else:
                    record_end(call, _completion(call, outcome), outcome.error)
            except BaseException as error:
                # The boundary: a defect of ours, of an application's stage, or of a type that a tool answers with.
                raise_if_stopped(error)
                self._failed(call, error)
            finally:
                forget(call, None)  # A stop of the server may have given it up.
                outcome = None  # Its error leads to this frame: only the garbage collector would free the two.

        return record

    def _outcome_of(self, call: Call, error: BaseException) -> Outcome:
        """What an exception means for the call; raises it again when it is not about the call."""
        meaning = meaning_of(error, call) if call.ran else error
        if isinstance(meaning, Aborted):
            meaning = Interrupted("The call was cancelled", {"reason": "aborted"})
        elif isinstance(meaning, ToolError):
            self._log_failure(call, meaning)
        elif not isinstance(meaning, ProtocolError):  # A stage's; a handler's has been turned into something else.
            raise meaning
        if call.origin.transport != LOCAL_TRANSPORT:
            drop_tracebacks(error)
        return Outcome(error=meaning)

    def _log_failure(self, call: Call, error: ToolError) -> None:
        hide = _hiding(call)
        if hide is not None:
            _hide_in(error, hide)
        if isinstance(error, InternalFailure) and error.__cause__ is not None:
            self._log_cause("tool failed", call, error.code, error.__cause__)

    def _failed(self, call: Call, error: BaseException) -> None:
        self._log_cause("call failed outside its tool", call, InternalError.code, error)
        failure = InternalError("Internal error")
        self.record(call, Completion.PROTOCOL_ERROR, failure)
        call.answer(Outcome(error=failure))

    def _log_cause(self, message: str, call: Call, code: str | int, cause: BaseException) -> None:
        ids = {"runId": call.run_id, "correlationId": call.correlation_id, "toolName": call.name[:MOST_NAME]}
        facts, hide = exception_facts(cause, code), _hiding(call)
        self.logger.error(message, {**ids, **(facts if hide is None else hide_within(hide, facts))})

    def record(self, call: Call, completion: Completion, error: ToolError | ProtocolError | None = None) -> None:
        """Write the call's record, unless it has one."""
        if call.completed:
            return
        call.completed = True
        record = CompletionRecord(
            self.clock.timestamp(),
            "info",
            self.event,
            call.run_id,
            call.correlation_id,
            call.name,
            call.duration_ms,
            completion._value_,
            call.payload_bytes,
        )
        if call.decisions:
            record.guards = call.decisions
        if call.cached:
            record.cached = True
        if call.asked:
            record.asked = call.asked
            if not call.origin.is_modern:
                record.waited_ms = call.waited_ms
        if call.trace_ids is not None:
            record.trace_id, record.span_id = call.trace_ids
        if completion is _SUCCESS:
            self.slots.consecutive_refusals = 0
        else:
            self._particulars(record, call, completion, error)
        self.logger.record(record)
        for watch in self.observers:
            try:
                watch(record, call)
            except (Exception, SystemExit) as failure:  # Of a part: the others are shown the record all the same.
                self._log_cause("an observer failed", call, InternalError.code, failure)

    def _particulars(
        self, record: CompletionRecord, call: Call, completion: Completion, error: ToolError | ProtocolError | None
    ) -> None:
        """What a record says about a call that did not simply succeed."""
        refusal = error if isinstance(error, ResourceExhausted) and not call.ran else None
        record.tool_name = call.name[:MOST_NAME]  # It may be anything when there is no such tool.
        if error is not None:
            record.error_code = Aborted.code if isinstance(error, Interrupted) else str(error.code)
        if refusal is not None:
            details = refusal.details or {}
            if details.get("retryable") is not False:
                record.hint = RETRY_HINT
            if "reason" in details:
                record.reason = details["reason"]
            self.slots.consecutive_refusals += refusal.is_servers_own
        elif completion not in _NOT_COUNTED:
            self.slots.consecutive_refusals = 0
        if refusal is not None or completion in _WARNINGS:
            record.level = "warn"


def _hiding(call: Call) -> Hide | None:
    """A function that removes the sensitive arguments of a call from a text; None if there are none."""
    if not call.tool.may_be_marked:
        return None
    return hiding(call.tool.definition.input_schema, call.raw_arguments)


def _hide_in(error: ToolError, hide: Hide) -> None:
    error.message, error.details = hide(str(error.message)), hide_within(hide, error.details)
    if error.plain is not None:
        error.plain = hide(str(error.plain))


def _completion(call: Call, outcome: Outcome) -> Completion:
    """How a call ended that did not simply succeed."""
    if call.expired:
        return Completion.LATE_COMPLETED
    if isinstance(outcome.error, Interrupted):
        return Completion.ABORTED
    if isinstance(outcome.error, ProtocolError):
        return Completion.PROTOCOL_ERROR
    return Completion.DISCONNECTED_COMPLETED if call.disconnected else Completion.TOOL_ERROR
