"""`dragoman tasks`: the tasks in a ledger, and what became of them; with or without a server."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec
import typer

from dragoman.agents.ledger import OPEN, EntryStatus
from dragoman.cli.ledger_access import (
    Books,
    OfSpace,
    OfTarget,
    age_in_words,
    note,
    one_line_of,
    print_shown,
    with_books,
)
from dragoman.cli.options import AsJson, ConfigFile
from dragoman.cli.output import complain, print_columns, refuse
from dragoman.cli.words import Commands
from dragoman.process.exit_codes import FAILED
from dragoman.telemetry.causes import causes_in, described_causes
from dragoman.telemetry.clean import sanitize

if TYPE_CHECKING:
    from dragoman.tasks.port import Run

_LARGEST = 2**63 - 1
"""SQLite takes no larger number."""


class TaskStatus(StrEnum):
    """The status of a task, as clients are told."""

    WORKING = "working"
    INPUT_REQUIRED = "input_required"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


_KEPT_AS = {
    TaskStatus.WORKING: OPEN,
    TaskStatus.INPUT_REQUIRED: (EntryStatus.RUNNING,),
    TaskStatus.COMPLETED: (EntryStatus.COMPLETED,),
    TaskStatus.FAILED: (EntryStatus.FAILED, EntryStatus.UNKNOWN, EntryStatus.DEAD, EntryStatus.EXPIRED),
    TaskStatus.CANCELLED: (EntryStatus.CANCELLED,),
}

TaskId: TypeAlias = Annotated[str, typer.Argument(help="The task's id.")]

app = Commands()


@app.command("list")
def list_tasks(
    tool: Annotated[str | None, typer.Option("--tool", help="Only tasks of this tool.")] = None,
    status: Annotated[list[TaskStatus] | None, typer.Option("--status", help="Only these; may be repeated.")] = None,
    before: Annotated[
        int | None, typer.Option("--before", min=1, max=_LARGEST, help="The number before which the page ends.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="The most tasks of a page.")] = 100,
    target: OfTarget = None,
    space: OfSpace = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """List the tasks of all callers, the newest first, page by page."""

    async def read(books: Books) -> None:
        page = await _page(books, tool, frozenset(status or TaskStatus), before, limit + 1)
        shown, more = page[:limit], page[limit - 1].number if len(page) > limit else None
        if as_json:
            print_shown({"tasks": [_redacted(books, _outline(each)) for each in shown], "before": more})
            return
        if shown:
            now = books.drafts.now()
            print_columns([("TASK", "TOOL", "STATUS", "AGE", "MESSAGE"), *(_row(each, now) for each in shown)])
        else:
            note("there are no such tasks")
        if more is not None:
            note(f"there are more: --before {more}")

    with_books(config, target, space, read)


@app.command()
def show(
    task_id: TaskId, target: OfTarget = None, space: OfSpace = None, config: ConfigFile = None, as_json: AsJson = False
) -> None:
    """Show a task with its arguments, its open questions and its outcome, without what the log would redact.

    Exit code 1 when there is no such task.
    """

    async def read(books: Books) -> None:
        facts = _redacted(books, _facts(await _found(books, task_id)))
        if as_json:
            print_shown(facts)
        else:
            texts = {name: fact if isinstance(fact, str) else one_line_of(fact) for name, fact in facts.items()}
            print_columns((name, sanitize(text)) for name, text in texts.items())

    with_books(config, target, space, read)


@app.command()
def answer(
    task_id: TaskId,
    fields: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME=VALUE...", help="The fields of the answer. On a terminal, you are asked for them."
        ),
    ] = None,
    question: Annotated[
        str | None, typer.Option("--question", help="The key of the question, if the task asks several.")
    ] = None,
    given: Annotated[
        str | None, typer.Option("--json", help="The fields as a JSON object: the text itself, @FILE, or - for stdin.")
    ] = None,
    decline: Annotated[bool, typer.Option("--decline", help="Decline to answer.")] = False,
    target: OfTarget = None,
    space: OfSpace = None,
    config: ConfigFile = None,
) -> None:
    """Answer the open questions of a task, as its client would.

    Without fields, each open question is asked on the terminal. Exit code 1 when the task does not exist, or asks
    nothing, and when an answer does not fit the question.
    """
    from dragoman.cli.arguments import read_json

    if decline and (fields or given is not None):
        refuse("give fields or --decline, not both")
    try:
        base = None if given is None else read_json(given)
    except ValueError as error:
        refuse(str(error))
    with_books(config, target, space, lambda books: _answer(books, task_id, question, fields or [], base, decline))
    typer.echo(f"task {sanitize(task_id)} has the {'refusal' if decline else 'answer'}")


@app.command()
def cancel(
    task_id: TaskId, target: OfTarget = None, space: OfSpace = None, config: ConfigFile = None, as_json: AsJson = False
) -> None:
    """Ask for a task to be cancelled. One that waits ends at once; the tool of one that runs is asked to stop.

    Exit code 1 when there is no such task, when it has ended already, and when its outcome is unknown.
    """
    run = with_books(config, target, space, lambda books: _cancel(books, task_id))
    status, said = _status(run), sanitize(task_id)
    is_done = run.is_open or run.status is EntryStatus.CANCELLED
    if as_json:
        print_shown({"taskId": run.task_id, "status": status, "cancelRequested": run.is_cancelled})
    elif run.is_open:
        typer.echo(f"task {said} is {status}, and its tool was asked to stop")
    elif is_done:
        typer.echo(f"task {said} is cancelled")
    else:
        complain(f"task {said} is {status}: the process that ran it has ended, and its outcome is unknown")
    raise typer.Exit(0 if is_done else FAILED)


@app.command()
def result(
    task_id: TaskId,
    target: OfTarget = None,
    space: OfSpace = None,
    config: ConfigFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the status, and the whole result or error.")] = False,
) -> None:
    """Print the result of a task as JSON: its structured content, or else its content blocks.

    Exit code 1, with the reason on stderr, when it failed, was cancelled, is not done yet, or is not there.
    """
    from dragoman.cli.task_outcomes import problem_lines, result_in, value_in

    run = with_books(config, target, space, lambda books: _found(books, task_id))
    problems = [f"task {sanitize(task_id)} is {_status(run)}: it is not done yet"]
    if not run.is_open:
        problems = problem_lines(run)
    if as_json:
        print_shown(_outcome(run))
    elif not problems:
        print_shown(value_in(result_in(run) or {}))
    else:
        complain(*problems)
    raise typer.Exit(FAILED if problems else 0)


async def _page(
    books: Books, tool: str | None, statuses: frozenset[TaskStatus], before: int | None, limit: int
) -> list[Run]:
    """The newest tasks with one of the statuses."""
    from dragoman.tasks.port import RunQuery

    kept_as = {each: None for status in TaskStatus if status in statuses for each in _KEPT_AS[status]}
    query = RunQuery(tool=tool, statuses=tuple(kept_as), before=before, limit=limit)
    found: list[Run] = []
    while len(found) < limit and (page := await books.runs.page(query)):
        found += [run for run in page if _status(run) in statuses]
        query = msgspec.structs.replace(query, before=page[-1].number)
    return found[:limit]


async def _found(books: Books, task_id: str) -> Run:
    """A task, whoever it belongs to; or the end of the command."""
    run = await books.runs.find(task_id=task_id)
    if run is None:
        refuse(f"there is no task {sanitize(task_id)}", code=FAILED)
    return run


async def _answer(
    books: Books, task_id: str, key: str | None, fields: list[str], base: dict[str, Any] | None, decline: bool
) -> None:
    """Store answers to the open questions of a task; or the end of the command."""
    from dragoman.cli.task_answers import DECLINED, CannotAnswer, can_ask, given_answer, prompted_answer
    from dragoman.tasks.port import Answered

    run = await _found(books, task_id)
    asked = [each for each in run.pending if key in (None, each.key)]
    is_given = bool(fields) or base is not None
    if not asked:
        said = "asks nothing" if key is None else f"asks no question {sanitize(key)}"
        refuse(f"task {sanitize(task_id)} is {_status(run)}, and {said}", code=FAILED)
    if is_given and len(asked) > 1:
        keys = ", ".join(sanitize(each.key) for each in asked)
        refuse(f"the task asks {len(asked)} questions; name one with --question: {keys}")
    if not (is_given or decline or can_ask()):
        refuse("give the fields as NAME=VALUE or with --json, or --decline; there is no terminal to ask on")
    try:
        for each in asked:
            result = (
                DECLINED if decline else given_answer(each, fields, base or {}) if is_given else prompted_answer(each)
            )
            answers = {each.key: msgspec.json.encode(result)}
            await books.runs.change(Answered(run.number, books.drafts.now(), answers))
    except CannotAnswer as refused:
        refuse("the answer does not fit the question", *refused.lines, code=FAILED)


async def _cancel(books: Books, task_id: str) -> Run:
    """The task after it was asked to end; or the end of the command."""
    from dragoman.tasks.port import Cancelled
    from dragoman.tasks.stored import UNKNOWN_OUTCOME

    run = await _found(books, task_id)
    if not run.is_open:
        refuse(f"task {sanitize(task_id)} is {_status(run)}: there is nothing to cancel", code=FAILED)
    now = books.drafts.now()
    expires_at = now + books.config.tasks.kept_seconds(has_key=run.has_key)
    run = await books.runs.change(Cancelled(run.number, now, expires_at))
    if run.is_open and not run.is_held:  # Nobody is there to ask: the next server would do the same.
        await books.runs.sweep(now, msgspec.json.encode(UNKNOWN_OUTCOME))
        run = await _found(books, task_id)
    return run


def _status(run: Run) -> str:
    from dragoman.tasks.running import status_of

    return status_of(run)


def _row(run: Run, now: float) -> tuple[str, ...]:
    cells = (run.task_id or "", run.tool, _status(run), age_in_words(now - run.created_at), run.message or "-")
    return tuple(map(sanitize, cells))


def _outline(run: Run) -> dict[str, Any]:
    """A task as a list has it."""
    from dragoman.agents.tools import iso

    facts = {
        "number": run.number,
        "taskId": run.task_id,
        "tool": run.tool,
        "status": _status(run),
        "createdAt": iso(run.created_at),
        "lastUpdatedAt": iso(run.updated_at),
        "statusMessage": run.message,
        "progress": None if run.progress is None else msgspec.json.decode(run.progress),
        "owner": run.owner,
    }
    return {name: fact for name, fact in facts.items() if fact is not None}


def _facts(run: Run) -> dict[str, Any]:
    """Everything about a task."""
    from dragoman.agents.tools import iso
    from dragoman.cli.task_outcomes import value_in

    key = run.request_id.removeprefix(f"{run.tool} ")
    questions = {each.key: msgspec.json.decode(each.request) for each in run.pending}
    facts = {
        "endedAt": None if run.ended_at is None else iso(run.ended_at),
        "expiresAt": None if run.is_open else iso(run.expires_at),
        "idempotencyKey": None if key == run.task_id else key,
        "correlationId": run.correlation_id,
        "attempts": run.attempts,
        "mayRunAgain": run.is_repeatable,
        "isHeld": run.is_held if run.is_open else None,
        "cancelRequested": run.is_cancelled or None,
        "arguments": msgspec.json.decode(run.arguments),
        "inputRequests": questions or None,
    }
    kept = {name: fact for name, fact in facts.items() if fact is not None}
    if causes := causes_in(run.error):
        kept["causes"] = described_causes(causes)
    outcome = _outcome(run)
    if "result" in outcome:
        outcome |= {"isError": outcome["result"]["isError"], "result": _readable(value_in(outcome["result"]))}
    return {**_outline(run), **kept, **outcome}


def _outcome(run: Run) -> dict[str, Any]:
    """The status of a task, and what it came to."""
    from dragoman.cli.task_outcomes import error_of, result_in

    facts: dict[str, Any] = {"taskId": run.task_id, "status": _status(run)}
    found = result_in(run)
    if found is not None:
        facts["result"] = found
    elif facts["status"] == TaskStatus.FAILED:
        facts["error"] = msgspec.to_builtins(error_of(run))
    return facts


def _readable(value: Any) -> Any:
    """Structured content as it is; of content blocks, texts that are JSON as values, so that they can be redacted."""
    if not isinstance(value, list):
        return value
    return [{**each, "text": _decoded(each["text"])} if "text" in each else each for each in value]


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def _redacted(books: Books, facts: dict[str, Any]) -> dict[str, Any]:
    from dragoman.telemetry.log import make_cleaner

    redacted: dict[str, Any] = make_cleaner(books.config.logging).redact(facts)
    return redacted
