"""What a tool has to know before it runs, and not from its caller's model: declared as parameters, asked of the client.

    @tool
    def delete(path: str, sure: Annotated[bool, Ask("Really delete {path}?")]) -> str: ...

1. A question is worded from the arguments and from the answers to the questions before it. One that looks at an answer
   is asked once that answer is there; all others are asked together, where the protocol can.
2. Wording must not depend on anything else, and may be worked out several times: an answer counts for the question as
   it was asked.
3. Without an answer (declined, dismissed, not in time, or the client cannot be asked) a parameter has its default, or
   None if its type allows that. One with neither ends the call before its handler runs.
"""

from __future__ import annotations

import hashlib
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from string import Formatter
from typing import Annotated, Any, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from dragoman.errors import InternalFailure, InvalidArgument, InvalidTool, ToolError
from dragoman.schemas.forms import Form, make_form
from dragoman.telemetry.clean import show_all

Wording: TypeAlias = str | Callable[..., str | None]
"""Text with `{argument}` in it, or a function of arguments and earlier answers by name; None: this need not be asked.

Functions run on the event loop, so they must not block.
"""

_encode_sorted = msgspec.json.Encoder(order="deterministic").encode


class Ask(Struct, frozen=True):
    """Asks the person behind the client. The parameter's type is the form that they fill in."""

    message: Wording


class Sample(Struct, frozen=True):
    """Asks the client's model. The parameter is the text that it answers, a `str`."""

    prompt: Wording
    max_tokens: int = 1000
    system: str | None = None


class Roots(Struct, frozen=True):
    """Asks the client which folders it works on. The parameter is a `list[Root]`."""


class Root(Struct, omit_defaults=True):
    """A folder or file that the client works on."""

    uri: str
    name: str | None = None


Marker: TypeAlias = Ask | Sample | Roots


class _NoAnswer:
    """Nobody answered."""


NO_ANSWER = _NoAnswer()


class QuestionKind(Protocol):
    """One of the three things that MCP lets a server ask."""

    method: str
    required: Mapping[str, Any]
    """The capability that it takes, as MCP's `ClientCapabilities`."""

    def params(self, text: str) -> Mapping[str, Any]:
        """The params of the request."""
        ...

    def read(self, result: Mapping[str, Any]) -> Any:
        """The value in the client's result, or `NO_ANSWER`; raises `InvalidArgument` for what does not fit."""
        ...


class FormKind:
    """`elicitation/create`."""

    method = "elicitation/create"
    required: Mapping[str, Any] = {"elicitation": {"form": {}}}

    def __init__(self, form: Form) -> None:
        self._form = form

    def params(self, text: str) -> Mapping[str, Any]:
        return {"message": text, "requestedSchema": self._form.schema}

    def read(self, result: Mapping[str, Any]) -> Any:
        match result.get("action"):
            case "accept":
                return self._form.read(result.get("content"))
            case "decline" | "cancel":
                return NO_ANSWER
        raise InvalidArgument("The answer is neither accept nor decline nor cancel")


class SampleKind:
    """`sampling/createMessage`."""

    method = "sampling/createMessage"
    required: Mapping[str, Any] = {"sampling": {}}

    def __init__(self, max_tokens: int, system: str | None) -> None:
        self._options = {"maxTokens": max_tokens, **({"systemPrompt": system} if system is not None else {})}

    def params(self, text: str) -> Mapping[str, Any]:
        return {"messages": [{"role": "user", "content": {"type": "text", "text": text}}], **self._options}

    def read(self, result: Mapping[str, Any]) -> Any:
        content = result.get("content")
        blocks = content if isinstance(content, list) else [content]
        texts = [block["text"] for block in blocks if isinstance(block, dict) and isinstance(block.get("text"), str)]
        if not texts:
            raise InvalidArgument("The model's answer has no text")
        return "".join(texts)


class RootsKind:
    """`roots/list`."""

    method = "roots/list"
    required: Mapping[str, Any] = {"roots": {}}

    def params(self, text: str) -> Mapping[str, Any]:
        return {}

    def read(self, result: Mapping[str, Any]) -> Any:
        try:
            return msgspec.convert(result.get("roots"), list[Root])
        except msgspec.ValidationError:
            raise InvalidArgument("The answer is not a list of roots") from None


def is_offered(kind: QuestionKind, capabilities: Mapping[str, Any]) -> bool:
    """Whether a client with these capabilities can be asked this; elicitation without a mode is by form."""
    (name,) = kind.required
    offered = capabilities.get(name)
    if not isinstance(offered, dict):
        return False
    return name != "elicitation" or "form" in offered or "url" not in offered


class Question(Struct, frozen=True):
    """A parameter that its tool's client is asked for."""

    name: str
    kind: QuestionKind
    needs: frozenset[str]
    """The questions whose answers its wording looks at."""
    default: Any
    """What it is without an answer; `NO_ANSWER` where it cannot do without."""
    is_filled_in: bool
    """Whether the function has that default by itself."""
    _word: Callable[[Mapping[str, Any]], str | None]
    is_approval: bool = False
    """Whether a yes is valid for one run of the tool, on the server that asked."""

    def params(self, values: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """What is asked, given arguments and earlier answers; None when it need not be."""
        try:
            text = self._word(values)
        except ToolError:
            raise
        except Exception as error:  # It is the author's code, or looks at the author's types.
            raise InternalFailure("The tool failed", {"reason": "handler_exception"}) from error
        return None if text is None else self.kind.params(text)


def digest(params: Mapping[str, Any]) -> str:
    """What tells a question from the same one worded otherwise."""
    return hashlib.blake2b(_encode_sorted(params), digest_size=12).hexdigest()


def marker_in(hint: Any) -> Marker | None:
    """The question that a parameter is annotated with; raises `TypeError` where it is inside of another type."""
    if typing.get_origin(hint) is Annotated:
        for note in typing.get_args(hint)[1:]:
            if isinstance(note, Marker):
                return note
            if isinstance(note, type) and issubclass(note, Marker):
                raise TypeError(f"{note.__name__} has to be called: {note.__name__}(…)")
    if any(marker_in(part) is not None for part in typing.get_args(hint)):
        raise TypeError("a question stands outermost: Annotated[… | None, Ask(…)]")
    return None


def make_questions(
    tool_name: str, asked: Iterable[tuple[inspect.Parameter, Any]], defaults: Mapping[str, Any]
) -> tuple[Question, ...]:
    """The questions of parameters that have a marker in their hint, in their order; raises `InvalidTool`."""
    questions: list[Question] = []
    for parameter, hint in asked:
        marker = marker_in(hint)
        assert marker is not None
        try:
            question = _make_question(parameter, hint, marker, [each.name for each in questions], defaults)
        except (TypeError, ValueError, NameError) as error:
            raise InvalidTool(tool_name, [(parameter.name, str(error))]) from error
        questions.append(question)
    return tuple(questions)


def _make_question(
    parameter: inspect.Parameter, hint: Any, marker: Marker, earlier: Sequence[str], defaults: Mapping[str, Any]
) -> Question:
    """The question of a parameter annotated with `marker`; raises `TypeError` with what is wrong with it.

    `earlier` are the questions before it, `defaults` what arguments are that were not given; `...` where they must be.
    """
    base, *notes = typing.get_args(hint)
    kept, is_nullable = _without_none(base)
    rest = tuple(note for note in notes if note is not marker)
    kind = _kind(Annotated[(kept, *rest)] if rest else kept, kept, marker, parameter.name)
    has_default = parameter.default is not parameter.empty
    word, looks_at = _wording(marker)
    unknown = [name for name in looks_at if name not in earlier and name not in defaults]
    if unknown:
        raise TypeError(f"its question looks at {unknown[0]!r}, which is no argument, and no question before it")
    known = {name: defaults[name] for name in looks_at if defaults.get(name, ...) is not ...}
    return Question(
        parameter.name,
        kind,
        frozenset(looks_at) & frozenset(earlier),
        parameter.default if has_default else None if is_nullable else NO_ANSWER,
        has_default,
        lambda values: word({**known, **values}),
    )


def _without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint, False
    kinds = typing.get_args(hint)
    rest = tuple(kind for kind in kinds if kind is not type(None))
    return (typing.Union[rest] if rest else hint), len(rest) < len(kinds)  # noqa: UP007


def _kind(annotated: Any, bare: Any, marker: Marker, name: str) -> QuestionKind:
    match marker:
        case Ask():
            return FormKind(make_form(annotated, name))
        case Sample(max_tokens=max_tokens, system=system):
            if bare is not str:
                raise TypeError("what a model answers is a str")
            return SampleKind(max_tokens, system)
        case Roots():
            if bare != list[Root]:
                raise TypeError("roots are a list[Root]")
            return RootsKind()


class _Shown(Formatter):
    """Formats text as `str.format_map` does, but shows everything that is in the values."""

    def format_field(self, value: Any, format_spec: str) -> str:
        return show_all(super().format_field(value, format_spec), keep="\n\t")


_shown = _Shown()


def _wording(marker: Marker) -> tuple[Callable[[Mapping[str, Any]], str | None], list[str]]:
    """How a question is worded, and the names that its wording looks at."""
    if isinstance(marker, Roots):
        return (lambda _: ""), []
    wording = marker.message if isinstance(marker, Ask) else marker.prompt
    if isinstance(wording, str):
        try:
            parts = [name for _, name, _, _ in Formatter().parse(wording) if name is not None]
        except ValueError as error:
            raise TypeError(f"its wording cannot be read: {error}") from None
        text = wording
        return (lambda values: _shown.vformat(text, (), values)), list(
            dict.fromkeys(name.partition(".")[0].partition("[")[0] for name in parts)
        )
    if not callable(wording) or inspect.iscoroutinefunction(wording):
        raise TypeError("a question is worded by a text, or by a function that is not async")
    function, names = wording, list(inspect.signature(wording).parameters)
    return (lambda values: function(**{name: values[name] for name in names})), names
