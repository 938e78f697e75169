"""Which of a tool's questions are answered, and which its client has yet to be asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.calls.call import Call
from dragoman.errors import InternalFailure, InvalidArgument, MissingCapability, Unanswered
from dragoman.protocol.results import InputRequest
from dragoman.tools.questions import NO_ANSWER, Question, digest, is_offered


class Round:
    """One look at a tool's questions, in order: which are answered, which are to be asked, which have to wait."""

    def __init__(self, call: Call) -> None:
        self.requests: dict[str, InputRequest] = {}
        """The questions that the client must be asked before the handler can run."""
        self.arguments = dict(call.arguments)
        """The arguments of the handler, once nothing is missing."""
        self.counted: dict[str, Any] = {}
        """The client's results that were taken as answers."""
        self.digests: dict[str, str] = {}
        """Of the questions with those answers, and of the requests."""
        self._call = call
        self._values = dict(call.arguments)
        """What questions may look at."""
        self._open: set[str] = set()
        for question in call.tool.questions:
            if self._open.isdisjoint(question.needs):
                self._look_at(question)
            else:
                self._open.add(question.name)

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
            self.counted[name], self.digests[name] = result, known_as
        elif _can_ask(self._call, question):
            self.requests[name], self.digests[name] = InputRequest(question.kind.method, params), known_as
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
            self._values[question.name] = self.arguments[question.name] = value
        return True

    def _do_without(self, question: Question, reason: str) -> None:
        if question.default is NO_ANSWER:
            raise _not_asked(question) if reason == "unasked" else Unanswered(question.name, reason)
        self._values[question.name] = question.default
        if not question.is_filled_in:
            self.arguments[question.name] = question.default


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
