"""Between steps 5 and 6: a call whose tool has questions goes on once its client has answered them.

In the modern era the questions are the answer to the call, and the client repeats it with its answers. In the handshake
era they are sent to the client while the call waits, without a slot: those are for work, and people take their time.

In the modern era an answer counts only together with the sealed state in which its question was asked:

1. Without a state the client is asked, whatever answers it brings. A state that does not open is refused.
2. The state names the questions by digest, so an answer to a question that reads differently now is asked for again.
3. All rounds of one call share an id and a last moment, so that the id can be forgotten after it (see `Claims`).
4. A state with an approval is valid only where `Claims` are kept that know whether it was used.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import msgspec

from dragoman.access.callers import is_known
from dragoman.access.quota import Quota
from dragoman.access.seal import BrokenSeal, Seal
from dragoman.calls.answers import Answers, AnswersUsed, Claims, InputNeeded, needs_approval
from dragoman.calls.call import Call, Service
from dragoman.calls.limits import encode_arguments
from dragoman.calls.patience import Patience
from dragoman.calls.slots import Slots
from dragoman.clock import Clock
from dragoman.errors import ClientCannotBeAsked, ClientRefused, InvalidParams, NoFreeSlot, PayloadTooLarge
from dragoman.protocol.results import InputRequired
from dragoman.telemetry.log import Logger

MOST_WAITING = 1000
"""Calls that may wait for an answer at the same time: each holds its arguments in memory."""

_encode_sorted = msgspec.json.Encoder(order="deterministic").encode


@dataclass
class AskClient:
    """Asks what `FillAnswers` finds missing. Tools without questions pass by."""

    seal: Seal
    patience: Patience
    slots: Slots
    clock: Clock
    logger: Logger
    claims: Callable[[], Claims]
    waiting: int = 0
    per_caller: Quota = field(default_factory=lambda: Quota(MOST_WAITING // 2))
    """How many of those that wait may be one caller's that is told from others."""

    def __call__(self, proceed: Service, /) -> Service:
        def ask(call: Call) -> Awaitable[Any]:
            if not call.tool.questions:
                return proceed(call)
            return self._repeat(call, proceed) if call.origin.is_modern else self._converse(call, proceed)

        return ask

    async def _repeat(self, call: Call, proceed: Service) -> Any:
        """One round of the modern era: what came with the call is all that is known."""
        bound_to = _identity(call)
        call.answers = self._opened(call, bound_to)
        try:
            return await proceed(call)
        except InputNeeded as missing:
            call.asked = len(missing.requests)
            return InputRequired(missing.requests, self._sealed(call.answers, missing.answers, bound_to))
        except AnswersUsed:
            self._refuse_state(call, "its answers were used already")

    def _sealed(self, known: Answers, needed: Answers, bound_to: tuple[str, ...]) -> str:
        needed = msgspec.structs.replace(needed, id=known.id, ends=known.ends, keeper=known.keeper)
        until = min(self.clock.now().timestamp() + self.patience.limit, known.ends)
        return self.seal.close(_encode_sorted(needed), bound_to, until)

    def _opened(self, call: Call, bound_to: tuple[str, ...]) -> Answers:
        now, keeper = self.clock.now().timestamp(), self.claims().keeper
        if call.request_state is None:
            rounds = len(call.tool.questions) + 1  # Some room for answers that do not fit and are asked for again.
            return Answers({}, {}, os.urandom(16).hex(), now + rounds * self.patience.limit, keeper)
        try:
            answers = msgspec.json.decode(self.seal.open(call.request_state, bound_to, now), type=Answers)
        except (BrokenSeal, msgspec.DecodeError) as error:
            self._refuse_state(call, str(error))
        if answers.asked is None or not answers.id:
            self._refuse_state(call, "of another version")
        if answers.keeper != keeper and needs_approval(call.tool):
            self._refuse_state(call, "an approval that another server, or an earlier start of this one, asked for")
        brought = call.input_responses or {}
        new = {name: brought[name] for name in answers.asked if name in brought}
        self._weigh(new)
        return msgspec.structs.replace(answers, results={**new, **answers.results})

    def _refuse_state(self, call: Call, reason: str) -> NoReturn:
        ids = {"runId": call.run_id, "correlationId": call.correlation_id, "toolName": call.name}
        self.logger.warn("requestState refused", {**ids, "reason": reason})
        raise InvalidParams("Invalid or expired requestState") from None

    async def _converse(self, call: Call, proceed: Service) -> Any:
        """The handshake era: ask, and go on from step 6 with what was answered, until nothing is missing."""
        given, taken = call.arguments, len(call.undo)
        answers = call.answers = Answers()
        while True:
            try:
                return await proceed(call)
            except InputNeeded as missing:
                name, request = next(iter(missing.requests.items()))
            while len(call.undo) > taken:
                call.undo.pop()(call)
            call.arguments = given
            answers.results[name] = await self._ask(call, request.method, request.params)
            self._weigh(answers.results)
            await self._wait_for_room(call)

    async def _ask(self, call: Call, method: str, params: Any) -> dict[str, Any] | str:
        """The client's result, or the reason why there is none."""
        if self.waiting >= MOST_WAITING:
            raise NoFreeSlot(MOST_WAITING, " for calls that wait for an answer")
        caller = call.origin.caller
        holder = caller.principal if is_known(caller) else None
        if holder is not None and not self.per_caller.take(holder):
            raise NoFreeSlot(self.per_caller.most, " of this caller for calls that wait for an answer")
        self.waiting += 1
        try:
            return await self.patience.ask(call, method, params)
        except TimeoutError:
            return "timeout"
        except ClientRefused:
            return "refused"
        except ClientCannotBeAsked:
            return "unsupported"
        finally:
            self.waiting -= 1
            if holder is not None:
                self.per_caller.give_back(holder)

    async def _wait_for_room(self, call: Call) -> None:
        """Whoever has answered is not turned away because of a moment's rush, as a new call would be."""

        async def room() -> None:
            (await self.slots.acquire_slot())()

        while self.slots.in_use >= self.slots.limit:
            try:
                await self.patience.wait(call, room())
            except TimeoutError:
                raise NoFreeSlot(self.slots.limit) from None

    def _weigh(self, results: dict[str, Any]) -> None:
        size, most = len(encode_arguments(results)), self.slots.max_payload_bytes
        if size > most:
            raise PayloadTooLarge(size, most)


def _identity(call: Call) -> tuple[str, ...]:
    """Whom and what a state is for: it opens for no other caller, tool or arguments."""
    caller = call.origin.caller
    arguments = hashlib.sha256(_encode_sorted(call.arguments)).hexdigest()
    return caller.principal, caller.client_id or "", call.name, arguments
