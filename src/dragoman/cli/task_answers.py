"""Answers to the questions of tasks, from words on a command line or from a person at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import typer

from dragoman.cli.arguments import kind_in_words, read_arguments
from dragoman.errors import InvalidArgument
from dragoman.schemas.findings import with_place
from dragoman.schemas.forms import form_of
from dragoman.tasks.port import StoredQuestion
from dragoman.telemetry.clean import sanitize

DECLINED: Mapping[str, Any] = {"action": "decline"}
_FORM = "elicitation/create"


class CannotAnswer(Exception):
    """There is no such answer; says why, with a line for each field."""

    def __init__(self, *lines: str) -> None:
        super().__init__(*lines)
        self.lines = lines


def can_ask() -> bool:
    """Whether there is a person to ask."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def words_of(question: StoredQuestion) -> str:
    """A question in one line: the message of an elicitation, and the method of other requests."""
    request = msgspec.json.decode(question.request)
    message = request.get("params", {}).get("message")
    return sanitize(message if isinstance(message, str) else request["method"])


def given_answer(question: StoredQuestion, pairs: Sequence[str], base: Mapping[str, Any]) -> dict[str, Any]:
    """The result that a client would send with these fields. Raises `CannotAnswer` for fields that do not fit."""
    schema = _schema_of(question)
    try:
        return _accepted(schema, read_arguments(pairs, base, schema))
    except ValueError as error:
        raise CannotAnswer(str(error)) from None


def prompted_answer(question: StoredQuestion) -> dict[str, Any]:
    """Ask the person at the terminal, until the fields fit the form. An empty line leaves out what may be left out."""
    schema = _schema_of(question)
    typer.echo(words_of(question), err=True)
    while True:
        fields = {name: _prompted(name, field, schema) for name, field in schema["properties"].items()}
        pairs = [f"{name}={text}" for name, text in fields.items() if text]
        try:
            return given_answer(question, pairs, {})
        except CannotAnswer as refused:
            for line in refused.lines:
                typer.echo(f"  {line}", err=True)


def _schema_of(question: StoredQuestion) -> Mapping[str, Any]:
    request = msgspec.json.decode(question.request)
    params = request.get("params", {})
    if request["method"] != _FORM or "requestedSchema" not in params:
        raise CannotAnswer(f"only an MCP client can answer {sanitize(request['method'])}; --decline refuses it")
    return form_of(params["requestedSchema"]).schema


def _accepted(schema: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    if unknown := [name for name in content if name not in schema["properties"]]:
        known = ", ".join(map(sanitize, schema["properties"]))
        raise CannotAnswer(f"there is no field {', '.join(map(sanitize, unknown))}; the form has {known}")
    try:
        form_of(schema).read(dict(content))
    except InvalidArgument as error:
        raise CannotAnswer(*(sanitize(with_place(each)) for each in (error.details or {})["errors"])) from None
    return {"action": "accept", "content": dict(content)}


def _prompted(name: str, field: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    notes = [kind_in_words(field), "" if name in schema.get("required", ()) else "optional"]
    shown = f"  {field.get('title', name)} ({', '.join(filter(None, notes))})"
    default = field.get("default", "")
    text = default if isinstance(default, str) else msgspec.json.encode(default).decode()
    answer: str = typer.prompt(sanitize(shown), default=text, show_default=bool(text), err=True)
    return answer
