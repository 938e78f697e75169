"""Every call leaves one thin record, written when its handler has really ended."""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.calls.call import Call, Completion, Outcome, Service
from dragoman.calls.resources import Resources
from dragoman.calls.under_way import CallsUnderWay
from dragoman.clock import Clock
from dragoman.errors import Aborted, InternalError, InternalFailure, ResourceExhausted, ToolError
from dragoman.telemetry.log import CompletionRecord, Logger, exception_facts
from dragoman.tools.tool import MOST_NAME

RETRY_HINT = "Clients should retry with exponential backoff and jitter."
_SUCCESS = Completion.SUCCESS
_NOT_COUNTED = frozenset({Completion.PROTOCOL_ERROR, Completion.TIMEOUT})
_WORDS = {completion: completion.value for completion in Completion}
_WARNINGS = frozenset({Completion.LATE_COMPLETED, Completion.TIMEOUT, Completion.PROTOCOL_ERROR})


class _Cancelled(InternalFailure):
    """The handler stopped because it was asked to."""


@dataclass(frozen=True)
class RecordCompletion:
    """Turns refusals into outcomes, and writes the record: ids, name, time, sizes and outcome; never the data."""

    logger: Logger
    clock: Clock
    resources: Resources
    under_way: CallsUnderWay

    def __call__(self, proceed: Service, /) -> Service:
        monotonic, record_end, ended = self.clock.monotonic, self.record, self.under_way.end

        async def record(call: Call) -> Outcome:
            call.started = monotonic()
            aborted = False
            try:
                try:
                    outcome = await proceed(call)
                except ToolError as error:
                    outcome = self._refused(call, error)
                except Aborted:
                    aborted = True
                    outcome = Outcome(error=_Cancelled("The call was cancelled", {"reason": "aborted"}))
                call.duration_ms = int((monotonic() - call.started) * 1e6) / 1000
                try:
                    call.answer(outcome)  # First, so that the client does not wait for the log.
                except ToolError as error:
                    outcome = self._refused(call, error)
                    call.answer(outcome)
                record_end(call, _completion(call, outcome, aborted), outcome.error)
            except Exception as error:  # The boundary: what arrives here is a defect of ours, not the tool's.
                outcome = self._failed(call, error)
            finally:
                ended(call)
            return outcome

        return record

    def _refused(self, call: Call, error: ToolError) -> Outcome:
        if isinstance(error, InternalFailure) and error.__cause__ is not None:
            self._log_cause("tool failed", call, error.code, error.__cause__)
        return Outcome(error=error)

    def _failed(self, call: Call, error: Exception) -> Outcome:
        self._log_cause("call failed outside its tool", call, InternalError.code, error)
        failure = InternalError("Internal error")
        self.record(call, Completion.PROTOCOL_ERROR, failure)
        outcome = Outcome(error=failure)
        call.answer(outcome)
        return outcome

    def _log_cause(self, message: str, call: Call, code: str | int, cause: BaseException) -> None:
        ids = {"runId": call.run_id, "correlationId": call.correlation_id, "toolName": call.name[:MOST_NAME]}
        self.logger.error(message, {**ids, **exception_facts(cause, code)})

    def record(self, call: Call, completion: Completion, error: ToolError | InternalError | None = None) -> None:
        """Write the call's record, unless it has one."""
        if call.completed:
            return
        call.completed = True
        record = CompletionRecord(
            self.clock.timestamp(),
            "info",
            "tool call completed",
            call.run_id,
            call.correlation_id,
            call.name if call.tool is not None else call.name[:MOST_NAME],
            call.duration_ms,
            _WORDS[completion],
            call.payload_bytes,
        )
        refused = False
        if completion is not _SUCCESS:
            refused = isinstance(error, ResourceExhausted) and not call.ran
            if error is not None:
                record.error_code = Aborted.code if isinstance(error, _Cancelled) else error.code
            if refused:
                record.hint = RETRY_HINT
            if refused or completion in _WARNINGS:
                record.level = "warn"
        if refused:
            self.resources.consecutive_refusals += 1
        elif completion not in _NOT_COUNTED:
            self.resources.consecutive_refusals = 0
        self.logger.record(record)


def _completion(call: Call, outcome: Outcome, aborted: bool) -> Completion:
    if call.expired:
        return Completion.LATE_COMPLETED
    if aborted:
        return Completion.ABORTED
    if call.disconnected:
        return Completion.DISCONNECTED_COMPLETED
    return _SUCCESS if outcome.error is None else Completion.TOOL_ERROR
