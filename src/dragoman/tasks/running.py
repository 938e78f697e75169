"""Runs of tasks: each is a call of its own, through a pipeline with slots of its own.

1. A task that is created begins at once if there is room, and waits in the store otherwise. Whichever process has room
   first begins it.
2. The answer of the call is what the task comes to. It is stored as soon as that is possible.
3. A call that was interrupted by the end of the server is given back: what may be repeated waits for the next start.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from dragoman.agents.ledger import EntryStatus
from dragoman.agents.senders import as_caller
from dragoman.calls.call import Call, Outcome
from dragoman.calls.intake import Intake
from dragoman.calls.origin import Origin
from dragoman.calls.pipeline import Pipeline
from dragoman.calls.settings import LimitsConfig, ResourcesConfig
from dragoman.calls.stages.record_completion import Interrupted
from dragoman.calls.stages.take_slot import TakeSlot
from dragoman.clock import iso_milliseconds
from dragoman.errors import (
    Abandoned,
    ErrorCode,
    InternalError,
    LeaseLost,
    NoFreeSlot,
    ProtocolError,
    Stopping,
    StorageError,
)
from dragoman.protocol.kept import known_capabilities
from dragoman.protocol.results import TaskCreated
from dragoman.tasks.client import TaskClient
from dragoman.tasks.port import Ended, Note, Released, Run, RunChange, RunQuery, StoredQuestion, Unasked
from dragoman.tasks.queue import QueuedTask, TaskQueue
from dragoman.tasks.settings import TasksConfig
from dragoman.tasks.store import RunStore, stored_now
from dragoman.tasks.stored import UNKNOWN_OUTCOME, JsonRpcError, encode_json_rpc, encode_result
from dragoman.telemetry.causes import hidden_cause, with_causes
from dragoman.telemetry.log import Logger, exception_facts
from dragoman.tools.catalogue import Catalogue
from dragoman.tools.tool import MOST_NAME

TRANSPORT = "task"
_NOTE_SECONDS = 0.25
_MOST_MESSAGE = 1000
_TASK_BYTES = 24
"""Random ones, in an id of hexadecimal digits: others may begin with a hyphen, as options of commands do."""


class _Running(Struct, eq=False):
    """A task that runs here."""

    run: Run
    call: Call
    client: TaskClient
    queued: QueuedTask
    is_told: bool = False
    """Whether a note about its progress is about to be stored."""
    said: tuple[float, float | None, str | None] | None = None
    asks: int = 0
    """Questions that wait for an answer. A handler may ask several things at once."""
    is_resting: bool = False
    """Whether it has given its slot, and its place in the queue, to others."""
    look_seldom: Callable[[], None] = lambda: None
    """Ends that other processes' answers and cancellations are looked for often."""


class TaskRuns:
    """The tasks of this process. Lives on the event loop."""

    def __init__(
        self,
        store: RunStore,
        config: TasksConfig,
        resources: ResourcesConfig,
        limits: LimitsConfig,
        catalogue: Catalogue,
        logger: Logger,
        server_info: Mapping[str, Any],
        *,
        runs_tasks: bool,
    ) -> None:
        self._store = store
        self.config = config
        self._runs_tasks = runs_tasks
        self._queue = TaskQueue(config, resources, limits)
        self._catalogue = catalogue
        self._logger = logger
        self._server_info = server_info
        self.running: dict[int, _Running] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self.repeated = 0
        """Runs that were begun again."""

    def start(self, intake: Intake, pipeline: Pipeline) -> None:
        """Take runs from now on."""
        self._intake = intake
        (self._take_slot,) = (stage for stage in pipeline.stages if isinstance(stage, TakeSlot))
        self._queue.is_open = self._runs_tasks

    def drain(self) -> None:
        """Begin nothing more."""
        self._queue.is_open = False

    async def stop(self) -> None:
        """Finish storing what has ended."""
        self.drain()
        while self._tasks:  # One that is about to begin is given back, which is more work.
            await asyncio.wait(self._tasks)

    # Tasks that come.

    async def create(self, call: Call, owner: str, request_id: str | None, arguments: bytes) -> Run:
        """Store the task that a call becomes, and begin it if there is room.

        Raises `NoFreeSlot` when too many wait, and `RequestConflict`.
        """
        queued = QueuedTask.of(call.tool.definition.name, call.origin.caller)
        begins = self._queue.may_begin(queued)
        if not self._runs_tasks:
            await self._check_store()
        task_id, client = secrets.token_hex(_TASK_BYTES), call.origin.client
        new = self._store.new_run(
            call,
            owner,
            request_id or task_id,
            arguments,
            self.config.kept_seconds(has_key=request_id is not None),
            begins=begins,
            task_id=task_id,
            capabilities=msgspec.json.encode({} if client is None else known_capabilities(client.capabilities)),
            answers=_answers_of(call),
        )
        # Before anything is awaited: others are created meanwhile.
        with self._about_to_begin(queued) if begins else self._queue.about_to_wait(queued):
            run = await stored_now(self._store.add(new))
        queued = msgspec.structs.replace(queued, number=run.number)
        if run.is_new and begins:
            self._queue.begun(queued)
            self._begin(run, queued)
        elif run.is_new and self._runs_tasks:
            self._queue.add(queued)
            self.start_waiting()
        return run

    @contextmanager
    def _about_to_begin(self, queued: QueuedTask) -> Iterator[None]:
        self._queue.begun(queued)
        try:
            yield
        finally:
            self._queue.ended(queued)

    def begin_here(self, run: Run) -> None:
        """Begin one task that waits, in a process that takes up no others. Another process may be faster."""
        queued = QueuedTask.of(run.tool, as_caller(run.caller), run.number)
        self._queue.begun(queued)
        self._do(self._begin_waiting(queued))

    def look_at(self, runs: list[Run]) -> None:
        """Take up tasks that wait, whoever created them."""
        for run in runs:
            if run.number not in self.running:
                self._queue.add(QueuedTask.of(run.tool, as_caller(run.caller), run.number))
        self.start_waiting()

    @property
    def reach(self) -> int:
        """How many tasks that wait in the store to give to `look_at`."""
        return self._queue.reach

    def start_waiting(self) -> None:
        """Begin tasks that wait, in their order, as far as there is room."""
        for queued in self._queue.take_next():
            self._do(self._begin_waiting(queued))

    def handle_of(self, run: Run) -> TaskCreated:
        """The answer to the call that created the task."""
        base = self.base_of(run)
        return TaskCreated(
            task_id=base["taskId"],
            status=base["status"],
            created_at=base["createdAt"],
            last_updated_at=base["lastUpdatedAt"],
            ttl_ms=base["ttlMs"],
            poll_interval_ms=base["pollIntervalMs"],
        )

    def base_of(self, run: Run) -> dict[str, Any]:
        """The facts that every answer about a task has."""
        return {
            "taskId": run.task_id,
            "status": status_of(run),
            "createdAt": _iso(run.created_at),
            "lastUpdatedAt": _iso(run.updated_at),
            "ttlMs": self._ttl_of(run),
            "pollIntervalMs": self.config.poll_interval_ms,
        }

    def saw(self, run: Run) -> None:
        """A request, or another process, has changed a run."""
        if run.status is not EntryStatus.WAITING:
            self._queue.remove(run.number)
        here = self.running.get(run.number)
        if here is not None and here.run.fence == run.fence:
            here.client.seen(run)
            if run.is_cancelled:
                here.call.cancellation.set("client")

    def kept_seconds(self, run: Run) -> float:
        """How long a task is kept after it has ended."""
        return self.config.kept_seconds(has_key=run.has_key)

    def _ttl_of(self, run: Run) -> int:
        """From its creation; a task that runs for longer is kept as long again."""
        if not run.is_open:
            return round((run.expires_at - run.created_at) * 1000)
        whole = round(self.kept_seconds(run) * 1000)
        return whole * (1 + int(max(0.0, self._store.now() - run.created_at) * 1000) // whole)

    async def _check_store(self) -> None:
        """Raise `NoFreeSlot` when too many wait, where others run what is stored and the queue knows nothing of it."""
        most = self.config.max_waiting
        waiting = await stored_now(self._store.runs.page(msgspec.structs.replace(WAITING, limit=most)))
        if len(waiting) >= most:
            raise NoFreeSlot(most, " for tasks that wait", "tasks.max_waiting")

    # One run.

    async def _begin_waiting(self, queued: QueuedTask) -> None:
        try:
            run = await self._store.begin(queued.number)
        except StorageError as error:
            self._queue.ended(queued)
            self._store.unsettled.set()  # `TaskUpkeep` finds it again.
            self._logger.warn("a task cannot be begun", exception_facts(error, ErrorCode.INTERNAL))
        else:
            if run is not None:
                self._begin(run, queued)
            else:
                self._queue.ended(queued)
                self.start_waiting()

    def _begin(self, run: Run, queued: QueuedTask) -> None:
        """Run a task that belongs to this process. It is counted already."""
        tool = self._catalogue.get(run.tool)
        if tool is None:
            gone = JsonRpcError(InternalError.code, f"Unknown tool: {run.tool}", {"reason": "unknown_tool"})
            self._do(self._end_without(run, queued, gone))
            return
        self.repeated += run.fence > 1
        client = TaskClient(run, self._ask, self._withdraw, self._store.now)
        origin = Origin(as_caller(run.caller), TRANSPORT, client)
        arguments = msgspec.json.decode(run.arguments)
        name = f"tasks/run {run.tool}"[:MOST_NAME]
        call = self._intake.make_local(name, arguments, origin, run.correlation_id)
        client.is_interrupted = call.cancellation.is_set
        here = _Running(run, call, client, queued)
        call.method, call.tool, call.resumes = "tasks/run", tool, run.is_repeatable
        call.reply = partial(self._reply, here)
        call.progress = self._progress_of(here)
        call.rest = partial(self._resting, here)
        here.look_seldom = self._store.runs.look_often()
        self.running[run.number] = here
        self._intake.submit_later(call)  # The client is told of the task first.
        assert call.task is not None
        call.task.add_done_callback(lambda _: self._ended(here))
        if run.is_cancelled:
            call.cancellation.set("client")

    def _ended(self, here: _Running) -> None:
        """The handler has really ended."""
        del self.running[here.run.number]
        here.look_seldom()
        # These lead back to the call: only the garbage collector would free them.
        here.call.progress = here.call.rest = None
        here.call.reply = _not_awaited
        if here.is_resting:
            self._queue.gone_on(here.queued)
        self._queue.ended(here.queued)
        self.start_waiting()
        self._store.unsettled.set()  # There is room for others.

    def _reply(self, here: _Running, call: Call, outcome: Outcome) -> None:
        """The call is answered: store what the task has come to. Raises as a dialect does."""
        run, error, now = here.run, outcome.error, self._store.now()
        end = partial(Ended, number=run.number, fence=run.fence, at=now, expires_at=now + self.kept_seconds(run))
        change: RunChange
        is_cut_short = isinstance(error, Interrupted) and call.cancellation.reason == "shutdown"
        if isinstance(error, Stopping | NoFreeSlot) and not call.ran:
            change = Released(run.number, run.fence, now)
        elif is_cut_short or isinstance(error, Abandoned):
            if run.is_repeatable:
                change = Released(run.number, run.fence, now)
            else:
                change = end(status=EntryStatus.UNKNOWN, error=msgspec.json.encode(UNKNOWN_OUTCOME))
        elif isinstance(error, Interrupted) and call.cancellation.reason == "client":
            change = end(status=EntryStatus.CANCELLED)
        elif isinstance(error, ProtocolError):
            change = end(status=EntryStatus.FAILED, error=encode_json_rpc(error))
        else:
            result = encode_result(self._intake.render(call, outcome), self._server_info)
            cause = hidden_cause(error, run.attempts, now)
            kept = None if cause is None else with_causes(b"{}", [cause])  # The client is told the result alone.
            change = end(status=EntryStatus.COMPLETED, result=result, error=kept, message_id=self._store.message_id())
        self._do(self._store.change_at_last(change))

    async def _end_without(self, run: Run, queued: QueuedTask, error: JsonRpcError) -> None:
        now = self._store.now()
        ended = Ended(
            number=run.number,
            fence=run.fence,
            at=now,
            expires_at=now + self.kept_seconds(run),
            status=EntryStatus.FAILED,
            error=msgspec.json.encode(error),
        )
        await self._store.change_at_last(ended)
        self._queue.ended(queued)
        self.start_waiting()

    async def _ask(self, question: Any) -> Run | None:
        return await self._store.change_at_last(question)

    def _withdraw(self, question: Unasked) -> None:
        self._do(self._store.change_at_last(question))

    @asynccontextmanager
    async def _resting(self, here: _Running) -> AsyncIterator[None]:
        """Give the slot to another task for as long as the client is asked."""
        here.asks += 1
        if self._take_slot.slots.give_back in here.call.undo:
            here.is_resting = True
            self._take_slot.let_go(here.call)
            self._queue.rested(here.queued)
            self.start_waiting()
        try:
            yield
        finally:
            here.asks -= 1
            if here.is_resting and not here.asks:
                await self._take_slot_again(here)

    async def _take_slot_again(self, here: _Running) -> None:
        """Wait for a slot. A call that is cancelled does not wait: it is about to end."""
        slots, call = self._take_slot.slots, here.call
        taking = asyncio.ensure_future(slots.acquire_slot())
        cancelled = asyncio.ensure_future(call.cancellation.wait())
        try:
            await asyncio.wait((taking, cancelled), return_when=asyncio.FIRST_COMPLETED)
        finally:
            cancelled.cancel()
            if not taking.cancel() and not taking.cancelled():
                if here.is_resting and not call.completed:
                    here.is_resting = False
                    call.undo.append(slots.give_back)
                    self._queue.gone_on(here.queued)
                else:  # Another question has brought it back already, or the handler has ended without the answer.
                    taking.result()()

    def _progress_of(self, here: _Running) -> Callable[[float, float | None, str | None], None]:
        loop = asyncio.get_running_loop()

        def progress(done: float, total: float | None, message: str | None) -> None:
            msgspec.json.encode((done, total, message))  # What has no JSON form fails here, in the handler.
            loop.call_soon_threadsafe(note, (done, total, message))

        def note(said: tuple[float, float | None, str | None]) -> None:
            here.said = said
            if not here.is_told and not here.call.answered:
                here.is_told = True
                self._store.clock.call_later(_NOTE_SECONDS, store)

        def store() -> None:
            here.is_told = False
            if not here.call.answered and not self._store.is_stopping:
                self._do(self._note(here))

        return progress

    async def _note(self, here: _Running) -> None:
        assert here.said is not None
        done, total, message = here.said
        facts = {"progress": done} if total is None else {"progress": done, "total": total}
        text = None if message is None else str(message)[:_MOST_MESSAGE]
        note = Note(here.run.number, here.run.fence, self._store.now(), text, msgspec.json.encode(facts))
        try:
            await self._store.runs.change(note)
        except (LeaseLost, StorageError):
            return  # Older news is worth nothing: the next note, or the end, says more.
        self._store.tell_others()

    def _do(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._logger.error("work for a task failed", exception_facts(error, InternalError.code))


def _not_awaited(call: Call, outcome: Outcome) -> None:
    """The reply of a call that has ended."""


WAITING = RunQuery(statuses=(EntryStatus.WAITING,), oldest_first=True)
"""The tasks that anybody may begin."""


def status_of(run: Run) -> str:
    """The status of a task on the wire."""
    if run.is_open:
        return "input_required" if run.pending else "working"
    match run.status:
        case EntryStatus.COMPLETED:
            return "completed"
        case EntryStatus.CANCELLED:
            return "cancelled"
    return "failed"


def _answers_of(call: Call) -> tuple[StoredQuestion, ...]:
    """The questions that the client answered before the task was created."""
    asked = call.answers.asked or {}
    found = [(asked[name], result) for name, result in call.answers.results.items() if name in asked]
    words = [digest for digest, _ in found]
    return tuple(
        StoredQuestion(
            key=f"question-{count + 1}",
            digest=digest,
            place=words[:count].count(digest),
            answer=msgspec.json.encode(result),
        )
        for count, (digest, result) in enumerate(found)
    )


def _iso(moment: float) -> str:
    return iso_milliseconds(datetime.fromtimestamp(moment, UTC))
