"""The requests about tasks: `tasks/get`, `tasks/update` and `tasks/cancel`.

1. A client declares the extension in each of them.
2. A task is its creator's. One that is unknown, has expired, belongs to another caller, or is of a tool that the caller
   may not call is not there, in the same words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from dragoman.access.callers import Caller
from dragoman.agents.ledger import EntryStatus
from dragoman.agents.senders import client_source
from dragoman.errors import InternalError, InvalidParams, StorageError, StorageUncertain
from dragoman.protocol.session import Request
from dragoman.protocol.versions import CAPABILITIES_KEY
from dragoman.tasks.keeping import declares_tasks, missing_extension
from dragoman.tasks.port import Answered, Cancelled, Run, RunQuery
from dragoman.tasks.running import TaskRuns
from dragoman.tasks.store import RunStore
from dragoman.tasks.stored import UNKNOWN_OUTCOME

_LONGEST_ID = 128
_ACTIONS = ("accept", "decline", "cancel")


class TaskRequests:
    """Answers them; raises `ProtocolError`."""

    def __init__(self, store: RunStore, tasks: TaskRuns, max_payload_bytes: int) -> None:
        self._store = store
        self._tasks = tasks
        self._most = max_payload_bytes

    @property
    def is_in_use(self) -> bool:
        """Whether the storage is open already, so that looking for tasks opens nothing."""
        return self._store.is_open

    async def handle(self, caller: Caller, request: Request) -> Mapping[str, Any]:
        """The result of a request, which is complete but for what every result says."""
        params = request.params or {}
        if not declares_tasks(request.meta.get(CAPABILITIES_KEY)):
            raise missing_extension(request.method)
        try:
            run = await self.find(caller, params.get("taskId"))
            match request.method:
                case "tasks/get":
                    return self.details_of(run)
                case "tasks/update":
                    await self.update(run, params.get("inputResponses"))
                case "tasks/cancel":
                    await self.cancel(run)
        except StorageError as error:
            raise storage_failure(error) from error
        return {}

    async def find(self, caller: Caller, task_id: Any, *, of_all: bool = False) -> Run:
        """A caller's task, or with `of_all` anybody's."""
        run = None
        if isinstance(task_id, str) and 0 < len(task_id) <= _LONGEST_ID:
            run = await self._store.runs.find(task_id=task_id)
        if run is None or not self._is_there(run, None if of_all else caller):
            raise InvalidParams("Invalid params: there is no such task")
        return run

    def _is_there(self, run: Run, caller: Caller | None) -> bool:
        # One with a key is what a repeat is answered with, until it is purged.
        is_kept = run.is_open or run.has_key or self._store.now() < run.expires_at
        return is_kept and (caller is None or (run.owner == client_source(caller) and caller.may_call(run.tool)))

    async def page(self, caller: Caller | None, *, before: int | None = None, limit: int = 100) -> list[Run]:
        """A caller's tasks, or everybody's, the newest first, without results. Fewer than `limit` are the last."""
        found: list[Run] = []
        while len(found) < limit:
            query = RunQuery(owner=None if caller is None else client_source(caller), before=before, limit=limit)
            page = await self._store.runs.page(query)
            found += [run for run in page if self._is_there(run, caller)]
            if len(page) < limit:
                break
            before = page[-1].number
        return found[:limit]

    async def update(self, run: Run, responses: Any) -> None:
        """Take the client's answers. Those to questions that nobody asks are ignored."""
        if not isinstance(responses, dict):
            raise InvalidParams("Invalid params: inputResponses must be an object")
        asked = {each.key: msgspec.json.decode(each.request)["method"] for each in run.unanswered}
        answers = {}
        for key, response in responses.items():
            if key in asked:
                _check_shape(key, asked[key], response)
                answers[key] = msgspec.json.encode(response)
        if sum(map(len, answers.values())) > self._most:
            raise InvalidParams(f"Invalid params: inputResponses take more than {self._most} bytes")
        if answers:
            self._tasks.saw(await self._store.runs.change(Answered(run.number, self._store.now(), answers)))
            self._store.tell_others()

    async def cancel(self, run: Run) -> None:
        """Ask the handler to stop; a task that waits has ended at once, and one that has ended stays what it is."""
        now = self._store.now()
        expires_at = now + self._tasks.kept_seconds(run)
        self._tasks.saw(await self._store.runs.change(Cancelled(run.number, now, expires_at)))
        self._store.tell_others()

    def begin_here(self, run: Run) -> None:
        """Begin a task that waits, though this process was told to run none."""
        self._tasks.begin_here(run)

    def runs_here(self, run: Run) -> bool:
        """Whether a task runs in this process."""
        return run.number in self._tasks.running

    def details_of(self, run: Run) -> dict[str, Any]:
        """All that is said about a task."""
        task = self._tasks.base_of(run)
        if run.message is not None:
            task["statusMessage"] = run.message
        if run.progress is not None:
            task["_meta"] = {"dragoman/progress": Raw(run.progress)}
        if run.pending:
            task["inputRequests"] = {each.key: Raw(each.request) for each in run.pending}
        elif run.status is EntryStatus.COMPLETED and run.result is not None:
            task["result"] = Raw(run.result)
        elif task["status"] == "failed":
            task["error"] = Raw(run.error or msgspec.json.encode(UNKNOWN_OUTCOME))
        return task


def storage_failure(error: StorageError) -> InternalError:
    """The error of a request that the storage fails."""
    is_uncertain = isinstance(error, StorageUncertain)
    return InternalError("The server's storage failed", {"outcome": "UNKNOWN"} if is_uncertain else None)


def _check_shape(key: str, method: str, response: Any) -> None:
    """Raise `InvalidParams` for an answer that no client could have given to such a question."""
    fits = isinstance(response, dict)
    match method:
        case "elicitation/create":
            content = response.get("content", {}) if fits else None
            fits = fits and response.get("action") in _ACTIONS and isinstance(content, dict)
        case "sampling/createMessage":
            fits = fits and isinstance(response.get("content"), dict | list)
        case "roots/list":
            fits = fits and isinstance(response.get("roots"), list)
    if not fits:
        raise InvalidParams(f"Invalid params: inputResponses.{key[:100]} is no answer to {method}")
