"""What is held for clients whose stream broke: within bounds, in order, and nothing of anybody else's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dragoman.edge.sdk.replay import ReplayBuffer, SessionEvents

MOST = 2000
OVERHEAD = 512


class Rest(NamedTuple):
    """What came after an event on its stream."""

    name: str
    events: list[tuple[str, str]]
    has_ended: bool


def rest(events: SessionEvents, event_id: str) -> Rest | None:
    found = events.find(event_id)
    if found is None:
        return None
    stream, number = found
    missed = [(each.id, each.text) for each in stream.events.values() if each.number > number]
    return Rest(stream.name, missed, stream.has_ended)


@dataclass
class Held:
    """An event as the model has it."""

    session: int
    stream: int
    id: str
    text: str
    size: int


@dataclass
class Known:
    """A session as the model has it: the streams that were ever opened, and which of them a name stands for."""

    events: SessionEvents
    open: dict[str, int] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    given: list[list[str]] = field(default_factory=list)
    ended: set[int] = field(default_factory=set)


class Replaying(RuleBasedStateMachine):
    """Any sequence of events and ends, against a list of everything."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = ReplayBuffer(MOST)
        self.sessions = [Known(SessionEvents(self.buffer)) for _ in range(3)]
        self.held: list[Held] = []

    @rule(
        index=st.integers(0, 2),
        name=st.sampled_from("abc"),
        size=st.sampled_from([0, 1, 100, 488, MOST - OVERHEAD, MOST - OVERHEAD + 1]),
        is_last=st.booleans(),
    )
    def store(self, index: int, name: str, size: int, is_last: bool) -> None:
        known = self.sessions[index]
        text = "x" * size
        if name not in known.open:
            known.open[name] = len(known.names)
            known.names.append(name)
            known.given.append([])
        stream = known.open[name]
        event_id = known.events.store(name, text, is_last=is_last)
        assert event_id not in [each for ids in known.given for each in ids]
        known.given[stream].append(event_id)
        self.held.append(Held(index, stream, event_id, text, size + OVERHEAD))
        if is_last:
            known.ended.add(known.open.pop(name))
        while sum(each.size for each in self.held) > MOST:
            self.held.pop(0)

    @rule(index=st.integers(0, 2))
    def close(self, index: int) -> None:
        self.sessions[index].events.close()
        self.sessions[index] = Known(SessionEvents(self.buffer))
        self.held = [each for each in self.held if each.session != index]

    @invariant()
    def bounds_hold(self) -> None:
        assert self.buffer.size == sum(each.size for each in self.held) <= MOST
        assert len(self.buffer._held) == len(self.held)

    @invariant()
    def every_id_leads_to_what_came_after_it(self) -> None:
        for index, known in enumerate(self.sessions):
            for stream, position, event_id in given_out(known):
                mine = [each for each in self.held if (each.session, each.stream) == (index, stream)]
                found = rest(known.events, event_id)
                if stream in known.ended and not mine:
                    assert found is None
                    continue
                later = set(known.given[stream][position + 1 :])
                missed = [(each.id, each.text) for each in mine if each.id in later]
                assert found == Rest(known.names[stream], missed, stream in known.ended)


def given_out(known: Known) -> Iterator[tuple[int, int, str]]:
    for stream, ids in enumerate(known.given):
        for position, event_id in enumerate(ids):
            yield stream, position, event_id


TestReplaying = Replaying.TestCase
TestReplaying.settings = settings(stateful_step_count=30, deadline=None)
