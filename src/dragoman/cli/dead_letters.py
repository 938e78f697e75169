"""Dead letters of both kinds, for `dragoman messages`: messages to agents, in a ledger, and actions, on the bus.

Actions have numbers of their own, written as `a17`. A list has the messages to agents first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import typer

from dragoman.agents.ledger import PARKED, LedgerEntry, Query
from dragoman.cli.ledger_access import Books, with_books
from dragoman.cli.options import settings_from
from dragoman.cli.output import refuse
from dragoman.cli.storage_access import LARGEST, OPERATOR, OpenStorage, opened_storage, with_storage
from dragoman.extras import install_command
from dragoman.process.exit_codes import FAILED
from dragoman.telemetry.causes import causes_in
from dragoman.telemetry.clean import sanitize

if TYPE_CHECKING:
    from dragoman.config import Config
    from dragoman.gateway.dead_letters import ActionLetters, DeadAction

T = TypeVar("T")
_PAGE = 500


class LetterKind(StrEnum):
    """The kinds of messages."""

    AGENT = "agent"
    ACTION = "action"


class LetterNumber(NamedTuple):
    """The number of a message to an agent, or of an action."""

    kind: LetterKind
    number: int

    @property
    def shown(self) -> int | str:
        """As JSON has it."""
        return self.number if self.kind is LetterKind.AGENT else f"a{self.number}"


def letter_number(text: str) -> LetterNumber:
    """A number as it is typed: `17`, or `a17`."""
    parts = re.fullmatch(r"(a?)([0-9]{1,19})", text)
    if parts is None or int(parts[2]) > LARGEST:
        raise typer.BadParameter("give the number of a message, such as 17, or a17 for an action")
    return LetterNumber(LetterKind.ACTION if parts[1] else LetterKind.AGENT, int(parts[2]))


class Filter(NamedTuple):
    """Which dead letters are meant."""

    kind: LetterKind | None = None
    agent: str | None = None
    source: str | None = None
    tenant: str | None = None
    older_than: float | None = None

    @property
    def is_set(self) -> bool:
        return any(each is not None for each in self)

    @property
    def kinds(self) -> frozenset[LetterKind]:
        """The kinds that there can be; or the end of the command."""
        kinds = set(LetterKind) if self.kind is None else {self.kind}
        if self.agent is not None or self.source is not None:
            kinds.discard(LetterKind.ACTION)
        if self.tenant is not None:
            kinds.discard(LetterKind.AGENT)
        if not kinds:
            refuse("--agent and --source are for messages to agents, and --tenant for actions: give only one kind's")
        return frozenset(kinds)

    def query(self, letters: Letters, after: int, limit: int) -> Query:
        """The filter for a ledger."""
        before = self.before(letters)
        return Query(
            target=self.agent, source=self.source, statuses=PARKED, after=after, limit=limit, accepted_before=before
        )

    def before(self, letters: Letters) -> float | None:
        """The time before which the letters were accepted, or have died."""
        return None if self.older_than is None else letters.now() - self.older_than


class Letters(NamedTuple):
    """The dead letters that a command is about; None for a kind that it is not about, or that there is none of."""

    config: Config
    now: Callable[[], float]
    books: Books | None
    actions: ActionLetters | None

    async def page(
        self, chosen: Filter, limit: int, after: LetterNumber | None = None
    ) -> list[LedgerEntry | DeadAction]:
        """The first letters behind `after`."""
        found: list[LedgerEntry | DeadAction] = []
        start = {} if after is None else {after.kind: after.number}
        if self.books is not None and LetterKind.ACTION not in start:
            query = chosen.query(self, start.get(LetterKind.AGENT, 0), limit)
            found += await self.books.admin.page(query)
        if self.actions is not None and len(found) < limit:
            found += await self.actions.page(
                limit - len(found),
                after=start.get(LetterKind.ACTION, 0),
                died_before=chosen.before(self),
                tenants=None if chosen.tenant is None else {chosen.tenant},
            )
        return found

    async def numbers(self, chosen: Filter) -> list[LetterNumber]:
        """The numbers of all letters. All of them first: one that is redriven may soon be dead again."""
        numbers: list[LetterNumber] = []
        while page := await self.page(chosen, _PAGE, numbers[-1] if numbers else None):
            numbers += map(number_of, page)
        return numbers

    async def redrive(self, which: LetterNumber, *, dry_run: bool) -> dict[str, Any]:
        """Redrive a letter; what a list of redriven ones has about it. Raises `NotRedriven` with the reason."""
        if which.kind is LetterKind.ACTION:
            return await self._redrive_action(which, dry_run)
        assert self.books is not None
        reason = f"message {which.number} is neither dead nor unknown"
        if dry_run:
            found = await self.books.ledger.get([which.number])
            if not found or not found[0].can_be_redriven:
                raise NotRedriven(reason)
            causes = causes_in(found[0].error)
            return {"number": which.number, **({"cause": causes[-1].line} if causes else {})}
        drafts = self.books.drafts
        now = drafts.now()
        made = await self.books.admin.redrive(which.number, drafts.message_id(), now, now + drafts.ttl_ms / 1000)
        if made is None:
            raise NotRedriven(reason)
        return {"number": which.number, "newNumber": made.number, "messageId": made.message_id}

    async def _redrive_action(self, which: LetterNumber, dry_run: bool) -> dict[str, Any]:
        from dragoman.errors import BusFull, Conflict
        from dragoman.gateway.dead_letters import errors_of

        assert self.actions is not None
        letter = await self.actions.find(which.number)
        try:
            if letter is not None and dry_run:
                self.actions.check(letter)
                cause = next((each["cause"] for each in reversed(errors_of(letter)) if "cause" in each), None)
                return {"number": which.shown, **({} if cause is None else {"cause": cause})}
            made = None if letter is None else await self.actions.redrive(letter, OPERATOR)
        except (BusFull, Conflict) as error:
            raise NotRedriven(f"action {which.shown} cannot be redriven: {sanitize(error.message)}") from None
        if made is None:
            raise NotRedriven(f"there is no dead action {which.shown}")
        return {"number": which.shown, "newNumber": f"a{made.new_number}", "requestId": made.request_id}


class NotRedriven(Exception):
    """A letter cannot be redriven; says why."""


def number_of(letter: LedgerEntry | DeadAction) -> LetterNumber:
    """The number of a letter of either kind."""
    kind = LetterKind.AGENT if isinstance(letter, LedgerEntry) else LetterKind.ACTION
    return LetterNumber(kind, letter.number)


def with_letters(
    file: Path | None,
    target: str | None,
    space: str | None,
    kinds: frozenset[LetterKind],
    work: Callable[[Letters], Awaitable[T]],
) -> T:
    """Call `work` with the dead letters of these kinds, and return its result; or end the command.

    Both kinds are meant by default, and a data directory may have but one of them.
    """
    config = settings_from(file).config
    has_ledger, has_actions = _found_in(config)
    with_actions = LetterKind.ACTION in kinds and has_actions
    if with_actions and find_spec("joserfc") is None:
        refuse(f"actions need the extra `http`: {install_command('http')}; or choose --kind agent")

    async def work_on_books(books: Books) -> T:
        if not with_actions:
            return await work(Letters(config, books.drafts.now, books, None))
        async with opened_storage(config) as stored:
            return await work(Letters(config, stored.now, books, _actions_of(stored)))

    async def work_on_actions(stored: OpenStorage) -> T:
        return await work(Letters(config, stored.now, None, _actions_of(stored)))

    if LetterKind.AGENT in kinds and (has_ledger or not with_actions):
        return with_books(file, target, space, work_on_books)
    if config.storage.engine == "sqlite" and not with_actions:
        refuse("the data directory has no actions yet; a server with --gateway keeps them")
    return with_storage(file, work_on_actions)


def _found_in(config: Config) -> tuple[bool, bool]:
    """Whether the data directory has a ledger, and whether it has actions; or the end of the command."""
    from dragoman.adapters.sqlite_ledger_overview import has_actions, spaces_in
    from dragoman.errors import ConfigError, StorageError
    from dragoman.storage.settings import data_directory

    if config.storage.engine != "sqlite":
        return False, False
    try:
        folder = data_directory(config.storage, os.environ)
        return bool(spaces_in(folder)), has_actions(folder)
    except ConfigError as error:
        refuse("The settings cannot be used:", *str(error).splitlines())
    except StorageError as error:
        refuse(f"the database cannot be used: {sanitize(str(error))}", code=FAILED)


def _actions_of(stored: OpenStorage) -> ActionLetters:
    from dragoman.gateway.dead_letters import ActionLetters
    from dragoman.gateway.requests import ActionRequests
    from dragoman.messaging.bus import DeadLetters

    storage = stored.storage
    return ActionLetters(storage.port(DeadLetters), storage.port(ActionRequests), stored.clock)
