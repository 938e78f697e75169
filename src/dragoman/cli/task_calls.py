"""What `dragoman call --task` does: a call that is stored as a task, and the wait for its result."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import typer
from msgspec import Struct

from dragoman.access.callers import LOCAL
from dragoman.agents.ledger import EntryStatus
from dragoman.calls.call import Outcome
from dragoman.cli.calling import AskedCall, encoded, error_lines, run_to_its_end, started
from dragoman.cli.output import complain, refuse
from dragoman.cli.task_answers import DECLINED, CannotAnswer, can_ask, prompted_answer, words_of
from dragoman.cli.task_outcomes import problem_lines, result_in, value_in
from dragoman.clock import sleep
from dragoman.errors import ProtocolError, StorageError, ToolError
from dragoman.process.exit_codes import FAILED
from dragoman.runtime import Runtime
from dragoman.schemas.returns import AS_JSON
from dragoman.tasks.port import Run, StoredQuestion
from dragoman.tasks.running import status_of
from dragoman.telemetry.clean import sanitize

_LOOK_SECONDS = 0.05
_SERVER_SECONDS = 0.5
"""A server that has room begins a task in a fraction of this."""


def created(asked: AskedCall, key: str | None) -> bytes:
    """Store a task for a server, and return its id; or the end of the command. Nothing runs here."""

    async def create() -> str:
        async with started(asked.server) as server:
            return await _create(server, asked, key)

    return run_to_its_end(create(), asked).encode()


def waited_for(asked: AskedCall, key: str | None, timeout: float | None) -> bytes:
    """The result of a task as JSON; or the end of the command, with the reason why there is none.

    A task that no server begins runs here. After `timeout` seconds, a task that runs elsewhere is left alone.
    """

    async def wait() -> Run:
        async with started(asked.server) as server:
            task_id = await _create(server, asked, key)
            typer.echo(f"task {task_id}", err=True)
            return await _Wait(server, task_id, timeout).ended()

    try:
        run = run_to_its_end(wait(), asked)
    except StorageError as error:
        refuse(f"the task cannot be read: {sanitize(str(error))}", code=FAILED)
    if problems := problem_lines(run):
        refuse(*problems, code=FAILED)
    tool = asked.server.catalogue.get(asked.tool)
    return encoded(value_in(result_in(run) or {}, AS_JSON if tool is None else tool.returns))


async def _create(server: Runtime, asked: AskedCall, key: str | None) -> str:
    try:
        return await server.create_task(asked.tool, asked.arguments, idempotency_key=key)
    except (ToolError, ProtocolError) as error:
        refuse(*error_lines(Outcome(error=error), asked.hint), code=FAILED)


class _Wait:
    """Looks at a task until it has ended."""

    def __init__(self, server: Runtime, task_id: str, timeout: float | None) -> None:
        self._server, self._tasks, self._clock = server, server.tasks.requests, server.clock
        self._task_id = task_id
        self._timeout = timeout
        self._told = set[str]()
        """The keys of the questions that were shown."""

    async def ended(self) -> Run:
        """The task once it has ended; or the end of the command."""
        began = self._clock.monotonic()
        begin_at = began + _SERVER_SECONDS
        run = await self._find()
        with _bar() as bar:
            try:
                while run.is_open:
                    now = self._clock.monotonic()
                    if run.status is EntryStatus.WAITING and now >= begin_at:
                        self._tasks.begin_here(run)
                        begin_at = now + _SERVER_SECONDS
                    if self._timeout is not None and now - began >= self._timeout and not self._tasks.runs_here(run):
                        self._refuse_to_wait(run, self._timeout)
                    bar.show(run)
                    await self._put_questions(run, bar)
                    await sleep(self._clock, _LOOK_SECONDS)
                    run = await self._find()
            except asyncio.CancelledError:
                await self._leave(run)
                raise
        return run

    async def _find(self) -> Run:
        return await self._tasks.find(LOCAL, self._task_id)

    async def _leave(self, run: Run) -> None:
        """Somebody has interrupted the command: a task that runs here ends with it, and others go on."""
        if self._tasks.runs_here(run):
            await self._tasks.cancel(run)
        else:
            typer.echo(f"task {self._task_id} goes on: see `dragoman tasks show {self._task_id}`", err=True)

    def _refuse_to_wait(self, run: Run, seconds: float) -> None:
        refuse(
            f"task {self._task_id} is {status_of(run)} after {seconds:g} s, and goes on",
            f"see `dragoman tasks show {self._task_id}`",
            code=FAILED,
        )

    async def _put_questions(self, run: Run, bar: _NoBar) -> None:
        """Ask the person at the terminal what the tool asks; without one, say who can answer."""
        new = [each for each in run.pending if each.key not in self._told]
        self._told.update(each.key for each in new)
        if new and can_ask():
            with bar.hidden():
                for each in new:
                    await self._put(run, each)
        elif new:
            complain(
                *(f"the tool asks: {words_of(each)}" for each in new),
                f"answer with `dragoman tasks answer {self._task_id}`, or with any client of the same caller",
                f"end the task with `dragoman tasks cancel {self._task_id}`",
            )

    async def _put(self, run: Run, question: StoredQuestion) -> None:
        try:
            answer = await asyncio.to_thread(prompted_answer, question)
        except CannotAnswer as refused:
            complain(*refused.lines)
            return
        except typer.Abort:
            answer = dict(DECLINED)
        await self._tasks.update(run, {question.key: answer})


class _Said(Struct):
    """How far a task is, as its tool last said."""

    progress: float = 0.0
    total: float | None = None


class _NoBar:
    """Shows nothing, where stderr is no terminal."""

    def show(self, run: Run) -> None:
        """Nobody looks."""

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Give the terminal to somebody else."""
        yield


@contextmanager
def _bar() -> Iterator[_NoBar]:
    """A bar on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        yield _NoBar()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    class Bar(_NoBar):
        def show(self, run: Run) -> None:
            said = _Said() if run.progress is None else msgspec.json.decode(run.progress, type=_Said)
            words = sanitize(run.message or status_of(run))
            progress.update(shown, completed=said.progress, total=said.total, description=words)

        @contextmanager
        def hidden(self) -> Iterator[None]:
            progress.stop()
            try:
                yield
            finally:
                progress.start()

    words = TextColumn("{task.description}", markup=False)
    columns = (words, BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        shown = progress.add_task("", total=None)
        yield Bar()
