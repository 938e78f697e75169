"""Resources: things that can be read, each at a URI of its own or at any that a template describes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Never

import msgspec

from dragoman.errors import InvalidOffer
from dragoman.offers.making import Completions, call_name, make_completers, make_offer_tool, make_parameters
from dragoman.offers.parameters import Parameter
from dragoman.offers.template import UriTemplate
from dragoman.schemas.schema import DRAFT_2020_12
from dragoman.tools.attached import F, attach, check_options
from dragoman.tools.context import ToolContext
from dragoman.tools.tool import Hints, Tool, ToolDefinition

KIND = "resource"
_NO_ARGUMENTS = {"$schema": DRAFT_2020_12, "type": "object", "properties": {}, "additionalProperties": False}


class Resource(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What can be read, and the function that reads it. Made by `@resource`."""

    uri: UriTemplate
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    tool: Tool
    parameters: Mapping[str, Parameter]
    completers: Mapping[str, Tool]

    def __repr__(self) -> str:
        return f"Resource({self.key!r})"

    @property
    def key(self) -> str:
        """Its URI, or its template."""
        return self.uri.text

    @property
    def is_template(self) -> bool:
        """Whether it stands for many resources."""
        return bool(self.uri.names)

    def listing(self) -> dict[str, Any]:
        """Its entry in `resources/list` or `resources/templates/list`."""
        entry = {
            "uriTemplate" if self.is_template else "uri": self.key,
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "mimeType": self.mime_type,
        }
        return {key: value for key, value in entry.items() if value is not None}


def resource(
    uri: str,
    /,
    *,
    name: str | None = None,
    title: str | None = None,
    description: str | None = None,
    mime_type: str | None = None,
    timeout_ms: int | None = None,
    complete: Completions | None = None,
    **unknown: Never,
) -> Callable[[F], F]:
    """Make a resource of a function, sync or async, that gives what is to be read at `uri`. It stays a function.

    A URI with variables, such as `note://{owner}/{id}`, stands for many resources: the function's parameters are its
    variables, converted to what their type hints say. A parameter annotated `ToolContext` receives the call's context.

    A `str` is sent as text, `bytes` as a blob, `TextResource` and `BlobResource` (or a list of them) as they are, and
    everything else as JSON. What is not there is said by raising `dragoman.errors.NotFound`. `complete` says how a
    client that asks for it is helped to fill in the variables.
    """

    check_options(resource, unknown, resource)

    def decorate(function: F) -> F:
        template = _template(uri)
        made = make_offer_tool(KIND, uri, call_name("resources/read", uri), function, timeout_ms)
        parameters = make_parameters(KIND, uri, made)
        problems = [
            *(
                (each, "is not in the URI, which is where arguments come from")
                for each in parameters
                if each not in template.names
            ),
            *(
                (each, "is in the URI, but not a parameter of the function")
                for each in template.names
                if each not in parameters
            ),
        ]
        if problems:
            raise InvalidOffer(KIND, uri, problems)
        offer = Resource(
            uri=template,
            name=name or str(getattr(function, "__name__", uri)),
            title=title,
            description=description or inspect.getdoc(function),
            mime_type=mime_type,
            tool=made,
            parameters=parameters,
            completers=make_completers(KIND, uri, parameters, complete),
        )
        return attach(function, offer)

    return decorate


def text_resource(uri: str, text: str, *, description: str | None = None, mime_type: str = "text/plain") -> Resource:
    """A resource that is a text and nothing more, named by its URI. Raises `InvalidOffer`."""

    async def read(arguments: dict[str, Any], context: ToolContext) -> str:
        return text

    template = _template(uri)
    if template.names:
        raise InvalidOffer(KIND, uri, [("uri", "has variables, and a text has none")])
    name = call_name("resources/read", uri)
    hints = Hints(read_only=True)
    definition = ToolDefinition(name=name, description="", input_schema=_NO_ARGUMENTS, hints=hints, from_hints=True)
    return Resource(
        uri=template,
        name=uri,
        description=description,
        mime_type=mime_type,
        tool=Tool(definition, read, wants_context=False),
        parameters={},
        completers={},
    )


def _template(uri: str) -> UriTemplate:
    try:
        return UriTemplate(uri)
    except ValueError as error:
        raise InvalidOffer(KIND, uri, [("uri", str(error))]) from None
