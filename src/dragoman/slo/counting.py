"""A stage that counts actions which no envelope asks for, such as those that are called as MCP tools."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

from dragoman.access.callers import is_known
from dragoman.calls.call import Call, Service
from dragoman.clock import Clock
from dragoman.errors import Aborted, InvalidParams, ToolError
from dragoman.knowledge.actions import ACTIONS
from dragoman.knowledge.port import ActionRequest
from dragoman.knowledge.standing import ActionOrigin
from dragoman.replies.contract import code_in_contract
from dragoman.replies.vocabulary import ContractCode
from dragoman.slo.meter import ABORTED, INTERNAL, STRANGER, ActionMeter, Requested


@dataclass(frozen=True)
class CountActions:
    """Around everything else. What an envelope asks for is counted by the gateway, with what it refuses."""

    meter: ActionMeter = field(repr=False)
    clock: Clock = field(repr=False)

    def __call__(self, proceed: Service, /) -> Service:
        def count(call: Call) -> Awaitable[Any]:
            if call.name not in ACTIONS or isinstance(call.origin, ActionOrigin):
                return proceed(call)
            return self._counted(call, proceed)

        return count

    async def _counted(self, call: Call, proceed: Service) -> Any:
        began, code = self.clock.monotonic(), ""
        try:
            return await proceed(call)
        except BaseException as error:
            code = _code_of(error)
            raise
        finally:
            took_ms = (self.clock.monotonic() - began) * 1000
            if call.expired:  # It was answered at its deadline, whatever the handler did after that.
                code, took_ms = ContractCode.UNAVAILABLE, call.duration_ms
            self.meter.ended(_requested(call), code, took_ms)


def _code_of(error: BaseException) -> str:
    if isinstance(error, ToolError):
        return code_in_contract(error)
    if isinstance(error, Aborted | asyncio.CancelledError):
        return ABORTED
    return ContractCode.INVALID_ARGUMENT if isinstance(error, InvalidParams) else ContractCode.INTERNAL


def _requested(call: Call) -> Requested:
    """Whose call it is: `AuthorizeAction` knows the tenant, unless the call was refused before that."""
    caller = call.origin.caller
    if isinstance(call.kept_as, ActionRequest):
        return Requested(call.name, call.kept_as.tenant, caller.name, INTERNAL)
    if not is_known(caller):
        return STRANGER
    tenant = next(iter(caller.tenants)) if len(caller.tenants) == 1 else ""
    return Requested(call.name, tenant, caller.name, INTERNAL)
