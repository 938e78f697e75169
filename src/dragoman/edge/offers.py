"""The requests about resources, prompts and completions. Whatever runs a function is a call, like any other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias

from msgspec import Struct, to_builtins

from dragoman.calls.awaited import Awaited
from dragoman.calls.call import Call, Outcome
from dragoman.edge.interests import Interests
from dragoman.edge.listing import UNCACHED, refuse_cursor
from dragoman.edge.peer import Peer, progress_of
from dragoman.errors import InvalidParams, ProtocolError, ResourceNotFound, ToolError
from dragoman.ids import Ids
from dragoman.offers.catalogue import Offer, Offers
from dragoman.offers.making import call_name
from dragoman.offers.prompt import Prompt
from dragoman.offers.template import LONGEST_URI
from dragoman.protocol.jsonrpc import Id
from dragoman.protocol.results import InputRequired
from dragoman.protocol.session import correlation_id_in
from dragoman.replies.encoding import meta_of
from dragoman.replies.offers import completion, contents, messages, refusal, weighed
from dragoman.tools.catalogue import RegisteredTool


class Asked(Struct, frozen=True):
    """One request: who asks, what for, and in which era."""

    peer: Peer
    params: Any
    """As the method has them."""
    raw: Mapping[str, Any]
    """As they came."""
    modern: bool
    request_id: Id | None = None

    @property
    def meta(self) -> Mapping[str, Any]:
        return self.raw.get("_meta") or {}


Handle: TypeAlias = Callable[[Asked], Awaitable[dict[str, Any]]]


class OfferRequests:
    """Answers the requests; raises `ProtocolError`. No result weighs more than `max_bytes`."""

    def __init__(
        self, offers: Offers, interests: Interests, submit: Callable[[Call], None], ids: Ids, max_bytes: int
    ) -> None:
        self._offers = offers
        self._interests = interests
        self._submit = submit
        self._ids = ids
        self._max_bytes = max_bytes

    def handlers(self, capabilities: Mapping[str, Any]) -> dict[str, Handle]:
        """By the SDK's names: what serves the methods that a client was told of, and no others."""
        found: dict[str, Handle] = {}
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

    async def list_resources(self, asked: Asked) -> dict[str, Any]:
        """`resources/list`"""
        return _listed(asked, "resources", self._offers.resources())

    async def list_templates(self, asked: Asked) -> dict[str, Any]:
        """`resources/templates/list`"""
        return _listed(asked, "resourceTemplates", self._offers.templates())

    async def list_prompts(self, asked: Asked) -> dict[str, Any]:
        """`prompts/list`"""
        return _listed(asked, "prompts", self._offers.prompts())

    async def read_resource(self, asked: Asked) -> dict[str, Any]:
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

    async def get_prompt(self, asked: Asked) -> dict[str, Any]:
        """`prompts/get`"""
        name: str = asked.params.name
        registered = self._offers.get(name)
        if registered is None or not isinstance(registered.offer, Prompt):
            unknown = partial(InvalidParams, f"Invalid params: unknown prompt: {name[:200]}")
            return await self._refuse(asked, call_name("prompts/get", name), unknown)
        offer = registered.offer
        arguments = _arguments(offer, asked.params.arguments or {})
        return await self._call(asked, registered.tool, arguments, partial(messages, offer.description))

    async def complete(self, asked: Asked) -> dict[str, Any]:
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

    async def subscribe(self, asked: Asked) -> dict[str, Any]:
        """`resources/subscribe`"""
        uri, caller = asked.params.uri, asked.peer.caller
        found = self._offers.at(uri)
        if found is not None and not self._offers.may_read(caller, uri):
            return await self._call(asked, found[1], {}, dict)  # Refused and recorded as reading it is.
        self._interests.subscribe(asked.peer.listener, uri, caller)
        return {}

    async def unsubscribe(self, asked: Asked) -> dict[str, Any]:
        """`resources/unsubscribe`"""
        self._interests.unsubscribe(asked.peer.listener, asked.params.uri)
        return {}

    async def _call(
        self,
        asked: Asked,
        tool: RegisteredTool,
        arguments: dict[str, Any],
        render: Callable[[Any], Mapping[str, Any]],
        not_found: Callable[[str], ProtocolError] = InvalidParams,
    ) -> dict[str, Any]:
        return await self._run(asked, tool.definition.name, tool, arguments, render, not_found)

    async def _refuse(self, asked: Asked, name: str, error: Callable[[], ProtocolError]) -> dict[str, Any]:
        """Nothing is there: the call is made, refused and recorded all the same, as that of an unknown tool is."""
        return await self._run(asked, name, None, {}, dict, lambda _: error())

    async def _run(
        self,
        asked: Asked,
        name: str,
        tool: RegisteredTool | None,
        arguments: dict[str, Any],
        render: Callable[[Any], Mapping[str, Any]],
        not_found: Callable[[str], ProtocolError],
    ) -> dict[str, Any]:
        done: Awaited[dict[str, Any]] = Awaited()

        def reply(call: Call, outcome: Outcome) -> None:
            if done.future.done():
                return
            if type(outcome.value) is InputRequired:
                outcome.value.meta = meta_of(call)
                done.future.set_result(to_builtins(outcome.value))
            elif outcome.error is None:
                done.future.set_result(weighed(call, render(outcome.value), self._max_bytes))
            elif isinstance(outcome.error, ToolError):
                done.future.set_exception(refusal(call, outcome.error, not_found, self._max_bytes))
            else:
                outcome.error.correlation_id = call.correlation_id
                done.future.set_exception(outcome.error)

        peer = asked.peer
        correlation_id = correlation_id_in(asked.meta) or self._ids.correlation_id()
        call = Call(
            name,
            arguments,
            self._ids.run_id(),
            correlation_id,
            reply,
            peer.caller,
            peer.transport,
            asked.request_id,
            method=name.partition(" ")[0],
            meta=asked.meta,
            protocol_version=peer.protocol_version,
            session_id=peer.session_id,
            headers=peer.headers,
        )
        call.client = peer.client_for(asked.meta, modern=asked.modern)
        token = asked.meta.get("progressToken")
        if token is not None:
            call.progress = progress_of(call.client.notify, token)
        if asked.modern:
            call.is_modern = True
            call.input_responses, call.request_state = asked.raw.get("inputResponses"), asked.raw.get("requestState")
        if tool is not None:
            call.tool = tool
        self._submit(call)
        try:
            return await done.future
        except asyncio.CancelledError:
            call.disconnected = peer.is_gone
            call.withdraw("disconnect" if call.disconnected else "client")
            raise
        finally:
            del done.future


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
