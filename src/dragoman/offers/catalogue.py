"""All the resources and prompts there are. Any thread may look, and change them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, TypeAlias

import msgspec

from dragoman.access.callers import Caller
from dragoman.errors import DuplicateOffer, InvalidOffer, RegistrationError
from dragoman.lifespans import Lifespan
from dragoman.offers.prompt import Prompt
from dragoman.offers.resource import Resource
from dragoman.schemas.schema import compile_schema
from dragoman.tools.attached import made_of
from dragoman.tools.catalogue import HALF_A_CHARACTER, Catalogue, RegisteredTool, can_be_sent
from dragoman.tools.settings import TimeoutsConfig, ToolsConfig
from dragoman.tools.tool import Function, Tool, tool_of

Offer: TypeAlias = Resource | Prompt
Offered: TypeAlias = Tool | Offer | Function
"""A tool, a resource, a prompt, or a function that was decorated as one."""
OfferKind: TypeAlias = Literal["resources", "prompts"]


def offered_by(value: Offered) -> tuple[Tool | Offer, ...]:
    """The tools, resources and prompts that `value` stands for; raises `InvalidTool` for what stands for none."""
    if isinstance(value, Tool | Resource | Prompt):
        return (value,)
    return made_of(value) or (tool_of(value),)


def sorted_out(offered: Iterable[Offered]) -> tuple[list[Tool], list[Offer]]:
    """Tools apart from resources and prompts."""
    tools: list[Tool] = []
    offers: list[Offer] = []
    for each in itertools.chain.from_iterable(map(offered_by, offered)):
        if isinstance(each, Tool):
            tools.append(each)
        else:
            offers.append(each)
    return tools, offers


def lifespans_of(offered: Iterable[Offered]) -> list[Lifespan]:
    """The lifespans of what is offered, each once, in its order: those of tools before those of offers."""
    tools, offers = sorted_out(offered)
    found = (each.lifespan for each in (*tools, *(offer.tool for offer in offers)))
    return list(dict.fromkeys(lifespan for lifespan in found if lifespan is not None))


def replace_offered(
    catalogue: Catalogue, offers: Offers, leaving: Iterable[Offered], coming: Iterable[Offered]
) -> None:
    """Remove tools, resources and prompts and add others, all of it or, with a `RegistrationError`, nothing."""
    old_tools, old_offers = sorted_out(leaving)
    new_tools, new_offers = sorted_out(coming)
    catalogue.replace(_names(old_tools), new_tools)
    try:
        offers.replace([offer.key for offer in old_offers], new_offers)
    except RegistrationError:
        catalogue.replace(_names(new_tools), old_tools)
        raise


def _names(tools: Iterable[Tool]) -> list[str]:
    return [tool.definition.name for tool in tools]


class RegisteredOffer(msgspec.Struct, frozen=True, eq=False):
    """An offer that can be taken up: what it runs is compiled."""

    offer: Offer
    tool: RegisteredTool
    completers: Mapping[str, RegisteredTool]

    @property
    def kind(self) -> OfferKind:
        """Which list it is on."""
        return "prompts" if isinstance(self.offer, Prompt) else "resources"


class Offers:
    """Resources by URI and prompts by name. A URI has a colon and a name has none, so one dictionary holds them all."""

    def __init__(
        self,
        tools: ToolsConfig | None = None,
        timeouts: TimeoutsConfig | None = None,
        *,
        expected: Iterable[OfferKind] = ("resources", "prompts"),
    ) -> None:
        self.expected = frozenset(expected)
        """The lists that clients may ask for from the start, though there may be nothing on them yet."""
        self._default_timeout_ms = (tools or ToolsConfig()).default_timeout_ms
        self._timeouts = (timeouts or TimeoutsConfig()).tool_overrides
        self._offers: Mapping[str, RegisteredOffer] = {}  # Never changed, only replaced: readers need no lock.
        self._templates: list[tuple[Resource, RegisteredTool]] = []
        self._changing = threading.Lock()
        self._listeners: list[Callable[[OfferKind], None]] = []
        self.version = 0

    def __len__(self) -> int:
        return len(self._offers)

    def __iter__(self) -> Iterator[Offer]:
        """Sorted by URI or name."""
        return iter([registered.offer for _, registered in sorted(self._offers.items())])

    @property
    def kinds(self) -> set[OfferKind]:
        """Which lists have anything on them."""
        return {registered.kind for registered in self._offers.values()}

    def register(self, offer: Offer | Function) -> None:
        """Add a resource or a prompt; raises `RegistrationError` and leaves the rest as it was."""
        self.replace((), [each for each in offered_by(offer) if not isinstance(each, Tool)])

    def unregister(self, key: str) -> bool:
        """Remove a resource by its URI or template, or a prompt by its name; False when there is none."""
        return self._change([key], ())

    def replace(self, leaving: Iterable[str], coming: Iterable[Offer]) -> None:
        """Remove offers and add others, all of it or, with a `RegistrationError`, nothing."""
        self._change(leaving, coming)

    def _change(self, leaving: Iterable[str], coming: Iterable[Offer]) -> bool:
        """Whether anything has changed."""
        compiled = [self._compile(offer) for offer in coming]
        with self._changing:
            offers = dict(self._offers)
            gone = [registered for key in leaving if (registered := offers.pop(key, None)) is not None]
            for registered in compiled:
                offer = registered.offer
                if offers.setdefault(offer.key, registered) is not registered:
                    raise DuplicateOffer(type(offer).__name__.lower(), offer.key)
            kinds = sorted({registered.kind for registered in (*gone, *compiled)})
            if kinds:
                self._offers = offers
                self._templates = [
                    (each.offer, each.tool)
                    for each in offers.values()
                    if isinstance(each.offer, Resource) and each.offer.is_template
                ]
                self.version += 1
        for kind in kinds:
            for listener in tuple(self._listeners):
                listener(kind)
        return bool(kinds)

    def resources(self) -> list[Resource]:
        """Those with a URI of their own, sorted by it."""
        return [offer for offer in self if isinstance(offer, Resource) and not offer.is_template]

    def templates(self) -> list[Resource]:
        """Those that a template describes, sorted by it."""
        return [offer for offer in self if isinstance(offer, Resource) and offer.is_template]

    def prompts(self) -> list[Prompt]:
        """All prompts, sorted by name."""
        return [offer for offer in self if isinstance(offer, Prompt)]

    def get(self, key: str) -> RegisteredOffer | None:
        """The resource with exactly this URI or template, or the prompt of this name."""
        return self._offers.get(key)

    def at(self, uri: str) -> tuple[Resource, RegisteredTool, dict[str, str]] | None:
        """What is read at `uri`: the resource with that URI, or the oldest template that it fits and its arguments."""
        own = self._offers.get(uri)
        if own is not None and isinstance(own.offer, Resource) and not own.offer.is_template:
            return own.offer, own.tool, {}
        for resource, tool in self._templates:
            if (values := resource.uri.values_in(uri)) is not None:
                return resource, tool, values
        return None

    def may_read(self, caller: Caller, uri: str) -> bool:
        """Whether the caller's scopes cover what is at `uri`; nothing there needs none."""
        found = self.at(uri)
        return found is None or caller.may_call(found[1].definition.name)

    def on_change(self, listener: Callable[[OfferKind], None]) -> Callable[[], None]:
        """Call `listener` with each list that has changed, on the thread that did it; returns how to stop that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _compile(self, offer: Offer) -> RegisteredOffer:
        if not can_be_sent(offer.listing()):
            raise InvalidOffer(type(offer).__name__.lower(), offer.key, [("", HALF_A_CHARACTER)])
        completers = {name: self._compiled(tool) for name, tool in offer.completers.items()}
        return RegisteredOffer(offer, self._compiled(offer.tool), completers)

    def _compiled(self, tool: Tool) -> RegisteredTool:
        definition = tool.definition
        timeout_ms = self._timeouts.get(definition.name) or definition.timeout_ms or self._default_timeout_ms
        return RegisteredTool.of(tool, compile_schema(definition.input_schema), timeout_ms)
