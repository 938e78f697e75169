"""After step 7: a call whose tool has questions goes on once its client has answered them.

In the modern era the questions are the answer to the call, and the client repeats it with its answers. In the handshake
era they are sent to the client while the call waits, without a slot: those are for work, and people take their time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dragoman.access.callers import is_known
from dragoman.access.quota import Quota
from dragoman.calls.answers import Answers
from dragoman.calls.call import Call, Service
from dragoman.calls.patience import Patience
from dragoman.calls.rounds import Round
from dragoman.calls.stages.take_slot import TakeSlot
from dragoman.calls.states import States
from dragoman.errors import ClientCannotBeAsked, ClientRefused, NoFreeSlot
from dragoman.protocol.results import InputRequest, InputRequired

MOST_WAITING = 1000
"""Calls that may wait for an answer at the same time: each holds its arguments in memory."""


@dataclass
class Waiting:
    """The calls that wait for an answer, counted."""

    per_caller: Quota
    """How many of them may be one caller's that is told from others."""
    count: int = 0

    @contextmanager
    def one_more(self, call: Call) -> Iterator[None]:
        """Count the call for as long as it waits; raises `NoFreeSlot` when there are too many."""
        if self.count >= MOST_WAITING:
            raise NoFreeSlot(MOST_WAITING, " for calls that wait for an answer")
        caller = call.origin.caller
        holder = caller.principal if is_known(caller) else None
        if holder is not None and not self.per_caller.take(holder):
            whose = " of this caller for calls that wait for an answer"
            raise NoFreeSlot(self.per_caller.most, whose, "resources.max_waiting_per_caller")
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1
            if holder is not None:
                self.per_caller.give_back(holder)


@dataclass(frozen=True)
class AskClient:
    """Asks what is not answered, and makes arguments of the answers. Tools without questions pass by."""

    states: States
    patience: Patience
    slot: TakeSlot
    """The slot is given back while the client is asked, and taken again before the call goes on."""
    waiting: Waiting

    def __call__(self, proceed: Service, /) -> Service:
        take_slot_again = self.slot.taking_again()

        def ask(call: Call) -> Awaitable[Any]:
            if not call.tool.questions:
                return proceed(call)
            return repeat(call) if call.origin.is_modern else converse(call)

        async def repeat(call: Call) -> Any:
            """One round of the modern era: what came with the call is all that is known."""
            looked = Round(call)
            if looked.requests:
                call.asked = len(looked.requests)
                return InputRequired(looked.requests, self.states.close(call, looked))
            if looked.counted:
                await self.states.use(call)  # Not before: a call that was refused has not used its answers.
            call.arguments = looked.arguments
            return await proceed(call)

        async def converse(call: Call) -> Any:
            """The handshake era: ask one question after the other until nothing is missing."""
            call.answers = Answers()
            while (looked := Round(call)).requests:
                name, request = next(iter(looked.requests.items()))
                self.slot.let_go(call)
                call.answers.results[name] = await self._ask(call, request)
                self.slot.slots.check_payload_size(call.answers.results)
                await take_slot_again(call)
            call.arguments = looked.arguments
            return await proceed(call)

        return ask

    async def _ask(self, call: Call, request: InputRequest) -> dict[str, Any] | str:
        """The client's result, or the reason why there is none."""
        with self.waiting.one_more(call):
            try:
                return await self.patience.ask(call, request.method, request.params)
            except TimeoutError:
                return "timeout"
            except ClientRefused:
                return "refused"
            except ClientCannotBeAsked:
                return "unsupported"
