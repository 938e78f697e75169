"""A part of a server: two frozen values, both with optional fields.

A `Part` holds what is known before there is a runtime: settings, migrations, commands, checks. Its `build` is called
once for each runtime and returns a `Contribution`: tools, routes, gauges, loops, and how the part starts and stops.
Parts are listed in a tuple: started in its order, and stopped in reverse.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeAlias

from msgspec import Struct, field

from dragoman.cache.bounded import BoundedCache
from dragoman.calls.call import Call, Outcome, Stage
from dragoman.calls.common_slots import TakeCommon
from dragoman.calls.intake import Intake
from dragoman.calls.pipeline import Pipeline
from dragoman.calls.repeats import Repeats
from dragoman.calls.shares import HolderOf
from dragoman.calls.stages.record_completion import Observer
from dragoman.changes import Change, Publish
from dragoman.clock import Clock
from dragoman.findings import Finding
from dragoman.ids import Ids
from dragoman.offers.catalogue import Offered, Offers
from dragoman.parts.route import Route
from dragoman.sections import Section
from dragoman.storage.migrations import Migration
from dragoman.storage.port import Storage
from dragoman.telemetry.figures import Gauge
from dragoman.telemetry.log import Logger
from dragoman.tools.catalogue import Catalogue

Step: TypeAlias = Callable[[], Awaitable[None] | None]
"""May be sync or async."""


Check: TypeAlias = Callable[[Any], Iterable[Finding]]
"""Takes the part's settings. Changes nothing."""


class Command(Struct, frozen=True):
    """`dragoman <name>`: a function that Typer can make a command of. Its docstring is the help text."""

    name: str
    run: Callable[..., Any] | str
    """The function, or `module:function`, which only the command line imports: a server does without Typer."""


class Loop(Struct, frozen=True):
    """Work that goes on while the server runs. A loop that raises is restarted; a loop that returns has ended."""

    name: str
    run: Callable[[], Awaitable[None]]


class ScheduledJob(Struct, frozen=True):
    """Work that a server does at intervals. `Facilities.scheduled` makes a loop of it.

    Raises `ValueError` for a name that is not made of at most 64 small letters, digits, `.`, `-` and `_`, and for a
    period of no time.
    """

    name: str
    """Unique on a data directory. By convention it begins with the name of its part: `knowledge.tidy`."""
    every_seconds: float
    """The longest time between the end of a run and the next run; the shortest is a tenth less."""
    run: Callable[[], Awaitable[Mapping[str, Any] | None]]
    """Returns facts for the record of the run, as values that JSON has. A run that raises has failed; others follow."""
    everywhere: bool = False
    """Whether it runs in every process, instead of in one among the servers that share a data directory."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,63}", self.name):
            raise ValueError(f"a job cannot have the name {self.name[:200]!r}")
        if not self.every_seconds > 0:
            raise ValueError(f"the job {self.name} cannot run every {self.every_seconds} seconds")


class OwnPipeline(Struct, frozen=True, kw_only=True):
    """A pipeline that calls of some tools go through instead of that for tools, wherever they come from."""

    tools: tuple[str, ...]
    max_concurrent: int
    """Slots beside those of other tools, of all processes of the server together. A call that finds none is refused."""
    max_concurrent_setting: str | None = None
    """The setting that says how many."""
    max_payload_bytes: int | None = None
    """None: as for other tools. There are no other limits of size and shape."""
    stages: tuple[Stage, ...] = ()
    """After `CheckScopes`."""
    repeats: Repeats | None = None
    holder_of: HolderOf | None = None
    """For whom a call takes a slot, after `stages` have seen it: the tenants share the slots. None: no shares."""


class Facilities(Struct, frozen=True, kw_only=True):
    """Everything that a runtime gives its parts."""

    settings: Any
    """The part's own section; None for a part without one."""
    clock: Clock
    ids: Ids
    logger: Logger
    catalogue: Catalogue
    offers: Offers
    storage: Storage
    cache: BoundedCache[Any]
    call: Callable[..., Awaitable[Outcome]]
    """Calls a tool through the whole pipeline, as `Runtime.call` does. Refused before the server has started."""
    get_intake: Callable[[], Intake]
    """The intake of calls of tools, and of actions with pipelines of their own. For `start` and loops, not `build`."""
    open_pipeline: Callable[[int, str], tuple[Intake, Pipeline]]
    """Makes a pipeline for work of the part's own, and the intake of its calls, each of which brings what it runs.

    Takes how many calls run at a time, while others wait, and the message of their records. For `start`, not `build`.
    """
    publish: Publish
    """Tells the other processes of the server about a change. They give it to `on_change`."""
    take_slot: TakeCommon
    """Takes one of the slots of a name that all processes of the server share, of which there are as many as are said,
    for a holder, who has a share of them: how to give it back, or why there is none."""
    resource_updated: Callable[[str], None]
    """Tells everybody who subscribed to a URI that something else is to be read there now. From any thread."""
    on_submit: list[Callable[[Call], None]] = field(default_factory=list)
    """Each sees every call before it starts, and may wrap its `reply` to see what it is answered with."""
    max_value_bytes: int
    """No answer holds a value that weighs more."""
    health: Callable[[], dict[str, Any]]
    """What the tool `health` answers."""
    scheduled: Callable[[ScheduledJob], Loop]
    """Makes the loop that runs a job when it is due. Each run leaves a log entry and a row for `dragoman jobs list`."""


class Contribution(Struct, frozen=True, kw_only=True):
    """What a part brings to one runtime."""

    tools: tuple[Offered, ...] = ()
    """Tools, resources and prompts."""
    routes: tuple[Route, ...] = ()
    gauges: tuple[Gauge, ...] = ()
    observers: tuple[Observer, ...] = ()
    """Called with the record of each call that has ended."""
    around: tuple[Stage, ...] = ()
    """Stages that see every call before anything is checked, just inside of its record."""
    stages: tuple[Stage, ...] = ()
    """Stages after `CheckScopes`, before those of the application."""
    repeats: Repeats | None = None
    """Keeps outcomes of calls. At most one part of a server does."""
    pipelines: tuple[OwnPipeline, ...] = ()
    on_change: Callable[[Change], None] | None = None
    """Called with each change that another process of the server has made."""
    loops: tuple[Loop, ...] = ()
    """They run between `start` and `stop`."""
    start: Step | None = None
    """If it raises, so does the start of the server, with the name of the part."""
    drain: Callable[[], None] | None = None
    """Called when the server begins to stop, before the calls under way are waited for. Never raises."""
    trouble: Callable[[], str | None] = lambda: None
    """Why the part cannot work before the server is restarted; None while it can. `/ready` is 503 meanwhile."""
    stop: Step | None = None
    """Called if `start` has succeeded, after the last call has ended. Its time is bounded."""


class Part(Struct, frozen=True, kw_only=True):
    """Something that a server can have: what is known of it before there is a runtime."""

    name: str
    """Also the name of its section in the settings."""
    settings: type[Section] | None = None
    migrations: tuple[Migration, ...] = ()
    """Of what it keeps in the storage, for each engine."""
    commands: tuple[Command, ...] = ()
    checks: tuple[Check, ...] = ()
    build: Callable[[Facilities], Contribution] = lambda _: Contribution()
