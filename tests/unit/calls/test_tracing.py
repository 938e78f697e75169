"""Where the time of one call went."""

from __future__ import annotations

from dragoman import tool
from dragoman.calls.call import Call
from dragoman.calls.origin import Origin
from dragoman.calls.tracing import Span, spans
from dragoman.testing import ManualClock, open_server


async def test_traced_call_names_every_stage_and_adds_up_to_the_whole() -> None:
    clock = ManualClock()

    @tool
    async def wait() -> str:
        clock.advance(0.25)
        return "done"

    async with open_server([wait], clock=clock) as server:
        trace: list[Span] = []
        outcome = await server.runtime.call("wait", trace=trace)
        assert outcome.value == "done"
        stages = [type(stage).__name__ for stage in server.runtime.stages]
        assert [span.name for span in trace] == [*stages, "handler", "answer"]
        assert {span.name: span.microseconds for span in trace if span.microseconds} == {"handler": 250_000.0}
        assert [record["outcome"] for record in server.records] == ["success"]
        assert server.runtime.slots.in_use == 0


async def test_trace_of_a_refused_call_goes_no_further_than_the_stage_that_refused_it() -> None:
    async with open_server() as server:
        trace: list[Span] = []
        outcome = await server.runtime.call("nobody", trace=trace)
        assert outcome.error is not None
        assert [span.name for span in trace] == ["RecordCompletion", "Admit", "CheckRequest", "FindTool", "answer"]


def test_time_is_counted_from_each_mark_to_the_next() -> None:
    call = Call(Origin(), "t", {}, "run-1", "corr-1", lambda call, outcome: None, trace=[("a", 1.0), ("b", 1.5)])
    assert spans(call, 1.75) == [Span("a", 500_000.0), Span("b", 250_000.0)]
