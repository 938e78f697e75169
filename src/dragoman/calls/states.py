"""The modern era's `requestState`: what was asked and answered before, sealed, for the client to bring along.

An answer counts only together with the sealed state in which its question was asked:

1. Without a state the client is asked, whatever answers it brings. A state that does not open is refused.
2. The state names the questions by digest, so an answer to a question that reads differently now is asked for again.
3. All rounds of one call share an id and a last moment, so that the id can be forgotten after it (see `Claims`).
4. A state with an approval is valid only where `Claims` are kept that know whether it was used.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import msgspec

from dragoman.access.callers import is_known
from dragoman.access.seal import BrokenSeal, Seal
from dragoman.calls.answers import Answers, Claims, is_repeatable, needs_approval
from dragoman.calls.call import Call
from dragoman.calls.rounds import Round
from dragoman.clock import Clock
from dragoman.errors import InvalidParams
from dragoman.telemetry.log import Logger

_encode_sorted = msgspec.json.Encoder(order="deterministic").encode


@dataclass(frozen=True)
class States:
    """Opens and closes states. A state opens for the caller, the tool and the arguments that it was closed for."""

    seal: Seal
    clock: Clock
    logger: Logger
    claims: Callable[[], Claims]
    limit: float
    """How long the client may take for one round, in seconds."""

    def open(self, call: Call) -> Answers:
        """What is known from earlier rounds, and the answers to what was asked in them that the call brings.

        Raises `InvalidParams` for a state that does not open, or does not count here.
        """
        now, keeper = self.clock.now().timestamp(), self.claims().keeper
        if call.request_state is None:
            rounds = len(call.tool.questions) + 1  # Some room for answers that do not fit and are asked for again.
            return Answers({}, {}, os.urandom(16).hex(), now + rounds * self.limit, keeper)
        try:
            opened = self.seal.open(call.request_state, _identity(call), now)
            answers = msgspec.json.decode(opened, type=Answers)
        except (BrokenSeal, msgspec.DecodeError) as error:
            self._refuse(call, str(error))
        if answers.asked is None or not answers.id:
            self._refuse(call, "of another version")
        if answers.keeper != keeper and needs_approval(call.tool):
            self._refuse(call, "an approval that another server, or an earlier start of this one, asked for")
        return answers

    def close(self, call: Call, looked: Round) -> str:
        """The state for the next round of a call whose arguments have been validated."""
        known = call.answers
        next_round = Answers(looked.counted, looked.digests, known.id, known.ends, known.keeper)
        until = min(self.clock.now().timestamp() + self.limit, known.ends)
        return self.seal.close(_encode_sorted(next_round), _identity(call), until)

    async def use(self, call: Call) -> None:
        """Use the answers of a call whose tool is about to run. A tool that is not repeatable runs once with them."""
        if is_repeatable(call.tool):
            return
        holder = call.origin.caller.principal if is_known(call.origin.caller) else ""
        if not await self.claims().claim(call.answers.id, call.answers.ends, holder):
            self._refuse(call, "its answers were used already")

    def _refuse(self, call: Call, reason: str) -> NoReturn:
        ids = {"runId": call.run_id, "correlationId": call.correlation_id, "toolName": call.name}
        self.logger.warn("requestState refused", {**ids, "reason": reason})
        raise InvalidParams("Invalid or expired requestState") from None


def _identity(call: Call) -> tuple[str, ...]:
    """The caller, tool and arguments that a state belongs to."""
    caller = call.origin.caller
    digest = hashlib.sha256(_encode_sorted(call.raw_arguments)).hexdigest()
    return caller.principal, caller.client_id or "", call.name, digest
