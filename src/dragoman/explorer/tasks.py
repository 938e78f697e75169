"""The explorer's view of tasks: what became of them, what they ask, and the start of new ones.

1. A caller sees its own tasks, as `tasks/get` does. Another's task is as unknown as one that does not exist. Operators
   see all tasks, answer their questions and cancel them.
2. The view is there for a caller that may call a tool with task support, or that has tasks. Nothing is read from the
   storage of a server without such tools, unless something else has opened it.
3. Lists have pages of bounded length, without results. Arguments are redacted as the log is; a result or an error is
   what any client would be told.
"""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import Any, Protocol
from urllib.parse import parse_qs

import msgspec
from msgspec import Raw

from dragoman.access.callers import Caller, is_operator
from dragoman.clock import Clock, iso_milliseconds
from dragoman.errors import (
    InvalidArgument,
    InvalidParams,
    LeaseLost,
    ProtocolError,
    ResourceExhausted,
    StorageError,
    ToolError,
)
from dragoman.explorer.explained import fields_of
from dragoman.explorer.responses import error_response, json_response, unusable
from dragoman.parts.route import HttpRequest, HttpResponse
from dragoman.protocol.jsonrpc import decode_object
from dragoman.protocol.session import correlation_id_in
from dragoman.replies.encoding import clean_message
from dragoman.schemas.findings import with_place
from dragoman.tasks.port import Run
from dragoman.tasks.requests import TaskRequests
from dragoman.telemetry.causes import causes_in, described_causes
from dragoman.telemetry.clean import Cleaner
from dragoman.tools.catalogue import Catalogue

MOST_TASKS = 50
LARGEST_ARGUMENTS = 65_536
"""Bytes. Larger ones are not decoded, so that they cannot be redacted, and are not shown."""
_MOST_DIGITS = 15


class CreateTask(Protocol):
    """`Runtime.create_task`."""

    def __call__(
        self, name: str, arguments: dict[str, Any], *, correlation_id: str | None, caller: Caller
    ) -> Awaitable[str]: ...


class TaskViews:
    """Answers below `tasks`."""

    def __init__(
        self, requests: TaskRequests, create: CreateTask, catalogue: Catalogue, clock: Clock, cleaner: Cleaner
    ) -> None:
        self._requests = requests
        self._create = create
        self._catalogue = catalogue
        self._clock = clock
        self._cleaner = cleaner

    def tools(self, caller: Caller) -> dict[str, str]:
        """The tools with task support that a caller may call: by name, `optional` or `required`."""
        known = ((each.definition.name, each.task) for each in self._catalogue if each.may_be_called_by(caller))
        return {name: task for name, task in known if task is not None}

    async def has_tasks(self, caller: Caller) -> bool:
        """Whether there is anything to show."""
        if self.tools(caller):
            return True
        try:
            return self._requests.is_in_use and bool(await self._requests.page(_whose(caller), limit=1))
        except StorageError:
            return False

    async def look_up(self, kind: str, rest: str, request: HttpRequest) -> HttpResponse | None:
        """The answer to a GET; None for an address that is none of these."""
        if kind != "tasks" or not await self.has_tasks(request.caller):
            return None
        try:
            if _is_whole(rest, request):
                asked = parse_qs(request.scope.get("query_string", b"").decode("latin-1"))
                return await self._page(request.caller, asked.get("before", [""])[0])
            return json_response({"task": self._whole(await self._find(request.caller, rest), request.caller)})
        except InvalidParams:
            return _not_found()
        except StorageError as error:
            return unusable("ledger", error)

    async def post(self, rest: str, request: HttpRequest) -> HttpResponse | None:
        """The answer to a POST; None for an address that takes none."""
        task_id, _, what = rest.partition("/")
        is_start = _is_whole(rest, request)
        if not (is_start or what in ("answer", "cancel")) or not await self.has_tasks(request.caller):
            return None
        try:
            if is_start:
                return await self._start(request)
            run = await self._find(request.caller, task_id)
        except InvalidParams:
            return _not_found()
        except StorageError as error:
            return unusable("ledger", error)
        return await self._change(run, what, request)

    async def _find(self, caller: Caller, task_id: Any) -> Run:
        return await self._requests.find(caller, task_id, of_all=is_operator(caller))

    async def _page(self, caller: Caller, before: str) -> HttpResponse:
        number = int(before) if before.isascii() and before.isdigit() and len(before) <= _MOST_DIGITS else None
        found = await self._requests.page(_whose(caller), before=number, limit=MOST_TASKS + 1)
        page = found[:MOST_TASKS]
        return json_response(
            {
                "tasks": [self._brief(each) for each in page],
                "next": page[-1].number if len(found) > len(page) else None,
            }
        )

    async def _start(self, request: HttpRequest) -> HttpResponse:
        try:
            given = msgspec.convert(decode_object(await request.body()), _Start)
        except (ProtocolError, msgspec.ValidationError):
            return error_response(400, "Input validation failed: the body must be an object with tool and arguments")
        name, caller = given.tool, request.caller
        tool = self._catalogue.get(name)
        if tool is None or not tool.may_be_called_by(caller):
            return error_response(404, f"Tool '{name[:200]}' not found")
        wanted = correlation_id_in({"correlationId": request.headers.get(b"x-correlation-id", b"").decode("latin-1")})
        try:
            task_id = await self._create(name, given.arguments, correlation_id=wanted, caller=caller)
        except (ToolError, ProtocolError) as error:
            return _refusal(error)
        return json_response({"task": self._whole(await self._requests.find(caller, task_id), caller)}, 201)

    async def _change(self, run: Run, what: str, request: HttpRequest) -> HttpResponse:
        """Answer a question of a task, or cancel it."""
        try:
            if what == "cancel":
                await self._requests.cancel(run)
            else:
                given = msgspec.convert(decode_object(await request.body()), _Answer)
                if not any(each.key == given.key for each in run.pending):
                    return error_response(409, "That is not asked, or not any longer")
                await self._requests.update(run, {given.key: given.result})
            return json_response({"task": self._whole(await self._find(request.caller, run.task_id), request.caller)})
        except msgspec.ValidationError:
            return error_response(400, "Input validation failed: the body must be an object with key and result")
        except ProtocolError as error:
            said = error.message.removeprefix("Invalid request: ").removeprefix("Invalid params: ")
            return error_response(400, f"Input validation failed: {clean_message(said)}")
        except LeaseLost:
            return _not_found()
        except StorageError as error:
            return unusable("ledger", error)

    def _brief(self, run: Run) -> dict[str, Any]:
        """A task in a list."""
        told = self._requests.details_of(run)
        return {
            "number": run.number,
            "tool": run.tool,
            "taskId": run.task_id,
            "status": told["status"],
            "statusMessage": run.message,
            "progress": None if run.progress is None else Raw(run.progress),
            "isCancelled": run.is_cancelled,
            "createdAt": told["createdAt"],
            "lastUpdatedAt": told["lastUpdatedAt"],
            "ageSeconds": max(0.0, self._clock.now().timestamp() - run.created_at),
        }

    def _whole(self, run: Run, caller: Caller) -> dict[str, Any]:
        """All that is shown about a task, and for an operator why it failed."""
        told = self._requests.details_of(run)
        facts = {
            **self._brief(run),
            "endedAt": None if run.ended_at is None else iso_milliseconds(datetime.fromtimestamp(run.ended_at, UTC)),
            "ttlMs": told["ttlMs"],
            "attempts": run.attempts,
            "correlationId": run.correlation_id,
            "argumentsBytes": len(run.arguments),
            "questions": [
                {"key": key, **msgspec.json.decode(asked)} for key, asked in told.get("inputRequests", {}).items()
            ],
        }
        if len(run.arguments) <= LARGEST_ARGUMENTS:
            facts["arguments"] = self._cleaner.redact(msgspec.json.decode(run.arguments))
        if is_operator(caller) and (causes := causes_in(run.error)):
            facts["causes"] = described_causes(causes)
        return facts | {name: told[name] for name in ("result", "error") if name in told}


class _Start(msgspec.Struct):
    tool: str
    arguments: dict[str, Any] = {}


class _Answer(msgspec.Struct):
    key: str
    result: dict[str, Any]


def _whose(caller: Caller) -> Caller | None:
    """Whose tasks a caller sees; None: everybody's."""
    return None if is_operator(caller) else caller


def _is_whole(rest: str, request: HttpRequest) -> bool:
    """Whether a request is about all tasks."""
    return not rest and not request.path.endswith("/")


def _refusal(error: ToolError | ProtocolError) -> HttpResponse:
    """The answer to a call that has not become a task, with the fields that are wrong."""
    if isinstance(error, InvalidArgument):
        fields = fields_of(error)
        said = "; ".join(with_place(each) for each in fields) or clean_message(error.message)
        return json_response({"error": f"Input validation failed: {said}", "fields": fields}, 400)
    return error_response(503 if isinstance(error, ResourceExhausted) else 500, clean_message(error.message))


def _not_found() -> HttpResponse:
    return error_response(404, "No such task is known, or not any longer")
