"""Calls with an idempotency key, and calls that become tasks, on their way through the pipeline.

1. A key belongs to a caller and a tool. The first call with it runs. Its outcome is stored before it is answered, and
   is what every repeat gets. A repeat that comes while the first one runs waits for it, under its own deadline. An
   outcome that cannot be stored is not answered: the stored one is, if there is one, and UNKNOWN otherwise.
2. Within a process only one call with a key goes on at a time, and those that wait for it take no slots. Between
   processes the store decides, in one statement.
3. Most keys are new, so a key is looked up by the statement that stores the run, when the call has its slot. A repeat
   gives the slot back at once. A call that is refused earlier looks its key up on a reader: a repeat gets the stored
   outcome even if all slots are taken. So does a call of a tool with questions, before its client is asked again.
4. Outcomes that repeating could change are not stored: refusals, and errors that say that they are retryable. After
   those a repeat runs.
5. Read-only tools have no effect to repeat, and ignore keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dragoman.agents.ledger import EntryStatus
from dragoman.agents.senders import client_source
from dragoman.calls.call import Call, Outcome, Service
from dragoman.calls.intake import Intake
from dragoman.calls.origin import LOCAL_TRANSPORT
from dragoman.calls.repeats import IDEMPOTENCY_KEY, check_key, key_conflict, until_told
from dragoman.calls.run_handler import meaning_of
from dragoman.errors import (
    InternalFailure,
    MissingCapability,
    ProtocolError,
    RequestConflict,
    ToolError,
)
from dragoman.protocol.versions import CAPABILITIES_KEY, TASKS_EXTENSION
from dragoman.tasks.client import TASK_MAKER
from dragoman.tasks.port import Ended, NewRun, Released, Run, encoded_arguments
from dragoman.tasks.running import TaskRuns
from dragoman.tasks.store import RunStore, stored_now
from dragoman.tasks.stored import encode_error, encode_value, outcome_in, unknown_outcome
from dragoman.tools.storage_errors import is_uncertain

_LARGE_PART = 4
_WAITING = (LOCAL_TRANSPORT, "explorer")
"""Transports without a client of MCP: Python code and the explorer wait for any call."""
_REQUIRED: Mapping[str, Any] = {"extensions": {TASKS_EXTENSION: {}}}


class KeptAs(Struct, frozen=True):
    """How the outcome of a call is kept."""

    owner: str
    request_id: str | None
    """Made of the tool's name and the key; None for a task without a key."""
    is_task: bool
    arguments: bytes


class _Flight(Struct, eq=False):
    """A call with a key that is under way in this process."""

    arguments: bytes
    ended: asyncio.Future[bytes | None]
    """The stored outcome; None if nothing was stored, and the next repeat has to run."""


class Keeping:
    """Implements `Repeats`."""

    def __init__(
        self, store: RunStore, tasks: TaskRuns, get_intake: Callable[[], Intake], most_bytes: int, ttl_ms: int
    ) -> None:
        self._store = store
        self._get_intake = get_intake
        self._tasks = tasks
        self._most = most_bytes
        self._ttl = ttl_ms / 1000
        self._flights: dict[tuple[str, str], _Flight] = {}
        self.joined = self.replayed = 0

    def join(self, call: Call, proceed: Service) -> Awaitable[Any]:
        """See `Repeats`. Raises `InvalidParams` for a key that is none, and `MissingCapability`."""
        tool, key = call.tool.definition, call.meta.get(IDEMPOTENCY_KEY)
        is_task = call.tool.task is not None and _becomes_task(call)
        if IDEMPOTENCY_KEY in call.meta:
            check_key(key)
        if tool.hints.read_only:
            key = None
        if key is None and not is_task:
            return proceed(call)
        if call.origin.client is TASK_MAKER:
            call.tool = replace(call.tool, questions=())  # The task itself asks.
        owner = client_source(call.origin.caller)
        # No tool's name has a space in it.
        request_id = None if key is None else f"{tool.name} {key}"
        call.kept_as = kept_as = KeptAs(owner, request_id, is_task, encoded_arguments(call.arguments))
        if request_id is None:
            return proceed(call)
        return self._join(call, kept_as, (owner, request_id), proceed)

    def keep(self, call: Call, proceed: Service, let_go: Callable[[Call], None], take_again: Service) -> Awaitable[Any]:
        """See `Repeats`."""
        kept_as: KeptAs = call.kept_as
        if kept_as.is_task:
            let_go(call)
            return self._create(call, kept_as)
        return self._keep(call, kept_as, proceed, let_go, take_again)

    async def _join(self, call: Call, kept_as: KeptAs, key: tuple[str, str], proceed: Service) -> Any:
        while True:
            flight = self._flights.get(key)
            if flight is None:
                break
            if flight.arguments != kept_as.arguments:
                raise key_conflict()
            self.joined += 1
            stored = await until_told(call, flight.ended)
            if stored is not None:
                return self._repeated(call, outcome_in(stored))
        flight = self._flights[key] = _Flight(kept_as.arguments, asyncio.get_running_loop().create_future())
        try:
            return await self._first(call, kept_as, proceed)
        finally:
            del self._flights[key]
            if not flight.ended.done():
                flight.ended.set_result(None)
            del flight  # An error in it leads back here, through its traceback.

    async def _first(self, call: Call, kept_as: KeptAs, proceed: Service) -> Any:
        """The only call with its key that is under way in this process."""
        asks = bool(call.tool.questions)
        run = await self._settled_run(call, kept_as) if asks else None
        if run is None:
            call.cancellation.raise_if_set()  # Its time may be up by now.
            try:
                return await proceed(call)
            except ToolError as error:
                if call.ran or call.repeated or asks or is_uncertain(error):
                    raise
                run = await self._settled_run(call, kept_as)
                if run is None:
                    raise
        return self._again(call, kept_as, run)

    async def _settled_run(self, call: Call, kept_as: KeptAs) -> Run | None:
        """The stored run with the same key, once it has ended; None if this call has to run."""
        assert kept_as.request_id is not None
        has_joined = False
        while True:
            changes = self._store.changes
            run = await stored_now(self._store.runs.find(owner=kept_as.owner, request_id=kept_as.request_id))
            if run is None:
                return None
            if run.arguments != kept_as.arguments:
                raise key_conflict()
            if run.waits_for_repeat:
                return None
            if _is_settled(run):
                return run
            if run.is_held:
                await stored_now(self._store.check())
                self.joined += not has_joined  # Once, however often the store changes meanwhile.
                has_joined = True
                look_seldom = self._store.runs.look_often()
                try:
                    await until_told(call, changes)
                finally:
                    look_seldom()
            else:
                await stored_now(self._store.sweep())

    async def _keep(
        self, call: Call, kept_as: KeptAs, proceed: Service, let_go: Callable[[Call], None], take_again: Service
    ) -> Any:
        assert kept_as.request_id is not None
        while True:
            new = self._store.new_run(call, kept_as.owner, kept_as.request_id, kept_as.arguments, self._ttl)
            run = await self._begun(new)
            if run is None:
                continue
            if run.is_new:
                return await self._run(call, run, kept_as, proceed)
            # A repeat, or another process was faster. What that came to needs no slot of ours.
            let_go(call)
            settled = run if _is_settled(run) else await self._settled_run(call, kept_as)
            if settled is not None:
                return self._again(call, kept_as, settled)
            await take_again(call)

    async def _begun(self, new: NewRun) -> Run | None:
        """The run of a call, new if this call is to run it; None if it has to be looked for again."""
        try:
            run = await stored_now(self._store.add(new))
            if run.waits_for_repeat:
                begun = await stored_now(self._store.begin(run.number))
                return None if begun is None else replace(begun, is_new=True)
        except RequestConflict:
            raise key_conflict() from None
        return run

    async def _run(self, call: Call, run: Run, kept_as: KeptAs, proceed: Service) -> Any:
        """Run the call that was stored, and store what it comes to."""
        try:
            call.cancellation.raise_if_set()
            value = await proceed(call)
            stored = encode_value(value, self._most)
            self._check_answer(call, value, stored)
        except BaseException as error:
            is_over, failure = _failure_in(error, call)
            if not is_over or await self._end(run, kept_as, failure) or failure is None:
                raise
        else:
            if await self._end(run, kept_as, stored):
                return value
        return self._again(call, kept_as, await self._stored_elsewhere(call, kept_as))

    async def _stored_elsewhere(self, call: Call, kept_as: KeptAs) -> Run:
        """The run of a call whose own outcome could not be stored, as another process has ended it.

        Raises `InternalFailure` if there is none: no repeat would get what this call came to.
        """
        settled, cause = None, None
        try:
            settled = await self._settled_run(call, kept_as)
        except ToolError as error:  # The storage has failed, or is closed.
            cause = error
        if settled is None:
            facts = {"outcome": "UNKNOWN", "retryable": call.tool.definition.hints.are_harmless}
            raise InternalFailure("The outcome of the call could not be stored", facts) from cause
        return settled

    def _check_answer(self, call: Call, value: Any, stored: bytes) -> None:
        """Raise `ResultTooLarge` for a value that cannot be answered, although its JSON alone might."""
        if len(stored) > self._most // _LARGE_PART:  # Others fit, twice and escaped.
            self._get_intake().render(call, Outcome(value))

    async def _end(self, run: Run, kept_as: KeptAs, stored: bytes | None) -> bool:
        """Whether that could be stored."""
        now = self._store.now()
        change: Ended | Released = Released(run.number, run.fence, now)
        if stored is not None:
            change = Ended(
                number=run.number,
                fence=run.fence,
                at=now,
                expires_at=now + self._ttl,
                status=EntryStatus.COMPLETED,
                result=stored,
                message_id=self._store.message_id(),
            )
        if await self._store.change_at_last(change) is None:
            return False
        self._tell(kept_as, stored)
        return True

    def _tell(self, kept_as: KeptAs, stored: bytes | None) -> None:
        """Give an outcome to those in this process that wait for it."""
        flight = self._flights.get((kept_as.owner, kept_as.request_id or ""))
        if stored is not None and flight is not None and not flight.ended.done():
            flight.ended.set_result(stored)

    async def _create(self, call: Call, kept_as: KeptAs) -> Any:
        while True:
            try:
                run = await self._tasks.create(call, kept_as.owner, kept_as.request_id, kept_as.arguments)
            except RequestConflict:
                raise key_conflict() from None
            if run.is_new:
                return self._tasks.handle_of(run)
            # A repeat, of a task or of a plain call.
            settled = run if _is_settled(run) else await self._settled_run(call, kept_as)
            if settled is not None:
                return self._again(call, kept_as, settled)
            if run.waits_for_repeat and (begun := await stored_now(self._store.begin(run.number))) is not None:
                # Its repeat is a task: forget the plain call.
                await self._store.change_at_last(Released(begun.number, begun.fence, self._store.now()))

    def _outcome_of(self, run: Run, kept_as: KeptAs) -> Outcome:
        if run.task_id is not None:
            # To a client that takes no tasks, the handle of one would be no answer.
            return Outcome(self._tasks.handle_of(run)) if kept_as.is_task else Outcome(error=key_conflict("for a task"))
        if run.result is None:
            return Outcome(error=unknown_outcome())
        return outcome_in(run.result)

    def _again(self, call: Call, kept_as: KeptAs, run: Run) -> Any:
        """The outcome of an earlier run, for its repeat and for those that wait here."""
        if run.task_id is None:
            self._tell(kept_as, run.result)
        return self._repeated(call, self._outcome_of(run, kept_as))

    def _repeated(self, call: Call, outcome: Outcome) -> Any:
        self.replayed += 1
        call.repeated = True
        return outcome.unwrap()


def _is_settled(run: Run) -> bool:
    """Whether it has an outcome for a repeat: of a task, that is its handle."""
    return not run.is_open or run.task_id is not None


def declares_tasks(capabilities: Any) -> bool:
    """Whether a client's capabilities name the extension."""
    extensions = capabilities.get("extensions") if isinstance(capabilities, Mapping) else None
    return isinstance(extensions, Mapping) and isinstance(extensions.get(TASKS_EXTENSION), Mapping)


def missing_extension(what: str) -> MissingCapability:
    """The error for a request that takes a client with the extension."""
    return MissingCapability(
        f"{what} needs a client that declares the extension {TASKS_EXTENSION}", {"requiredCapabilities": _REQUIRED}
    )


def _becomes_task(call: Call) -> bool:
    """Whether the call's client takes a task for an answer; raises `MissingCapability` if it has to and does not."""
    origin = call.origin
    if origin.is_modern and declares_tasks(call.meta.get(CAPABILITIES_KEY)):
        return True
    if call.tool.task == "required" and origin.transport not in _WAITING:
        raise missing_extension("The tool")
    return False


def _failure_in(error: BaseException, call: Call) -> tuple[bool, bytes | None]:
    """Whether a call has ended with an error, and the error to store if it is final.

    At a stop, or an interrupt, it has not: `RunStore.close` looks after it.
    """
    meaning = meaning_of(error, call) if call.ran else error
    if call.ran and isinstance(meaning, ToolError | ProtocolError) and not _is_retryable(meaning, call):
        return True, encode_error(meaning)
    return isinstance(meaning, Exception), None


def _is_retryable(error: ToolError | ProtocolError, call: Call) -> bool:
    if not isinstance(error, ToolError):
        return False
    if is_uncertain(error):
        return call.tool.definition.hints.are_harmless
    return (error.details or {}).get("retryable") is True
