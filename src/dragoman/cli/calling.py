"""What `dragoman call` does: a server for one call, and the words for what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import typer

from dragoman.calls.call import Outcome
from dragoman.calls.tracing import Span
from dragoman.cli.arguments import read_arguments, read_json
from dragoman.cli.output import refuse
from dragoman.cli.target import refuse_target, server_for
from dragoman.clock import SystemClock
from dragoman.config import Config
from dragoman.errors import TargetError
from dragoman.runtime import Runtime
from dragoman.schemas.findings import with_place
from dragoman.sections import nearest
from dragoman.telemetry.clean import sanitize
from dragoman.telemetry.log import Entry, EntryWriter, Sink, StructuredLogger
from dragoman.tools.content import content_blocks, encode_json
from dragoman.workers.control import Source

_LAST_MOMENT = 1.0


def outcome_of(
    tool: str, pairs: list[str], given: str | None, source: Source, config: Config, trace: bool
) -> tuple[Outcome, str, list[Span]]:
    """What came of the call, a hint at the tool that was meant if there is none of that name, and where time went."""
    clock = SystemClock()
    logger = StructuredLogger(_log_for_a_person(config), clock, config.logging)
    server = server_for(source, config, clock=clock, logger=logger)
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
    spans: list[Span] = []
    try:
        outcome = asyncio.run(_answer(server, tool, arguments, spans if trace else None))
    except TargetError as error:
        refuse_target(error, config)
    return outcome, hint, spans


async def _answer(server: Runtime, tool: str, arguments: dict[str, Any], trace: list[Span] | None) -> Outcome:
    await server.start()
    try:
        return await server.call(tool, arguments, trace=trace)
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
        details = msgspec.json.decode(encode_json(getattr(error, "details", None) or {}))
    except Exception:  # What a handler made up; the client is told as little.
        details = {"reason": "details_not_serializable"}
    for name, value in details.items():
        if name == "errors" and isinstance(value, list) and all(map(_says_where, value)):
            lines += [sanitize(with_place(each)) for each in value]
        else:
            lines.append(f"{sanitize(name)}: {encode_json(value).decode()}")
    return lines


def _says_where(problem: Any) -> bool:
    return isinstance(problem, dict) and {"path", "message"} <= problem.keys()
