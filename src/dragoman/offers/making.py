"""How a function becomes an offer: it is called as a tool would be, under a name that no tool can have."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeAlias

from dragoman.errors import InvalidOffer, InvalidTool
from dragoman.offers.parameters import Parameter, parameters_of
from dragoman.tools.tool import MOST_NAME, Function, Hints, Tool, ToolDefinition, make_tool

Completer: TypeAlias = (
    Callable[[str, Mapping[str, str]], Iterable[str]] | Callable[[str, Mapping[str, str]], Awaitable[Iterable[str]]]
)
"""Takes what was typed so far and the other arguments; gives the values that it could become, the best first."""

Completions: TypeAlias = Mapping[str, Completer | Iterable[str]]
"""By argument: a function, or all the values that there are."""


def call_name(method: str, key: str) -> str:
    """What records call it: the method and what it is about, with a space between them, which no tool's name has."""
    return f"{method} {key}"[:MOST_NAME]


def make_offer_tool(kind: str, key: str, name: str, function: Function, timeout_ms: int | None) -> Tool:
    """What runs when the offer is taken up; raises `InvalidOffer`."""
    if not callable(function):
        raise InvalidOffer(kind, key, [("", "it must be a function")])
    if timeout_ms is not None and timeout_ms < 1:
        raise InvalidOffer(kind, key, [("timeout_ms", "must be at least 1")])
    try:
        return make_tool(function, name=name, timeout_ms=timeout_ms, read_only=True)
    except InvalidTool as error:
        raise InvalidOffer(kind, key, error.problems) from error.__cause__


def make_parameters(kind: str, key: str, made: Tool) -> dict[str, Parameter]:
    """The parameters of an offer; raises `InvalidOffer`."""
    try:
        return parameters_of(made.definition.input_schema)
    except ValueError as error:
        raise InvalidOffer(kind, key, [("", str(error))]) from None


def make_completers(
    kind: str, key: str, parameters: Mapping[str, Parameter], complete: Completions | None
) -> dict[str, Tool]:
    """For each parameter, what runs when its argument is to be completed; raises `InvalidOffer`."""
    complete = complete or {}
    unknown = [(name, "cannot be completed: there is no such parameter") for name in complete if name not in parameters]
    if unknown:
        raise InvalidOffer(kind, key, unknown)
    return {name: _completer(kind, key, name, complete.get(name, each.choices)) for name, each in parameters.items()}


def _completer(kind: str, key: str, parameter: str, values: Completer | Iterable[str]) -> Tool:
    definition = ToolDefinition(
        name=call_name("completion/complete", f"{key} {parameter}"),
        description="",
        input_schema={"type": "object"},
        hints=Hints(read_only=True),
    )
    if callable(values):
        try:
            inspect.signature(values).bind("", {})
        except TypeError:
            wrong = "is completed by a function of two: what was typed so far, and the other arguments"
            raise InvalidOffer(kind, key, [(parameter, wrong)]) from None
        run, is_async = _calling(values)
        return Tool(definition, run, is_async=is_async, wants_context=False)
    known = () if isinstance(values, str) else tuple(values)
    if isinstance(values, str) or not all(isinstance(value, str) for value in known):
        raise InvalidOffer(kind, key, [(parameter, "is completed by a function, or from a list of strings")])

    async def beginning_alike(arguments: dict[str, Any], _: Any) -> list[str]:
        typed = arguments["typed"].casefold()
        return [value for value in known if value.casefold().startswith(typed)]

    return Tool(definition, beginning_alike, wants_context=False)


def _calling(function: Any) -> tuple[Any, bool]:
    if inspect.iscoroutinefunction(function):

        async def run(arguments: dict[str, Any], _: Any) -> list[str]:
            return list(await function(arguments["typed"], arguments["others"]))

        return run, True
    # Here, and not when it is sent: a generator does its work while it is read.
    return lambda arguments, _: list(function(arguments["typed"], arguments["others"])), False
