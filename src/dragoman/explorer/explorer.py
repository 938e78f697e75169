"""The explorer: a page to look at the tools and to try them, and what it fetches.

1. The page is one file that asks for nothing elsewhere. Its script and its style are named by their hashes in the
   Content-Security-Policy, so that nothing a tool returns can run in it.
2. `tools`, `tools/<name>` and `tools/<name>/call` answer with what is specified and nothing else; whatever more the
   page shows has endpoints of its own. Names of tools contain `/`, and are taken whole.
3. Tools are run only where that was allowed, for requests in JSON that bring the token of this process. Another page
   can send no such request: it does not know the token, and may not set the header.
4. A run is a call like any other, of whoever the endpoint says the caller is. A POST that does not become a call is
   logged under a correlation id, which is in the header of the answer.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import msgspec

from dragoman.access.callers import Caller, is_operator
from dragoman.calls.call import Call, Stage
from dragoman.calls.tracing import name_of
from dragoman.edge.asgi import Headers
from dragoman.edge.connection import Services
from dragoman.edge.peer import log_refusal
from dragoman.errors import InvalidArgument, InvalidRequest, NotFound, ProtocolError, ToolError
from dragoman.explorer.explained import fields_of, first_words
from dragoman.explorer.recent_calls import MaySee, RecentCalls
from dragoman.explorer.responses import DATA, HARDENED, error_response, json_response, load_page
from dragoman.explorer.runs import PageRuns
from dragoman.explorer.settings import ExplorerConfig
from dragoman.parts.route import HttpRequest, HttpResponse, Route
from dragoman.protocol.jsonrpc import decode_object
from dragoman.protocol.session import correlation_id_in, modern_reader
from dragoman.replies.encoding import clean_message
from dragoman.schemas.findings import with_place
from dragoman.schemas.schema import ANY_OBJECT
from dragoman.tools.tool import ToolDefinition
from dragoman.version import __version__

if TYPE_CHECKING:
    from dragoman.explorer.action_letters import ActionLetterViews
    from dragoman.explorer.agents import AgentViews
    from dragoman.explorer.tasks import TaskViews

RUN_ID = b"x-run-id"
CORRELATION_ID = b"x-correlation-id"
TOKEN = b"x-explorer-token"
NOT_ASKED = (
    "The tool has a question, and nobody can be asked: run it from the page, or send an X-Correlation-Id that is not "
    "in use, and answer at running/<that id>"
)
MOST_ANSWER = 64 * 1024
"""Bytes of an answer to a question."""

_PAGE = Path(__file__).with_name("explorer.html")


class Explorer:
    """Answers everything under its prefix; `recent` is to be told of every call that ends."""

    def __init__(
        self,
        settings: ExplorerConfig,
        services: Services,
        runs: PageRuns,
        stages: Sequence[Stage],
        load: Callable[[], dict[str, Any]],
        agents: AgentViews | None,
        tasks: TaskViews,
        letters: ActionLetterViews | None,
    ) -> None:
        """`load` tells how the server stands."""
        self.recent = RecentCalls()
        self._prefix = settings.prefix.rstrip("/")
        self._token = secrets.token_urlsafe(24)
        self._may_execute = settings.allow_execute
        self._catalogue, self._logger = services.catalogue, services.logger
        self._info = services.identity.server_info
        self._stages, self._load = stages, load
        self._agents, self._tasks, self._letters = agents, tasks, letters
        self._page = HttpResponse(200, *load_page(_PAGE, "img-src data: blob:; media-src data: blob:"))
        self._runs = runs
        self._reader = modern_reader(services.identity, services.ids.connection_correlation_id())

    def routes(self) -> tuple[Route, ...]:
        """The page is for everybody. What it fetches is for callers, who are shown only the tools, calls, agents, tasks
        and letters that their scopes cover. Where tools can be run, the address of the page has the token that a
        request to run one must bring."""
        fragment = f"#token={self._token}" if self._may_execute else ""
        page = f"{self._prefix}/"
        return (
            Route(self._prefix, self._find_page, methods=None, needs_caller=False, is_open=True),
            Route(page, self._open_page, methods=None, needs_caller=False, is_open=True, page=page + fragment),
            Route(f"{page}*", self._answer, methods=None, is_open=True),
        )

    async def _find_page(self, request: HttpRequest) -> HttpResponse:
        if _method_of(request) != "GET":
            return _not_allowed(request)
        # Relative: wherever this is mounted, and the fragment stays.
        return HttpResponse(307, b"", ((b"location", self._prefix.rpartition("/")[2].encode() + b"/"), *HARDENED))

    async def _open_page(self, request: HttpRequest) -> HttpResponse:
        return self._page if _method_of(request) == "GET" else _not_allowed(request)

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        kind, _, rest = request.path[len(self._prefix) + 1 :].partition("/")
        method = _method_of(request)
        agents, tasks, letters = self._agents, self._tasks, self._letters
        if method == "GET":
            if request.path == f"{self._prefix}/server":
                return json_response(await self._server(request))
            found = None if agents is None else await agents.look_up(kind, rest, request)
            if found is None and letters is not None:
                found = await letters.look_up(kind, rest, request)
            return found or await tasks.look_up(kind, rest, request) or self._look_up(kind, rest, request)
        if method == "POST" and kind == "tools" and rest.endswith("/call"):
            return self._refusal(request) or await self._call(rest[: -len("/call")], request)
        if method == "POST" and kind == "running":
            return self._refusal(request) or await self._answer_question(rest, request)
        if method == "POST" and kind == "redrive" and not rest and agents is not None:
            return self._refusal(request) or await agents.redrive(request)
        if method == "POST" and kind == "letters" and letters is not None:
            return self._refusal(request) or await letters.post(rest, request) or _not_allowed(request)
        if method == "POST" and kind == "tasks":
            return self._refusal(request) or await tasks.post(rest, request) or _not_allowed(request)
        return _not_allowed(request)

    # To look at.

    def _look_up(self, kind: str, rest: str, request: HttpRequest) -> HttpResponse:
        is_whole = request.path == f"{self._prefix}/{kind}"
        caller = request.caller
        match kind:
            case "tools" if is_whole:
                shown = (each.definition for each in self._catalogue if each.may_be_called_by(caller))
                return json_response([*map(_summary, shown)])
            case "tools":
                return self._show_tool(rest, caller)
            case "calls" if is_whole:
                after = parse_qs(request.scope.get("query_string", b"").decode("latin-1")).get("after", ["0"])[0]
                number = int(after) if after.isascii() and after.isdigit() and len(after) < 16 else 0
                return json_response(
                    {"calls": self.recent.since(number, self._may_see(request)), "last": self.recent.total}
                )
            case "calls":
                return self._show_call(rest, self._may_see(request))
            case "running":
                run = self._runs.find(rest, caller)
                return json_response(run.report()) if run is not None else error_response(404, "Not running")
            case "pipeline" if is_whole:
                return json_response([*_described(self._stages)])
            case "load" if is_whole:
                return json_response({**self._load(), "completed": self.recent.total, "failed": self.recent.failed})
        return error_response(404, "Nothing is served here")

    def _show_tool(self, name: str, caller: Caller) -> HttpResponse:
        found = self._catalogue.get(name)
        if found is None or not found.may_be_called_by(caller):
            return _not_found(name)
        definition = found.definition
        return json_response({**_summary(definition), "inputSchema": definition.listing()["inputSchema"]})

    def _may_see(self, request: HttpRequest) -> MaySee:
        """Which calls a caller is shown.

        A caller sees its own calls, and an operator sees all. Without authentication, everybody sees all calls except
        those of tools that do not exist for the caller: they name callers of tenants, who sign their requests.
        """
        caller, is_open = request.caller, not request.is_authenticated
        if is_operator(caller):
            return lambda whose, tool: True
        hidden = self._catalogue.hidden_from(caller) if is_open else frozenset()
        return lambda whose, tool: whose == caller or (is_open and tool not in hidden)

    def _show_call(self, run_id: str, may_see: MaySee) -> HttpResponse:
        seen = self.recent.find(run_id, may_see)
        details = self._runs.details(run_id, may_see)
        if seen is None and details is None:
            return error_response(404, "No such call is known, or not any longer")
        return json_response({**(details or {}), **(msgspec.to_builtins(seen) if seen is not None else {})})

    async def _server(self, request: HttpRequest) -> dict[str, Any]:
        caller, tasks = request.caller, self._tasks
        return {
            **self._info,
            "dragoman": __version__,
            "prefix": self._prefix,
            "endpoint": request.endpoint,
            "mayExecute": self._may_execute,
            "isAuthenticated": request.is_authenticated,
            "hasAgents": self._agents is not None and self._agents.has_agents(caller),
            "hasLetters": self._letters is not None and self._letters.may_look(request),
            "hasTasks": await tasks.has_tasks(caller),
            "taskTools": tasks.tools(caller),
        }

    # To run.

    def _refusal(self, request: HttpRequest) -> HttpResponse | None:
        """Why nothing is run for this request, if nothing is."""
        headers = request.headers
        if not self._may_execute:
            return self._refuse(403, InvalidRequest("Tool execution is disabled"), headers)
        if not hmac.compare_digest(headers.get(TOKEN, b""), self._token.encode()):
            wrong = "The token is missing or wrong: open the address that the server printed"
            return self._refuse(403, InvalidRequest(wrong), headers)
        if headers.get(b"content-type", b"").split(b";")[0].strip().lower() != b"application/json":
            return self._refuse(415, InvalidRequest("Content-Type must be application/json"), headers)
        return None

    def _refuse(self, status: int, error: ProtocolError, headers: Headers, saying: str | None = None) -> HttpResponse:
        """Answer with `saying`, or the message of `error`; both have the correlation id of the log entry."""
        refusal = self._reader.refuse(error, None, _meta_in(headers))
        log_refusal(self._logger, refusal, {"status": status})
        reply = error_response(status, saying or error.message)
        return reply._replace(headers=(*DATA, (CORRELATION_ID, refusal.correlation_id.encode())))

    async def _call(self, name: str, request: HttpRequest) -> HttpResponse:
        headers = request.headers
        try:
            arguments = decode_object(await request.body())
        except ProtocolError as error:
            said = error.message.removeprefix("Invalid request: ")
            return self._refuse(400, error, headers, f"Input validation failed: {said}")
        wanted = correlation_id_in(_meta_in(headers))
        call, outcome, encoded, has_missed = await self._runs.run(
            name, arguments, wanted, request.caller, request.receive, [*headers.items()]
        )
        if outcome.error is None:
            reply = HttpResponse(200, b'{"result":%b}' % encoded)
        elif has_missed:
            reply = error_response(500, f"{clean_message(outcome.error.message)}. {NOT_ASKED}")
        else:
            reply = _failure(call, outcome.error)
        return reply._replace(headers=(*DATA, (RUN_ID, call.run_id.encode())))

    async def _answer_question(self, correlation_id: str, request: HttpRequest) -> HttpResponse:
        headers = request.headers
        run = self._runs.find(correlation_id, request.caller)
        if run is None:
            return error_response(404, "Not running")
        try:
            given = msgspec.convert(decode_object(await request.collect(MOST_ANSWER, "")), _Given)
        except ProtocolError as error:
            said = error.message.removeprefix("Invalid request: ")
            return self._refuse(400, error, headers, f"Input validation failed: {said}")
        except msgspec.ValidationError:
            shapeless = InvalidRequest("the body must be an object with id and result")
            return self._refuse(400, shapeless, headers, f"Input validation failed: {shapeless.message}")
        if not run.answer(given.id, given.result):
            return error_response(404, "That is not asked, or not any longer")
        return json_response({})


def _meta_in(headers: Headers) -> dict[str, str]:
    """The `_meta` that a message would have: the correlation id that the page brings."""
    return {"correlationId": headers.get(CORRELATION_ID, b"").decode("latin-1")}


class _Given(msgspec.Struct):
    id: int
    result: dict[str, Any]


def _summary(definition: ToolDefinition) -> dict[str, Any]:
    """A tool in the list. Hints are booleans there: where a tool says nothing, MCP's own defaults."""
    hints = definition.hints
    return {
        "name": definition.name,
        "description": definition.description,
        "annotations": {
            "readOnlyHint": bool(hints.read_only),
            "destructiveHint": not hints.read_only if hints.destructive is None else hints.destructive,
            "idempotentHint": bool(hints.idempotent),
            "openWorldHint": hints.open_world is not False,
        },
    }


def _described(stages: Sequence[Stage]) -> Iterator[dict[str, str]]:
    for stage in stages:
        yield {"name": name_of(stage), "description": first_words(stage)}
    yield {"name": "handler", "description": "The tool itself."}
    yield {"name": "answer", "description": "What was taken is given back, and the result is worded."}


def _failure(call: Call, error: ToolError | ProtocolError) -> HttpResponse:
    if isinstance(error, NotFound) and not call.ran:
        return _not_found(call.name)
    if isinstance(error, InvalidArgument) and (not call.ran or call.tool.validator is ANY_OBJECT):
        said = [with_place(field) for field in fields_of(error)]
        return error_response(400, f"Input validation failed: {'; '.join(said) or clean_message(error.message)}")
    return error_response(500, clean_message(error.message))


def _method_of(request: HttpRequest) -> str:
    return "GET" if request.method == "HEAD" else request.method


def _not_allowed(request: HttpRequest) -> HttpResponse:
    return error_response(405, f"{request.method} is not allowed here")


def _not_found(name: str) -> HttpResponse:
    return error_response(404, f"Tool '{name[:200]}' not found")
