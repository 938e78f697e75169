"""What `dragoman call` does: a server for one call, and the words for what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

import msgspec
import typer

from dragoman.calls.call import Outcome
from dragoman.calls.tracing import Span
from dragoman.cli.arguments import read_arguments, read_json
from dragoman.cli.output import refuse
from dragoman.cli.target import refuse_target, server_with, tools_for
from dragoman.clock import SystemClock
from dragoman.config import Config
from dragoman.errors import PartFailed, ProtocolError, StorageError, TargetError
from dragoman.process.exit_codes import FAILED
from dragoman.runtime import Runtime
from dragoman.schemas.findings import with_place
from dragoman.sections import nearest
from dragoman.telemetry.clean import sanitize, show_all
from dragoman.telemetry.log import Entry, EntryWriter, Sink, StructuredLogger
from dragoman.tools.content import content_blocks, encode_json
from dragoman.tools.tool import Tool
from dragoman.workers.control import Source

T = TypeVar("T")

_LAST_MOMENT = 1.0


class AskedCall(NamedTuple):
    """A call that is to be made, and the server for it."""

    server: Runtime
    tool: str
    arguments: dict[str, Any]
    hint: str
    """At the tool that was meant, if there is none of that name."""


def asked_for(
    tool: str,
    pairs: list[str],
    given: str | None,
    source: Source,
    config: Config,
    *,
    runs_nothing: bool = False,
    **options: Any,
) -> AskedCall:
    """The call that a command line asks for, with a server that has not started; or the end of the command.

    With `runs_nothing` the server has the tools alone, without agents and without the target's lifespan.
    """
    clock = SystemClock()
    logger = StructuredLogger(_log_for_a_person(config), clock, config.logging)
    offered = tools_for(source, config)
    if runs_nothing:
        offered = [each.within(None) for each in offered if isinstance(each, Tool)]
    options |= {"clock": clock, "logger": logger, "memory_tools": source.is_builtin}
    server = server_with(offered, config, **options)
    found = server.catalogue.get(tool)
    schema = found.definition.input_schema if found is not None else {}
    try:
        base = read_json(given) if given is not None else {}
        arguments = read_arguments(pairs, base, schema)
    except ValueError as error:
        refuse(str(error))
    hint = nearest(tool, (each.definition.name for each in server.catalogue)) if found is None else ""
    if found is None and source.is_builtin:
        hint += "; without --target there are only the built-in tools"
    return AskedCall(server, tool, arguments, hint)


def answer_of(asked: AskedCall, key: str | None, trace: bool) -> bytes:
    """The result of a call as JSON; or the end of the command, with its error. Says where time went, with `trace`."""
    spans: list[Span] = []

    async def call() -> Outcome:
        async with started(asked.server) as server:
            told = spans if trace else None
            return await server.call(asked.tool, asked.arguments, trace=told, idempotency_key=key)

    outcome = run_to_its_end(call(), asked)
    for line in trace_lines(spans):
        typer.echo(line, err=True)
    if outcome.error is not None:
        refuse(*error_lines(outcome, asked.hint), code=FAILED)
    if outcome.rendered is not None and outcome.rendered.meta.repeated is True:
        typer.echo("This is the result of the first call with the key.", err=True)
    return encoded(outcome.value)


def run_to_its_end(work: Coroutine[Any, Any, T], asked: AskedCall) -> T:
    """What `work` returns; or the end of the command, if a part or the target's lifespan fails."""
    try:
        return asyncio.run(work)
    except (PartFailed, TargetError) as error:
        refuse_target(error, asked.server.config)


@asynccontextmanager
async def started(server: Runtime) -> AsyncIterator[Runtime]:
    """A server that runs for as long as the block does."""
    await server.start()
    try:
        yield server
    finally:
        # A call that was answered at its deadline may go on for ever; a lifespan has the time that it has in a server.
        await server.stop(_LAST_MOMENT if server.runner.under_way else None)


def _log_for_a_person(config: Config) -> Sink:
    """Entries as text on stderr."""
    writer = EntryWriter(config.logging, text=True)

    def put(entry: Entry) -> None:
        typer.echo(writer([entry]).decode().rstrip(), err=True)

    return put


def trace_lines(spans: list[Span]) -> Iterator[str]:
    """A line for each stage, in microseconds, and the sum."""
    if spans:
        widest = max(len(span.name) for span in spans)
        for span in spans:
            yield f"{span.name:{widest}}  {span.microseconds:12,.1f} µs"
        yield f"{'in all':{widest}}  {sum(span.microseconds for span in spans):12,.1f} µs"


def encoded(value: Any) -> bytes:
    """A result as JSON."""
    blocks = content_blocks(value)
    return encode_json(value if blocks is None else blocks)


def error_lines(outcome: Outcome, hint: str) -> list[str]:
    """Code and message, and below them the details, one by one."""
    error = outcome.error
    assert error is not None
    lines = [f"{error.code}: {sanitize(error.message)}{hint}"]
    try:
        told = error.data if isinstance(error, ProtocolError) else error.details
        details = msgspec.json.decode(encode_json(told or {}))
    except Exception:  # What a handler made up; the client is told as little.
        details = {"reason": "details_not_serializable"}
    for name, value in details.items():
        if name == "errors" and isinstance(value, list) and all(map(_says_where, value)):
            lines += [sanitize(with_place(each)) for each in value]
        else:
            lines.append(f"{sanitize(name)}: {show_all(encode_json(value).decode())}")
    if isinstance(error.__cause__, StorageError):
        lines.append(f"storage: {sanitize(str(error.__cause__))}")
    return lines


def _says_where(problem: Any) -> bool:
    return isinstance(problem, dict) and {"path", "message"} <= problem.keys()
