"""Prompts: messages that a user picks by name and fills in, to begin a conversation with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, Never, overload

import msgspec

from dragoman.errors import InvalidOffer
from dragoman.offers.making import Completions, call_name, make_completers, make_offer_tool, make_parameters
from dragoman.offers.parameters import Parameter
from dragoman.tools.attached import F, attach, check_options
from dragoman.tools.content import Content
from dragoman.tools.tool import Tool, is_tool_name

KIND = "prompt"


class Message(msgspec.Struct):
    """One message of a prompt: text, or any content block, and who says it."""

    content: str | Content
    role: Literal["user", "assistant"] = "user"


class Prompt(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A prompt, and the function that writes its messages. Made by `@prompt`."""

    name: str
    title: str | None = None
    description: str | None = None
    tool: Tool
    parameters: Mapping[str, Parameter]
    completers: Mapping[str, Tool]

    def __repr__(self) -> str:
        return f"Prompt({self.name!r})"

    @property
    def key(self) -> str:
        """Its name."""
        return self.name

    def listing(self) -> dict[str, Any]:
        """Its entry in `prompts/list`."""
        entry: dict[str, Any] = {"name": self.name, "title": self.title, "description": self.description}
        arguments = [
            {"name": each.name, "required": each.is_required}
            | ({"description": each.description} if each.description is not None else {})
            for each in self.parameters.values()
        ]
        entry["arguments"] = arguments or None
        return {key: value for key, value in entry.items() if value is not None}


@overload
def prompt(function: F, /) -> F: ...


@overload
def prompt(
    function: None = None,
    /,
    *,
    name: str | None = None,
    title: str | None = None,
    description: str | None = None,
    timeout_ms: int | None = None,
    complete: Completions | None = None,
) -> Callable[[F], F]: ...


def prompt(
    function: F | None = None,
    /,
    *,
    name: str | None = None,
    title: str | None = None,
    description: str | None = None,
    timeout_ms: int | None = None,
    complete: Completions | None = None,
    **unknown: Never,
) -> F | Callable[[F], F]:
    """Make a prompt of a function, sync or async, that gives text, a `Message`, or a list of them; it stays a function.

    The name, description and arguments come from the function's name, docstring and parameters. Arguments arrive as
    text and are converted to what their type hints say; one that has a default is not required. A parameter annotated
    `ToolContext` receives the call's context. `complete` says how a client is helped to fill in the arguments:
    `{"language": ["python", "rust"]}`, or a function of what was typed so far and the other arguments.
    """

    check_options(prompt, unknown, prompt)

    def decorate(function: F) -> F:
        key: str = name if name is not None else getattr(function, "__name__", "")
        if not is_tool_name(key):
            raise InvalidOffer(KIND, key, [("name", "must be 1 to 128 letters, digits, or any of _ . / -")])
        made = make_offer_tool(KIND, key, call_name("prompts/get", key), function, timeout_ms)
        parameters = make_parameters(KIND, key, made)
        offer = Prompt(
            name=key,
            title=title,
            description=description or inspect.getdoc(function),
            tool=made,
            parameters=parameters,
            completers=make_completers(KIND, key, parameters, complete),
        )
        return attach(function, offer)

    return decorate if function is None else decorate(function)
