"""Requests of the modern era over HTTP: each is a single exchange.

1. Headers and body have to agree, and a request whose do not is told so before it is told what else is wrong with it.
2. The lane answers `server/discover`, `tools/list`, `tools/call` and requests about tasks, and hands the rest to the
   kernel.
3. A request whose client leaves is cancelled.
"""

from __future__ import annotations

import asyncio
from functools import partial

from msgspec import Raw

from dragoman.access.callers import Caller
from dragoman.calls.call import Call, Outcome
from dragoman.edge.asgi import Post, RequestRefused, ServerStopping
from dragoman.edge.connection import Services
from dragoman.edge.http.admission import Admitted, HttpAdmission
from dragoman.edge.http.exchange import Exchange, Watch
from dragoman.edge.http.sdk_messages import NO_BODY
from dragoman.edge.peer import log_refusal
from dragoman.edge.served import Served
from dragoman.errors import (
    HeaderMismatch,
    InternalError,
    InvalidParams,
    InvalidRequest,
    MethodNotFound,
    MissingCapability,
    MissingScope,
    ParseError,
    ProtocolError,
    UnsupportedVersion,
)
from dragoman.protocol import headers as rules
from dragoman.protocol import jsonrpc
from dragoman.protocol.jsonrpc import Answer, encode_error, encode_result
from dragoman.protocol.results import INTERIM
from dragoman.protocol.session import Refusal, Request, ToolCall, correlation_id_in, modern_reader
from dragoman.protocol.versions import MODERN_VERSIONS, TASK_METHODS, VERSION_KEY
from dragoman.replies.encoding import meta_of
from dragoman.telemetry.log import exception_facts

STATUS_OF = {
    error.code: status
    for status, errors in {
        400: (ParseError, InvalidRequest, InvalidParams, HeaderMismatch, MissingCapability, UnsupportedVersion),
        404: (MethodNotFound,),
    }.items()
    for error in errors
}
"""The status of an answer that is an error; 200 for any other."""

_LANE = frozenset({"tools/list", "server/discover"})


class ModernEra:
    """Answers the requests of the modern era."""

    def __init__(self, runtime: Served, services: Services, admission: HttpAdmission, watch: Watch) -> None:
        self._runtime = runtime
        self._services = services
        self._catalogue = services.catalogue
        self._logger = services.logger
        self._admission = admission
        self._watch = watch
        self.reader = modern_reader(services.identity, services.ids.connection_correlation_id())
        """Also words what answers requests of no session."""
        self._annotated: dict[str, tuple[rules.ParameterHeader, ...]] = {}
        self._annotated_of = -1  # The version of the catalogue.
        # Bound once: these are needed for every call.
        self._make = services.intake.make
        self._submit = services.intake.submit_later
        self._render = services.dialect.render

    def serve(self, post: Post, request: Admitted, body: bytes, caller: Caller) -> None:
        """Answer, now or later."""
        event = self.reader.read(body)
        if type(event) is ToolCall or type(event) is Request:
            checked = self._checked(event, request)
        elif type(event) is Refusal:
            checked = self._first_objection(event, request, body)
        elif type(event) is Answer:
            raise RequestRefused(400, InvalidRequest("Invalid request: nothing was asked that this could answer"))
        elif not body or body.isspace():
            raise RequestRefused(400, ParseError(NO_BODY))
        else:
            _check_version(request)
            post.answer(202, b"", ())  # Nothing to cancel by: in this era a client cancels by leaving.
            return
        if type(checked) is ToolCall:
            self._start_call(checked, Exchange(post, caller, self._watch, request.takes_streams, request.pairs))
        elif type(checked) is Request:
            self._check_request(checked, streams=request.takes_streams)
            self._start_request(checked, Exchange(post, caller, self._watch, request.takes_streams, request.pairs))
        else:
            assert type(checked) is Refusal
            log_refusal(self._logger, checked)
            post.answer(STATUS_OF.get(checked.code, 200), checked.line)

    # What is wrong with a request.

    def _checked(self, event: ToolCall | Request, request: Admitted) -> ToolCall | Request | Refusal:
        """The event, or the refusal of a request whose headers and body disagree."""
        try:
            if type(event) is ToolCall:
                version = event.meta[VERSION_KEY]
                if not rules.is_plainly_said(request.routing, version, "tools/call", event.name):
                    rules.check_routing(request.headers, request.pairs, version, "tools/call", event.name)
                if self._annotated_of != self._catalogue.version:
                    self._find_annotated()
                if event.name in self._annotated:
                    annotated = self._annotated[event.name]
                    rules.check_parameters(annotated, event.arguments, request.headers, request.pairs)
            elif type(event) is Request:
                key = rules.NAMED_BY.get(event.method)
                name = (event.params or {}).get(key) if key is not None else None
                rules.check_routing(request.headers, request.pairs, event.meta[VERSION_KEY], event.method, name)
        except HeaderMismatch as error:
            return self.reader.refuse(error, event.id, event.meta)
        return event

    def _first_objection(self, refusal: Refusal, request: Admitted, body: bytes) -> Refusal:
        if refusal.code in (UnsupportedVersion.code, MethodNotFound.code):
            heading = jsonrpc.heading(body)
            method, meta = heading.method, heading.meta
            assert method is not None
            try:
                if VERSION_KEY in meta:
                    rules.check_routing(request.headers, request.pairs, meta[VERSION_KEY], method, None)
            except HeaderMismatch as error:
                return self.reader.refuse(error, heading.id, meta)
            if method == "initialize" and meta.get(VERSION_KEY) in MODERN_VERSIONS:
                # Nothing was opened in this era that the handshake would come too late for: there is just none.
                return self.reader.refuse(MethodNotFound("Method not found: initialize"), heading.id, meta)
        return refusal

    def _find_annotated(self) -> None:
        found = {
            tool.definition.name: rules.parameter_headers(tool.definition.input_schema) for tool in self._catalogue
        }
        self._annotated = {name: wanted for name, wanted in found.items() if wanted}
        self._annotated_of = self._catalogue.version

    def _check_request(self, event: Request, *, streams: bool) -> None:
        if event.method == "subscriptions/listen" and not streams:
            raise RequestRefused(406, InvalidRequest("Accept must include text/event-stream: the answer is a stream"))
        if event.method not in _LANE and not self._runtime.is_running:
            raise ServerStopping(event.id, event.meta)

    # What is answered.

    def _start_call(self, event: ToolCall, exchange: Exchange) -> None:
        origin = exchange.origin_for(event.meta, modern=True)
        call = self._make(event, origin, partial(self._answer_call, exchange))
        exchange.on_gone = call.withdraw
        self._submit(call)

    def _answer_call(self, exchange: Exchange, call: Call, outcome: Outcome) -> None:
        request_id, error = call.request_id, outcome.error
        assert request_id is not None
        if error is not None and isinstance(error, ProtocolError):
            line = encode_error(error, request_id, call.correlation_id)
            exchange.finish(line, STATUS_OF.get(error.code, 200))
        elif type(outcome.value) in INTERIM:
            exchange.finish(self.reader.interim(request_id, outcome.value, meta_of(call)))
        else:
            body = self.reader.tool_result(request_id, self._render(call, outcome))
            if error is not None and isinstance(error, MissingScope):
                exchange.finish(body, *self._admission.step_up(error, exchange.caller))
            else:
                exchange.finish(body)

    def _start_request(self, event: Request, exchange: Exchange) -> None:
        listing = self._services.listing
        try:
            if event.method == "tools/list":
                tools = listing.encoded_tools(event.params, modern=True, caller=exchange.caller)
                exchange.finish(encode_result(event.id, Raw(tools)))
            elif event.method == "server/discover":
                exchange.finish(self.reader.result(event.id, listing.discovery(), modern=True))
            else:
                serving = asyncio.create_task(self._hand_over(event, exchange))
                exchange.on_gone = serving.cancel
        except ProtocolError as error:
            self._refuse(error, event, exchange)

    async def _hand_over(self, event: Request, exchange: Exchange) -> None:
        try:
            if event.method in TASK_METHODS:
                told = await self._services.answer_task(exchange.caller, event)
                exchange.finish(self.reader.result(event.id, told, modern=True))
            else:
                result = await self._services.kernel.handle(exchange, event)
                exchange.finish(self.reader.result(event.id, result, modern=False))
        except ProtocolError as error:
            self._refuse(error, event, exchange)
        except Exception as error:
            correlation_id = correlation_id_in(event.meta) or self.reader.correlation_id
            facts = {"method": event.method, "correlationId": correlation_id}
            self._logger.error("message failed", {**facts, **exception_facts(error, InternalError.code)})
            self._refuse(InternalError("Internal error"), event, exchange)

    def _refuse(self, error: ProtocolError, event: Request, exchange: Exchange) -> None:
        refusal = self.reader.refuse(error, event.id, event.meta)
        log_refusal(self._logger, refusal)
        exchange.finish(refusal.line, STATUS_OF.get(error.code, 200))


def is_modern(body: bytes) -> bool:
    """Whether a body's `_meta` names a protocol version, as every request of the modern era does."""
    return VERSION_KEY.encode() in body and VERSION_KEY in jsonrpc.heading(body).meta


def _check_version(request: Admitted) -> None:
    version = request.headers.get(rules.VERSION, b"").decode("latin-1")
    if version and version not in MODERN_VERSIONS:
        supported = {"supported": list(MODERN_VERSIONS), "requested": version}
        raise RequestRefused(400, UnsupportedVersion("Unsupported protocol version", supported))
