"""Step 10: the result is made ready to send while a failure to do so can still be the call's outcome."""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.calls.call import Call, Dialect, Outcome, Service


@dataclass(frozen=True)
class PrepareResult:
    """Has the dialect serialise the value, unless nobody waits for it any longer."""

    dialect: Dialect

    def __call__(self, proceed: Service, /) -> Service:
        prepare_value = self.dialect.prepare

        async def prepare(call: Call) -> Outcome:
            outcome = await proceed(call)
            if not call.answered:
                assert call.tool is not None
                prepare_value(call.tool, outcome)
            return outcome

        return prepare
