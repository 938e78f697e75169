"""After step 7: what was asked and answered becomes arguments, and what was not is found out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dragoman.access.callers import is_known
from dragoman.calls.answers import Answers, AnswersUsed, Claims, InputNeeded, is_repeatable
from dragoman.calls.call import Call, Service
from dragoman.errors import InternalFailure, InvalidArgument, MissingCapability, Unanswered
from dragoman.protocol.results import InputRequest
from dragoman.tools.questions import NO_ANSWER, Question, digest, is_offered


@dataclass(frozen=True)
class FillAnswers:
    """Passes on calls whose questions are all answered, or need not be. For the others it raises `InputNeeded`.

    In the modern era a client can send the same answers again. A tool that is not repeatable runs once with them; for
    the next call it raises `AnswersUsed`.
    """

    claims: Callable[[], Claims]

    def __call__(self, proceed: Service, /) -> Service:
        def fill(call: Call) -> Awaitable[Any]:
            if not call.tool.questions:
                return proceed(call)
            looked = _Round(call)
            call.arguments = looked.filled_arguments()
            if call.origin.is_modern and looked.has_answers and not is_repeatable(call.tool):
                return self._run_once(call, proceed)
            return proceed(call)

        return fill

    async def _run_once(self, call: Call, proceed: Service) -> Any:
        # Here and not when the state is opened: a call that is refused for want of a slot has not used its answers.
        caller = call.origin.caller
        holder = caller.principal if is_known(caller) else ""
        if not await self.claims().claim(call.answers.id, call.answers.ends, holder):
            raise AnswersUsed
        return await proceed(call)


class _Round:
    """One look at a tool's questions, in order: which are answered, which are to be asked, which have to wait."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._values = dict(call.arguments)
        """What questions may look at."""
        self._filled = dict(call.arguments)
        """What the handler is given."""
        self._requests: dict[str, InputRequest] = {}
        self._open: set[str] = set()
        self._asked: dict[str, str] = {}
        self._counted: dict[str, Any] = {}

    @property
    def has_answers(self) -> bool:
        """Whether an answer of the client's was taken."""
        return bool(self._counted)

    def filled_arguments(self) -> dict[str, Any]:
        """The call's arguments, answers included; raises `InputNeeded` when some are missing."""
        for question in self._call.tool.questions:
            if self._open.isdisjoint(question.needs):
                self._look_at(question)
            else:
                self._open.add(question.name)
        if self._requests:
            raise InputNeeded(self._requests, Answers(self._counted, self._asked))
        return self._filled

    def _look_at(self, question: Question) -> None:
        params = question.params(self._values)
        if params is None:
            self._do_without(question, "unasked")
            return
        name, known_as = question.name, digest(params)
        answers = self._call.answers
        result = answers.results[name] if answers.counts(name, known_as) else None
        if isinstance(result, str):
            self._do_without(question, result)
        elif result is not None and _can_ask(self._call, question) and self._take(question, result):
            self._counted[name], self._asked[name] = result, known_as
        elif _can_ask(self._call, question):
            self._requests[name], self._asked[name] = InputRequest(question.kind.method, params), known_as
            self._open.add(name)
        else:
            self._do_without(question, "unsupported")

    def _take(self, question: Question, result: Mapping[str, Any]) -> bool:
        """Take the client's answer; False when it does not fit, and can be asked for again."""
        try:
            value = question.kind.read(result)
        except InvalidArgument as error:
            if self._call.origin.is_modern:
                return False
            raise InvalidArgument(f"{question.name!r}: {error.message}", error.details) from None
        if value is NO_ANSWER:
            self._do_without(question, "declined")
        else:
            self._values[question.name] = self._filled[question.name] = value
        return True

    def _do_without(self, question: Question, reason: str) -> None:
        if question.default is NO_ANSWER:
            raise _not_asked(question) if reason == "unasked" else Unanswered(question.name, reason)
        self._values[question.name] = question.default
        if not question.is_filled_in:
            self._filled[question.name] = question.default


def _not_asked(question: Question) -> InternalFailure:
    failure = InternalFailure("The tool failed", {"reason": "handler_exception"})
    failure.__cause__ = TypeError(f"{question.name!r} was not asked for, and has no default")
    return failure


def _can_ask(call: Call, question: Question) -> bool:
    """Whether the client can be asked; raises `MissingCapability` where it has to be and said that it cannot."""
    client, is_modern = call.origin.client, call.origin.is_modern
    if client is not None and is_offered(question.kind, client.capabilities):
        return is_modern or client.can_be_asked
    if is_modern and question.default is NO_ANSWER:
        required = question.kind.required
        raise MissingCapability(
            f"The tool needs a client that declares {'.'.join(required)}", {"requiredCapabilities": required}
        )
    return False
