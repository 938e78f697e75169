"""The requests that come through the kernel. Whatever runs a function is a call, like any other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from msgspec import Struct, to_builtins

from dragoman.access.callers import Caller
from dragoman.calls.call import Call, Dialect, Outcome
from dragoman.calls.intake import Intake, Word
from dragoman.edge.interests import Interests
from dragoman.edge.listing import UNCACHED, refuse_cursor
from dragoman.edge.peer import Peer
from dragoman.errors import InvalidParams, ProtocolError, ResourceNotFound, ToolError
from dragoman.offers.catalogue import Offer, Offers
from dragoman.offers.making import call_name
from dragoman.offers.prompt import Prompt
from dragoman.offers.template import LONGEST_URI
from dragoman.protocol.jsonrpc import Id
from dragoman.protocol.results import INTERIM, ToolResult
from dragoman.protocol.session import ToolCall
from dragoman.replies.encoding import meta_of
from dragoman.replies.offers import completion, contents, messages, refusal, weighed
from dragoman.tools.catalogue import NO_TOOL, RegisteredTool


class Asked(Struct, frozen=True):
    """One request: who asks, what for, and in which era."""

    peer: Peer
    params: Any
    """As the method has them."""
    raw: Mapping[str, Any]
    """As they came."""
    modern: bool
    request_id: Id

    @property
    def meta(self) -> Mapping[str, Any]:
        return self.raw.get("_meta") or {}


Result: TypeAlias = dict[str, Any] | ToolResult
Handle: TypeAlias = Callable[[Asked], Awaitable[Result]]
ListenForTasks: TypeAlias = Callable[
    [Caller, Sequence[str], Callable[[Mapping[str, Any]], None]], Awaitable[tuple[list[str], Callable[[], None]]]
]
"""Begins to tell a caller about changes of its tasks; see `TaskFeed.listen`."""


class KernelRequests:
    """Answers the requests; raises `ProtocolError`. No result of an offer weighs more than `max_bytes`."""

    def __init__(
        self,
        tools: Intake,
        dialect: Dialect[ToolResult],
        offers_intake: Intake,
        offers: Offers,
        interests: Interests,
        max_bytes: int,
    ) -> None:
        self._tools = tools
        self._render = dialect.render
        self._intake = offers_intake
        self._offers = offers
        self._interests = interests
        self._max_bytes = max_bytes

    def handlers(self, capabilities: Mapping[str, Any]) -> dict[str, Handle]:
        """By the SDK's names: what serves the methods that a client was told of, and no others."""
        found: dict[str, Handle] = {"on_call_tool": self.call_tool}
        if "resources" in capabilities:
            found["on_list_resources"] = self.list_resources
            found["on_list_resource_templates"] = self.list_templates
            found["on_read_resource"] = self.read_resource
            found["on_subscribe_resource"] = self.subscribe
            found["on_unsubscribe_resource"] = self.unsubscribe
        if "prompts" in capabilities:
            found["on_list_prompts"] = self.list_prompts
            found["on_get_prompt"] = self.get_prompt
        if "completions" in capabilities:
            found["on_completion"] = self.complete
        return found

    async def call_tool(self, asked: Asked) -> Result:
        """`tools/call`, where the lane does not answer it itself"""
        call = self._make(asked, asked.params.name, asked.params.arguments or {})
        return await self._answer(asked, call, self._render, self._tools)

    async def list_resources(self, asked: Asked) -> dict[str, Any]:
        """`resources/list`"""
        return _listed(asked, "resources", self._offers.resources())

    async def list_templates(self, asked: Asked) -> dict[str, Any]:
        """`resources/templates/list`"""
        return _listed(asked, "resourceTemplates", self._offers.templates())

    async def list_prompts(self, asked: Asked) -> dict[str, Any]:
        """`prompts/list`"""
        return _listed(asked, "prompts", self._offers.prompts())

    async def read_resource(self, asked: Asked) -> Result:
        """`resources/read`"""
        uri: str = asked.params.uri
        not_found = partial(ResourceNotFound, uri[:LONGEST_URI], modern=asked.modern)
        found = self._offers.at(uri)
        if found is None:
            return await self._refuse(asked, call_name("resources/read", uri), not_found)
        resource, tool, texts = found
        hints = UNCACHED if asked.modern else {}

        def render(value: Any) -> dict[str, Any]:
            return {**contents(uri, resource.mime_type, value, self._max_bytes), **hints}

        return await self._call(asked, tool, _arguments(resource, texts), render, not_found)

    async def get_prompt(self, asked: Asked) -> Result:
        """`prompts/get`"""
        name: str = asked.params.name
        registered = self._offers.get(name)
        if registered is None or not isinstance(registered.offer, Prompt):
            unknown = partial(InvalidParams, f"Invalid params: unknown prompt: {name[:200]}")
            return await self._refuse(asked, call_name("prompts/get", name), unknown)
        offer = registered.offer
        arguments = _arguments(offer, asked.params.arguments or {})
        return await self._call(asked, registered.tool, arguments, partial(messages, offer.description))

    async def complete(self, asked: Asked) -> Result:
        """`completion/complete`"""
        reference, argument, context = asked.params.ref, asked.params.argument, asked.params.context
        is_prompt = reference.type == "ref/prompt"
        key: str = reference.name if is_prompt else reference.uri
        registered = self._offers.get(key)
        if registered is None or isinstance(registered.offer, Prompt) is not is_prompt:
            unknown = partial(InvalidParams, f"Invalid params: unknown reference: {key[:200]}")
            return await self._refuse(asked, call_name("completion/complete", key), unknown)
        completer = registered.completers.get(argument.name)
        if completer is None:
            unknown = partial(InvalidParams, f"Invalid params: {key[:200]} has no argument {argument.name[:200]!r}")
            return await self._refuse(asked, call_name("completion/complete", key), unknown)
        others = (context.arguments or {}) if context is not None else {}
        return await self._call(asked, completer, {"typed": argument.value, "others": others}, completion)

    async def subscribe(self, asked: Asked) -> Result:
        """`resources/subscribe`"""
        uri, caller = asked.params.uri, asked.peer.caller
        found = self._offers.at(uri)
        if found is not None and not self._offers.may_read(caller, uri):
            return await self._call(asked, found[1], {}, dict)  # Refused and recorded as reading it is.
        self._interests.subscribe(asked.peer.listener, uri, caller)
        return {}

    async def unsubscribe(self, asked: Asked) -> Result:
        """`resources/unsubscribe`"""
        self._interests.unsubscribe(asked.peer.listener, asked.params.uri)
        return {}

    def _call(
        self,
        asked: Asked,
        tool: RegisteredTool,
        arguments: dict[str, Any],
        render: Callable[[Any], Mapping[str, Any]],
        not_found: Callable[[str], ProtocolError] = InvalidParams,
    ) -> Awaitable[Result]:
        return self._take_up(asked, tool.definition.name, tool, arguments, render, not_found)

    def _refuse(self, asked: Asked, name: str, error: Callable[[], ProtocolError]) -> Awaitable[Result]:
        """Nothing is there: the call is made, refused and recorded all the same, as that of an unknown tool is."""
        return self._take_up(asked, name, NO_TOOL, {}, dict, lambda _: error())

    def _take_up(
        self,
        asked: Asked,
        name: str,
        tool: RegisteredTool,
        arguments: dict[str, Any],
        render: Callable[[Any], Mapping[str, Any]],
        not_found: Callable[[str], ProtocolError],
    ) -> Awaitable[Result]:
        """Call what an offer runs. The name begins with the method, so that no tool can have it."""

        def word(call: Call, outcome: Outcome) -> Result | ProtocolError:
            if isinstance(outcome.error, ToolError):
                return refusal(call, outcome.error, not_found, self._max_bytes)
            return weighed(call, render(outcome.value), self._max_bytes)

        call = self._make(asked, name, arguments)
        call.method, call.tool = name.partition(" ")[0], tool
        return self._answer(asked, call, word, self._intake)

    def _make(self, asked: Asked, name: str, arguments: dict[str, Any]) -> Call:
        raw, meta = asked.raw, asked.meta
        request = ToolCall(
            asked.request_id,
            name,
            arguments,
            meta,
            asked.modern,
            raw.get("inputResponses"),
            raw.get("requestState"),
        )
        return self._intake.make(request, asked.peer.origin_for(meta, modern=asked.modern))

    def _answer(self, asked: Asked, call: Call, word: Word[Result], intake: Intake) -> Awaitable[Result]:
        def answer(call: Call, outcome: Outcome) -> Result | ProtocolError:
            if type(outcome.value) in INTERIM:
                outcome.value.meta = meta_of(call)
                asking: Result = to_builtins(outcome.value)
                return asking
            if isinstance(outcome.error, ProtocolError):
                outcome.error.correlation_id = call.correlation_id
                return outcome.error
            return word(call, outcome)

        return intake.answer(call, answer, asked.peer.why_cancelled)


def capabilities_with(offers: Offers) -> dict[str, Any]:
    """What clients may ask a server for that has these offers. `logging` is the handshake era's."""
    kinds = offers.kinds | offers.expected
    found: dict[str, Any] = {"tools": {"listChanged": True}, "logging": {}}
    if "resources" in kinds:
        found["resources"] = {"subscribe": True, "listChanged": True}
    if "prompts" in kinds:
        found["prompts"] = {"listChanged": True}
    if kinds:
        found["completions"] = {}
    return found


def _listed(asked: Asked, key: str, offers: Iterable[Offer]) -> dict[str, Any]:
    """All of them that the caller may take up, on one page."""
    refuse_cursor(asked.params.cursor)
    may_call = asked.peer.caller.may_call
    result: dict[str, Any] = {key: [offer.listing() for offer in offers if may_call(offer.tool.definition.name)]}
    return {**result, **UNCACHED} if asked.modern else result


def _arguments(offer: Offer, texts: Mapping[str, str]) -> dict[str, Any]:
    """Texts as their parameters read them; what has no parameter stays, to be refused by name."""
    known = offer.parameters
    return {name: known[name].read(text) if name in known else text for name, text in texts.items()}
