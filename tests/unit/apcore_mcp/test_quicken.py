"""What is spared the executor changes no answer, and nothing that middleware sees."""

from __future__ import annotations

import asyncio
import copy
import datetime
import gc
from collections.abc import AsyncIterator
from contextlib import suppress
from operator import attrgetter
from typing import Any

import apcore
import pytest
from apcore.config import Config
from apcore.errors import ModuleError
from apcore.middleware import Middleware
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from apcore_mcp.server.quicken import _READ, _is_off, quicken
from tests.support.modules import serving


class Address(BaseModel):
    street: str = ""
    door_code: str = Field(default="", json_schema_extra={"x-sensitive": True})


class Order(BaseModel):
    model_config = ConfigDict(extra="allow")
    number: int = 0
    note: str | None = None
    lines: list[str] = []


class Delivery(Order):
    address: Address = Address()
    parcels: list[Address] = []


DICT_SCHEMA = {
    "type": "object",
    "properties": {
        "number": {"type": "integer"},
        "address": {"$ref": "#/$defs/address"},
        "when": {"type": "string", "format": "date-time"},
    },
    "$defs": {"address": {"type": "object", "properties": {"door_code": {"x-sensitive": True}}}},
}


class Echo:
    """A module that answers with what it is given."""

    description = "Say it again"

    def __init__(self, input_schema: Any = Order, output_schema: Any = Order, **attributes: Any) -> None:
        self.input_schema = input_schema
        self.output_schema = output_schema
        vars(self).update(attributes)

    async def execute(self, inputs: dict[str, Any], context: apcore.Context[Any]) -> Any:
        if inputs.get("fail"):
            raise RuntimeError("as asked")
        return copy.deepcopy(inputs)


class Streaming(Echo):
    async def stream(self, inputs: dict[str, Any], context: apcore.Context[Any]) -> AsyncIterator[dict[str, Any]]:
        for name, value in inputs.items():
            yield {name: value}


class Answering(Echo):
    """A module that answers with what it was made with."""

    answer: Any

    async def execute(self, inputs: dict[str, Any], context: apcore.Context[Any]) -> Any:
        return self.answer


class Plain:
    """A module without schemas."""

    description = "Say it again"
    input_schema = None
    output_schema = None

    async def execute(self, inputs: dict[str, Any], context: apcore.Context[Any]) -> Any:
        return inputs


class UnhashableSchema:
    __hash__ = None  # type: ignore[assignment]

    def model_json_schema(self) -> dict[str, Any]:
        return {"type": "object", "properties": {"number": {"x-sensitive": True}}}

    def model_validate(self, data: Any, *, strict: bool | None = None) -> Any:
        return data


def a_registry(**modules: Any) -> apcore.Registry:
    registry = apcore.Registry()
    for name, module in modules.items():
        registry.register(f"shop.{name}", module)
    return registry


class Witness(Middleware):
    """Notes what middleware sees, as a log of calls would; told to, it changes the inputs under way."""

    def __init__(self, adds: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.seen: list[Any] = []
        self._adds = adds

    def before(self, module_id: str, inputs: dict[str, Any], context: Any) -> dict[str, Any] | None:
        self.seen.append(("before", copy.deepcopy(context.redacted_inputs)))
        return None if self._adds is None else {**inputs, **self._adds}

    def after(self, module_id: str, inputs: dict[str, Any], output: dict[str, Any], context: Any) -> None:
        self.seen.append(("after", copy.deepcopy((inputs, output, context.redacted_inputs, context.redacted_output))))

    def on_error(self, module_id: str, inputs: dict[str, Any], error: Exception, context: Any) -> None:
        self.seen.append(("error", copy.deepcopy((inputs, context.redacted_inputs, context.redacted_output))))


def the_modules() -> dict[str, Any]:
    return {
        "order": Echo(),
        "delivery": Echo(Delivery, Delivery),
        "dicts": Echo(copy.deepcopy(DICT_SCHEMA), copy.deepcopy(DICT_SCHEMA)),
        "plain": Plain(),
        "unhashable": Echo(UnhashableSchema(), UnhashableSchema()),
        "streaming": Streaming(Delivery, Delivery, annotations=apcore.ModuleAnnotations(streaming=True)),
        "approved": Echo(annotations=apcore.ModuleAnnotations(requires_approval=True)),
        "answers_otherwise": Echo(Order, Address),
        "answers_nothing": Answering(answer=None),
        "answers_empty": Answering(answer={}),
        "answers_a_list": Answering(answer=[1]),
        "answers_a_model": Answering(answer=Order()),
    }


CONFIGS = {
    "default": None,
    "patterns": {"version": "1.0.0", "project": {"name": "shop"}, "obs": {"redaction": {"regex_patterns": ["^sk-"]}}},
    "names": {
        "version": "1.0.0",
        "project": {"name": "shop"},
        "obs": {"redaction": {"sensitive_keys": ["n*e", "str"]}},
    },
}


def an_executor(config: str = "default", adds: dict[str, Any] | None = None, acl: Any = None) -> apcore.Executor:
    made = CONFIGS[config]
    return apcore.Executor(
        a_registry(**the_modules()),
        config=None if made is None else Config(data=copy.deepcopy(made)),
        middlewares=[Witness(adds)],
        acl=acl,
    )


def asked(executor: apcore.Executor, module: str, inputs: dict[str, Any]) -> list[Any]:
    """Everything that can be seen of a call, a stream and a check."""
    inputs = copy.deepcopy(inputs)
    witness = executor.middlewares[0]
    assert isinstance(witness, Witness)
    seen: list[Any] = []

    async def called() -> None:
        try:
            seen.append(await executor.call_async(module, inputs))
        except ModuleError as error:
            seen.append((type(error), error.code, str(error), error.details))
        except Exception as error:
            seen.append((type(error), str(error)))
        with suppress(Exception):
            seen.append([chunk async for chunk in executor.stream(module, inputs)])

    asyncio.run(called())
    seen.append([(each.check, each.passed, each.error) for each in executor.validate(module, inputs).checks])
    executor.close()
    return _without_traces([*seen, inputs, witness.seen])


def _without_traces(value: Any) -> Any:
    """No two calls have the same trace id or time."""
    if isinstance(value, dict):
        return {
            key: _without_traces(each)
            for key, each in value.items()
            if key not in ("trace_id", "timestamp", "created_at")
        }
    if isinstance(value, list | tuple):
        return [_without_traces(each) for each in value]
    return value


names = st.text(max_size=5) | st.sampled_from(
    [
        *("number", "note", "lines", "address", "parcels", "door_code", "street", "when", "fail", "name"),
        *("api_key", "AccessKey", "author", "trace_id", "_secret_x"),
    ]
)
leaves = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.sampled_from(["sk-1", "x"])
nested = st.lists(leaves, max_size=3) | st.dictionaries(names, leaves, max_size=4)
values = leaves | nested | st.lists(nested, max_size=2) | st.dictionaries(names, nested, max_size=3)
fitting = st.fixed_dictionaries(
    {},
    optional={
        "number": st.integers(0, 9),
        "note": st.none() | st.sampled_from(["", "sk-note"]),
        "lines": st.lists(st.sampled_from(["a", "sk-b"]), max_size=2),
        "address": st.fixed_dictionaries({"street": st.just("Main"), "door_code": st.just("1234")}),
        "parcels": st.lists(st.fixed_dictionaries({"door_code": st.just("5678")}), max_size=2),
        "when": st.sampled_from(["2026-01-01T00:00:00Z", "not then"]),
        "password": st.just("hunter2"),
    },
)


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS)
@given(module=st.sampled_from(sorted(the_modules())), inputs=fitting | st.dictionaries(names, values, max_size=5))
def test_no_answer_and_nothing_that_middleware_sees_differs(config: str, module: str, inputs: dict[str, Any]) -> None:
    bare, quick = an_executor(config), an_executor(config)
    assert quicken(quick)
    for _ in range(2):  # what is kept from the first time counts the second time
        assert asked(quick, f"shop.{module}", inputs) == asked(bare, f"shop.{module}", inputs)


@pytest.mark.parametrize("module", [f"shop.{each}" for each in the_modules()])
@pytest.mark.parametrize("adds", [{"password": "hunter2"}, {"number": "seven"}])
def test_inputs_that_middleware_changes_are_checked_and_redacted_as_they_then_are(
    module: str, adds: dict[str, Any]
) -> None:
    bare, quick = an_executor(adds=adds), an_executor(adds=adds)
    quicken(quick)
    assert asked(quick, module, {"number": 1}) == asked(bare, module, {"number": 1})


@pytest.mark.parametrize("module", [f"shop.{each}" for each in the_modules()])
@pytest.mark.parametrize("inputs", [[1], [["number", 1]], "text"])
def test_inputs_of_no_shape_are_answered_alike(module: str, inputs: Any) -> None:
    bare, quick = an_executor(), an_executor()
    quicken(quick)
    assert asked(quick, module, inputs) == asked(bare, module, inputs)


def test_values_that_are_not_json_are_copied_too() -> None:
    class Tags(dict[str, Any]):
        pass

    when = datetime.datetime(2026, 1, 1)
    inputs = {"number": 1, "when": when, "tags": Tags(token="t"), "pair": (1, [2])}
    bare, quick = an_executor(), an_executor()
    quicken(quick)
    assert asked(quick, "shop.plain", inputs) == asked(bare, "shop.plain", inputs)
    assert asked(quick, "shop.order", inputs) == asked(bare, "shop.order", inputs)


async def test_the_copy_does_not_change_with_what_it_was_made_of() -> None:
    copies: list[Any] = []

    class Changing(Echo):
        async def execute(self, inputs: dict[str, Any], context: apcore.Context[Any]) -> Any:
            inputs["lines"].append("more")
            copies.append(context.redacted_inputs)
            return {}

    executor = apcore.Executor(a_registry(order=Changing()))
    quicken(executor)
    await executor.call_async("shop.order", {"lines": ["one"]})
    assert copies == [{"lines": ["one"]}]


def test_whom_the_rules_deny_is_denied() -> None:
    acl = apcore.ACL(rules=[], default_effect="deny")
    bare, quick = an_executor(acl=acl), an_executor(acl=acl)
    quicken(quick)
    refused = asked(quick, "shop.order", {})
    assert refused == asked(bare, "shop.order", {})
    assert refused[0][1] == "ACL_DENIED"


async def test_every_step_still_runs_in_its_order() -> None:
    bare, quick = an_executor(), an_executor()
    quicken(quick)
    assert quick.describe_pipeline() == bare.describe_pipeline()
    _, expected = await bare.call_async_with_trace("shop.order", {"number": 1})
    _, trace = await quick.call_async_with_trace("shop.order", {"number": 1})
    assert [(each.name, each.skipped) for each in trace.steps] == [(each.name, each.skipped) for each in expected.steps]
    assert len(trace.steps) == 11


async def test_calls_that_go_round_in_circles_are_stopped() -> None:
    class Calling(Plain):
        async def execute(self, inputs: dict[str, Any], context: apcore.Context[Any]) -> Any:
            return await context.executor.call_async("shop.calling", inputs, context)

    executor = apcore.Executor(a_registry(calling=Calling()))
    quicken(executor)
    with pytest.raises(ModuleError) as caught:
        await executor.call_async("shop.calling", {})
    assert caught.value.code in {"CALL_FREQUENCY_EXCEEDED", "CIRCULAR_CALL", "CALL_DEPTH_EXCEEDED"}


async def test_a_schema_is_generated_once_until_its_module_is_registered_again() -> None:
    generated: list[str] = []

    class Counted(Order):
        @classmethod
        def model_json_schema(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
            generated.append("once more")
            return super().model_json_schema(*args, **kwargs)

    module = Echo(Counted, Order)
    executor = apcore.Executor(a_registry(order=module))
    quicken(executor)
    for _ in range(5):
        await executor.call_async("shop.order", {"number": 1})
    first = len(generated)
    assert 1 <= first <= 2  # each step that redacts inputs keeps its own
    executor.registry.unregister("shop.order")
    executor.registry.register("shop.order", module)
    await executor.call_async("shop.order", {"number": 1})
    assert len(generated) == 2 * first


async def test_a_mark_in_a_schema_that_was_registered_again_is_seen() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"number": {"type": "integer"}}}
    module, witness = Echo(schema, None), Witness()
    executor = apcore.Executor(a_registry(order=module), middlewares=[witness])
    quicken(executor)
    await executor.call_async("shop.order", {"number": 1})
    executor.registry.unregister("shop.order")
    schema["properties"]["number"]["x-sensitive"] = True
    executor.registry.register("shop.order", module)
    await executor.call_async("shop.order", {"number": 1})
    assert [each for when, each in witness.seen if when == "before"] == [
        {"number": 1},
        {"number": "***REDACTED***"},
    ]


def test_doing_it_twice_is_doing_it_once() -> None:
    executor = an_executor()
    assert quicken(executor)
    once = [vars(step).get("execute") for step in executor.current_strategy.steps]
    assert quicken(executor)
    assert [vars(step).get("execute") for step in executor.current_strategy.steps] == once
    assert sum(each is not None for each in once) == 3


@pytest.mark.slow
def test_a_registry_keeps_nothing_of_an_executor_that_is_gone() -> None:
    registry = a_registry()
    for _ in range(5):
        assert quicken(apcore.Executor(registry))
    gc.collect()
    assert registry._callbacks == {"register": [], "unregister": []}


def test_steps_that_are_not_apcores_own_stay_as_they_are() -> None:
    class Stricter(apcore.BuiltinInputValidation):
        pass

    executor = an_executor()
    executor.current_strategy.replace("input_validation", Stricter())
    executor.current_strategy.replace("output_validation", apcore.BuiltinOutputValidation())
    assert quicken(executor)
    changed = [step.name for step in executor.current_strategy.steps if "execute" in vars(step)]
    assert changed == ["module_lookup"]


def are_quick(executor: apcore.Executor) -> list[str]:
    return [step.name for step in executor.current_strategy.steps if "execute" in vars(step)]


@pytest.fixture
def _nothing_said_yet() -> None:
    _is_off.cache_clear()


@pytest.mark.usefixtures("_nothing_said_yet")
def test_another_release_with_the_same_functions_is_quickened(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(apcore, "__version__", "0.32.99")
    executor = an_executor()
    assert quicken(executor)
    assert are_quick(executor) == ["module_lookup", "input_validation", "output_validation"]
    assert caplog.records == []


@pytest.mark.usefixtures("_nothing_said_yet")
@pytest.mark.parametrize("name", _READ)
@pytest.mark.parametrize("change", ["other source", "no source", "gone"])
def test_a_function_that_was_not_read_leaves_everything_as_it_is_and_the_log_says_so_once(
    name: str, change: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def other(self: Any, ctx: Any) -> Any:
        return await original(self, ctx)

    holder, _, attribute = name.rpartition(".")
    owner = attrgetter(holder)(apcore) if holder else apcore
    original = getattr(owner, attribute)
    executor, bare = an_executor(), an_executor()
    if change == "gone":
        monkeypatch.delattr(owner, attribute)
    else:
        monkeypatch.setattr(owner, attribute, other if change == "other source" else str)
    assert not quicken(executor)
    assert not quicken(executor)
    assert are_quick(executor) == []
    [record] = caplog.records
    assert (record.name, record.levelname) == ("apcore_mcp.server.quicken", "WARNING")
    assert f"{name} of apcore {apcore.__version__} is not the function that was checked" in record.getMessage()
    monkeypatch.undo()
    inputs = {"number": 1, "address": {"door_code": "1234"}}
    assert asked(executor, "shop.delivery", inputs) == asked(bare, "shop.delivery", inputs)


@pytest.mark.usefixtures("_nothing_said_yet")
async def test_a_server_whose_calls_are_not_quickened_says_so_at_its_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(apcore.BuiltinInputValidation, "execute", an_executor)
    async with serving(a_registry(order=Echo())):
        pass
    assert [each.levelname for each in caplog.records] == ["WARNING"]
    assert "BuiltinInputValidation.execute" in caplog.text


def test_what_only_calls_like_an_executor_stays_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    class Calling:
        registry = a_registry()

        async def call_async(self, module_id: str, inputs: dict[str, Any]) -> Any:
            return inputs

    _is_off.cache_clear()
    assert not quicken(Calling())
    assert caplog.messages == ["Calls of modules are slower than they could be: Calling is not apcore's Executor"]
