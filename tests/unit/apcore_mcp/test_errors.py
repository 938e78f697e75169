"""apcore's errors in the words of the specification, and nothing of the inside in them."""

from __future__ import annotations

import logging
from typing import Annotated, Any, Literal

import pytest
from apcore import Executor, ModuleError, Registry, errors
from apcore.approval import ApprovalResult
from apcore.cancel import ExecutionCancelledError
from mcp_types import CallToolResult, TextContent
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from apcore_mcp.adapters.errors import ErrorMapper
from apcore_mcp.adapters.schema import SchemaConverter

mapper = ErrorMapper()
SECRET = "hunter2"


def text(error: Exception) -> str:
    """The text of the answer, which is as every error's answer has to be."""
    result = mapper.to_mcp_error(error)
    assert result == CallToolResult(content=[TextContent(type="text", text=mapper.text(error))], is_error=True)
    assert result.model_dump(by_alias=True)["isError"] is True
    assert isinstance(result.content[0], TextContent)
    return result.content[0].text


@pytest.mark.requirement("FR-ERROR-001", "FR-ERROR-011", "SRS-API-11")
@pytest.mark.parametrize("module_id", ["image.resize", "comfyui.workflow.execute", ""])
def test_a_module_that_is_not_there_is_named(module_id: str) -> None:
    error = errors.ModuleNotFoundError(module_id=module_id)
    assert error.code == "MODULE_NOT_FOUND"
    assert text(error) == f"Module not found: {module_id}"


@pytest.mark.requirement("FR-ERROR-003", "NFR-SEC-002", "SRS-API-11")
@pytest.mark.parametrize("caller", ["mcp_client_123", None])
def test_who_may_not_call_is_told_no_names(caller: str | None) -> None:
    error = errors.ACLDeniedError(caller_id=caller, target_id="admin.delete_all")
    assert error.code == "ACL_DENIED"
    assert text(error) == "Access denied"


@pytest.mark.requirement("FR-ERROR-004", "SRS-API-11")
@pytest.mark.parametrize("timeout_ms", [0, 30_000, 60_000])
def test_a_timeout_says_after_how_long(timeout_ms: int) -> None:
    error = errors.ModuleTimeoutError(module_id="slow.module", timeout_ms=timeout_ms)
    assert error.code == "MODULE_TIMEOUT"
    assert text(error) == f"Module timed out after {timeout_ms}ms"


@pytest.mark.requirement("FR-ERROR-005", "SRS-API-11")
@pytest.mark.parametrize("code", ["GENERAL_INVALID_INPUT", "INVALID_MODULE_ID", "MODULE_NOT_FOUND"])
def test_invalid_input_is_known_by_its_class_whatever_its_code(code: str) -> None:
    error = errors.InvalidInputError(message="module_id must be a non-empty string", code=code)
    assert text(error) == "Invalid input: module_id must be a non-empty string"


@pytest.mark.requirement("FR-ERROR-006", "FR-ERROR-007", "FR-ERROR-008", "SRS-API-11")
@pytest.mark.parametrize(
    ("error", "code", "expected"),
    [
        (
            errors.CallDepthExceededError(depth=33, max_depth=32, call_chain=["a.module"]),
            "CALL_DEPTH_EXCEEDED",
            "Call depth limit exceeded",
        ),
        (
            errors.CircularCallError(module_id="a.module", call_chain=["a.module", "b.module", "a.module"]),
            "CIRCULAR_CALL",
            "Circular call detected",
        ),
        (
            errors.CallFrequencyExceededError(module_id="a.module", count=4, max_repeat=3, call_chain=["a.module"]),
            "CALL_FREQUENCY_EXCEEDED",
            "Call frequency limit exceeded",
        ),
    ],
)
def test_calls_between_modules_are_not_retold(error: ModuleError, code: str, expected: str) -> None:
    assert error.code == code
    assert text(error) == expected


@pytest.mark.requirement("FR-ERROR-009", "FR-ERROR-011", "NFR-SEC-002")
@pytest.mark.parametrize(
    "error",
    [RuntimeError("disk full"), KeyError("missing_key"), TypeError("/etc/passwd"), OSError(2, "x"), Exception()],
)
def test_what_nobody_foresaw_is_logged_and_not_told(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(type(error)) as raised:
        raise error
    assert text(raised.value) == "Internal error occurred"
    [record] = caplog.records
    assert record.name.startswith("apcore_mcp.")
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert record.exc_info[1] is error
    assert record.exc_info[2] is not None
    caplog.clear()
    assert text(errors.InternalError("disk full")) == "Module error: GENERAL_INTERNAL_ERROR"
    assert caplog.records == []


class HouseRuleError(ModuleError):
    """A kind that apcore does not know."""


@pytest.mark.requirement("FR-ERROR-010", "FR-ERROR-011")
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError(SECRET), "CONFIG_INVALID"),
        (
            errors.ModuleExecuteError("a.module", f"Module 'a.module' raised RuntimeError: {SECRET}"),
            "MODULE_EXECUTE_ERROR",
        ),
        (errors.ModuleDisabledError("a.module"), "MODULE_DISABLED"),
        (errors.ApprovalDeniedError(ApprovalResult(status="rejected", reason=SECRET), "a.module"), "APPROVAL_DENIED"),
        (ExecutionCancelledError(), "EXECUTION_CANCELLED"),
        (HouseRuleError("HOUSE_RULE", SECRET), "HOUSE_RULE"),
        (ModuleError("ODD", SECRET), "ODD"),
    ],
)
def test_any_other_error_of_apcore_is_its_code(error: ModuleError, code: str) -> None:
    assert text(error) == f"Module error: {code}"


@pytest.mark.requirement("FR-ERROR-002", "SRS-API-11")
def test_fields_are_listed_as_the_specification_has_it() -> None:
    width = {"field": "width", "code": "int_type", "message": "Input should be a valid integer"}
    height = {"field": "parameters.height", "code": "missing", "message": "Field required"}
    one = errors.SchemaValidationError(message="Input validation failed", errors=[width])
    assert one.code == "SCHEMA_VALIDATION_ERROR"
    assert text(one) == "Input validation failed:\n- width: Input should be a valid integer (int_type)"
    assert text(errors.SchemaValidationError(errors=[width, height])) == (
        "Input validation failed:\n"
        "- width: Input should be a valid integer (int_type)\n"
        "- parameters.height: Field required (missing)"
    )
    assert text(errors.SchemaValidationError(errors=[])) == "Input validation failed"


@pytest.mark.requirement("NFR-SEC-002")
def test_a_message_that_quotes_something_is_replaced() -> None:
    said = [
        {"field": "a", "code": "pattern", "message": f"'{SECRET}' does not match '^a+$'"},
        {"field": "b", "code": "required", "message": f'"{SECRET}"'},
        {"field": "c", "code": "odd", "message": f"got `{SECRET}`"},
        {"field": "d"},
    ]
    assert text(errors.SchemaValidationError(errors=said)).splitlines()[1:] == [
        "- a: Input is not valid (pattern)",
        "- b: Field required (required)",
        "- c: Input is not valid (odd)",
        "- d: Input is not valid ()",
    ]


class Size(BaseModel):
    model_config = ConfigDict(extra="forbid")
    width: int = Field(ge=1, le=9)
    unit: Literal["px", "cm"] = "px"


def _refuse_loudly(value: Any) -> Any:
    if value == SECRET:
        raise PydanticCustomError("int_type", "got {value}", {"value": value})
    return value


class Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = Field(min_length=2, max_length=3)
    size: Size
    count: int = Field(default=1, multiple_of=2, gt=0, lt=9)
    password: str = Field(default="aa", pattern="^a+$", json_schema_extra={"x-sensitive": True})
    sizes: list[Size] = Field(default=[], max_length=2)
    by_name: dict[str, int] = {}
    either: int | list[int] | None = None
    checked: str = ""
    loud: Annotated[Any, BeforeValidator(_refuse_loudly)] = None

    @field_validator("checked")
    @classmethod
    def _check(cls, value: str) -> str:
        if value:
            raise ValueError(f"{value} is not good")
        return value


PLAIN = {
    "type": "object",
    "properties": {
        "a": {"type": "integer"},
        "s": {"type": "string", "maxLength": 3, "x-sensitive": True},
        "m": {"enum": ["x", 1, None]},
        "k": {"const": True},
        "t": {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["q"]}},
        "u": {"type": "array", "uniqueItems": True},
        "it's": {"type": ["string", "null"], "pattern": "^a"},
    },
    "required": ["a", "it's"],
    "additionalProperties": False,
}


class Echo:
    """A module whose arguments are checked by apcore."""

    description = "gives back"

    def __init__(self, input_schema: Any = Arguments, output_schema: Any = None) -> None:
        self.input_schema = input_schema
        self.output_schema = output_schema or {}

    async def execute(self, inputs: dict[str, Any], context: Any) -> Any:
        if inputs.get("fail"):
            raise RuntimeError(SECRET)
        return await context.executor.call_async(inputs["call"], {}, context=context) if "call" in inputs else inputs


async def answer(module: Echo, arguments: dict[str, Any]) -> str:
    registry = Registry()
    registry.register("a.module", module)
    registry.register("another.module", Echo())
    definition = registry.get_definition("a.module")
    assert definition is not None
    with pytest.raises(ModuleError) as raised:
        await Executor(registry).call_async("a.module", arguments)
    said = mapper.text(raised.value, SchemaConverter().convert_input_schema(definition), arguments)
    assert SECRET not in said
    assert SECRET not in mapper.text(raised.value)
    return said


@pytest.mark.requirement("FR-ERROR-002", "NFR-SEC-002", "UC-004")
@pytest.mark.parametrize(
    ("arguments", "findings"),
    [
        ({}, ["name: Field required (missing)", "size: Field required (missing)"]),
        ({"name": "ab", "size": {}}, ["size.width: Field required (missing)"]),
        (
            {"name": "ab", "size": {"width": 1}, "sizes": [{"width": 1}, {"unit": SECRET}]},
            [
                "sizes.1.width: Field required (missing)",
                'sizes.1.unit: Input should be one of "px", "cm" (enum)',
            ],
        ),
        (
            {"name": SECRET, "size": {"width": 0}, "count": 10, "password": SECRET, "by_name": {"k": SECRET}},
            [
                "name: String should have at most 3 characters (string_too_long)",
                "size.width: Input should be greater than or equal to 1 (greater_than_equal)",
                "count: Input should be less than 9 (less_than)",
                "password: String should match the pattern ^a+$ (string_pattern_mismatch)",
                "by_name.k: Input should be a valid integer (int_type)",
            ],
        ),
        (
            {"name": "a", "size": {"width": 10, "more": SECRET}, "count": 3, "also": SECRET},
            [
                "name: String should have at least 2 characters (string_too_short)",
                "size.width: Input should be less than or equal to 9 (less_than_equal)",
                "size.more: Extra inputs are not permitted (extra_forbidden)",
                "count: Input should be a multiple of 2 (multiple_of)",
                "also: Extra inputs are not permitted (extra_forbidden)",
            ],
        ),
        (
            {"name": "ab", "size": {"width": "1"}, "either": SECRET, "checked": SECRET, "loud": SECRET},
            [
                "size.width: Input should be a valid integer (int_type)",
                "either: Input should be a valid integer or array or null (int_type)",
                "checked: Input is not valid (format)",
                "loud: Input is not valid (type)",
            ],
        ),
        (
            {"name": "ab", "size": {"width": 1}, "either": [1, SECRET], "sizes": [{"width": 1}] * 3, "count": -2},
            [
                "count: Input should be greater than 0 (greater_than)",
                "sizes: List should have at most 2 items (too_long)",
                "either: Input should be a valid integer or array or null (int_type)",
                "either.1: Input should be a valid integer (int_type)",
            ],
        ),
    ],
)
async def test_a_client_learns_where_and_which_rule_and_never_what_it_sent(
    arguments: dict[str, Any], findings: list[str]
) -> None:
    assert await answer(Echo(), arguments) == "\n- ".join(["Input validation failed:", *findings])


@pytest.mark.requirement("FR-ERROR-002", "NFR-SEC-002")
async def test_so_it_is_for_a_module_with_a_plain_schema() -> None:
    assert await answer(Echo(PLAIN), {}) == (
        "Input validation failed:\n- a: Field required (missing)\n- it's: Field required (missing)"
    )
    arguments = {"a": SECRET, "s": SECRET, "m": SECRET, "k": SECRET, "t": [], "u": [SECRET] * 2, "it's": SECRET, "z": 1}
    assert set((await answer(Echo(PLAIN), arguments)).split("\n- ")) == {
        "Input validation failed:",
        "a: Input should be a valid integer (int_type)",
        "s: String should have at most 3 characters (string_too_long)",
        'm: Input should be one of "x", 1, null (enum)',
        "k: Input should be true (literal_error)",
        "t: List should have at least 1 items (too_short)",
        "u: Input is not valid (uniqueItems)",
        "it's: String should match the pattern ^a (string_pattern_mismatch)",
        "z: Extra inputs are not permitted (extra_forbidden)",
    }
    assert await answer(Echo(PLAIN), {"a": 1, "it's": None, "t": [{}]}) == (
        "Input validation failed:\n- t.0.q: Field required (missing)"
    )


@pytest.mark.requirement("FR-ERROR-002")
async def test_findings_are_bounded_in_number_and_length() -> None:
    many = {f"extra{number}": 1 for number in range(1000)}
    lines = (await answer(Echo(), {"name": "ab", "size": {"width": 1}, **many})).split("\n- ")
    assert lines[0] == "Input validation failed:"
    assert lines[1:21] == [f"extra{n}: Extra inputs are not permitted (extra_forbidden)" for n in range(20)]
    assert lines[21:] == ["and others"]
    long = await answer(Echo(), {"name": "ab", "size": {"width": 1}, "x" * 100_000: 1})
    assert long == f"Input validation failed:\n- {'x' * 199}…: Extra inputs are not permitted (extra_forbidden)"


async def test_a_name_cannot_pretend_to_be_a_finding() -> None:
    said = await answer(Echo(), {"name": "ab", "size": {"width": 1}, "x\n- password: hacked\x1b[2J": 1})
    assert said.splitlines() == [
        "Input validation failed:",
        "- x - password: hacked [2J: Extra inputs are not permitted (extra_forbidden)",
    ]


@pytest.mark.requirement("FR-ERROR-010", "NFR-SEC-002")
async def test_what_is_not_about_the_client_s_arguments_is_not_retold() -> None:
    assert await answer(Echo({}, PLAIN), {"a": SECRET}) == "Module error: SCHEMA_VALIDATION_ERROR"
    assert await answer(Echo({}, Arguments), {"name": SECRET}) == "Module error: SCHEMA_VALIDATION_ERROR"


@pytest.mark.requirement("NFR-SEC-002", "UC-004")
async def test_a_module_s_own_exception_is_an_internal_error() -> None:
    assert await answer(Echo({}), {"fail": True}) == "Internal error occurred"


async def test_arguments_that_a_module_made_up_for_another_are_not_the_client_s() -> None:
    assert await answer(Echo({}), {"call": "another.module"}) == "Module error: SCHEMA_VALIDATION_ERROR"


@pytest.mark.requirement("FR-ERROR-011")
@pytest.mark.parametrize(
    "details",
    [
        {"errors": None},
        {"errors": "no list"},
        {"errors": ["no mapping", None]},
        {"errors": [{"path": None, "keyword": None, "message": None}]},
        {"errors": [{"path": "/" * 1000, "keyword": ["x"]}]},
        {"call_chain": "none"},
    ],
)
def test_an_error_of_any_shape_has_an_answer(details: dict[str, Any]) -> None:
    error = errors.SchemaValidationError()
    error.details = details
    assert text(error).startswith("Input validation failed")


def test_texts_of_others_are_one_line_of_bounded_length() -> None:
    assert text(errors.InvalidInputError(message="a\nb" + "x" * 10_000)) == "Invalid input: a b" + "x" * 481 + "…"
    assert text(errors.ModuleNotFoundError("é" * 10_000)) == "Module not found: " + "é" * 481 + "…"
    assert text(ModuleError("C" * 10_000, "")) == "Module error: " + "C" * 485 + "…"


@pytest.mark.requirement("FR-ERROR-002", "NFR-REL-002")
@pytest.mark.parametrize(
    "schema",
    [
        {"required": [5]},
        {"required": 5},
        {"properties": 5},
        {"properties": {"a": {"properties": 5}}},
        {"anyOf": 5},
        {"properties": {"a": {"type": [{}]}}},
        {"properties": {"a": 5}},
    ],
)
@pytest.mark.parametrize("keyword", ["required", "type", "additionalProperties"])
def test_a_schema_that_is_none_is_no_reason_to_raise(schema: dict[str, Any], keyword: str) -> None:
    error = errors.SchemaValidationError(errors=[{"path": "/a", "keyword": keyword, "message": SECRET}])
    told = mapper.text(error, schema, {"a": {"b": SECRET}})
    assert told.startswith("Input validation failed:\n- a")
    assert SECRET not in told


async def test_a_module_with_a_schema_that_only_its_validator_takes_is_answered_all_the_same() -> None:
    odd = Echo({"type": "object", "required": [5]})
    assert await answer(odd, {}) == "Input validation failed:\n- arguments: Field required (missing)"


class Unspeakable:
    """An object that cannot be a text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Unsaid(ModuleError):
    """An error that never called its base class."""

    def __init__(self) -> None:
        pass


def with_details(error: ModuleError, details: Any) -> ModuleError:
    error.details = details
    return error


@pytest.mark.requirement("FR-ERROR-001", "FR-ERROR-002", "FR-ERROR-004", "FR-ERROR-011", "FR-EXEC-007")
@pytest.mark.parametrize("details", [None, 5, "text", ["a"], Unspeakable()])
def test_details_that_are_no_mapping_say_nothing(details: Any) -> None:
    assert text(with_details(errors.ModuleNotFoundError("m"), details)) == "Module not found: "
    assert text(with_details(errors.ModuleTimeoutError("m", 5), details)) == "Module timed out after 0ms"
    assert text(with_details(errors.SchemaValidationError(), details)) == "Input validation failed"


@pytest.mark.requirement("FR-ERROR-009", "FR-ERROR-011", "FR-EXEC-007")
@pytest.mark.parametrize(
    "error",
    [
        ModuleError(Unspeakable(), "m"),  # type: ignore[arg-type]
        errors.InvalidInputError(Unspeakable()),  # type: ignore[arg-type]
        with_details(errors.ModuleNotFoundError("m"), {"module_id": Unspeakable()}),
        errors.SchemaValidationError(errors=[{"field": Unspeakable()}]),
        Unsaid(),
    ],
)
def test_an_error_that_has_no_text_is_an_internal_error(error: ModuleError, caplog: pytest.LogCaptureFixture) -> None:
    assert text(error) == "Internal error occurred"
    assert caplog.records[-1].exc_info is not None


@pytest.mark.requirement("FR-ERROR-009", "FR-ERROR-010", "UC-004")
def test_only_an_exception_that_apcore_has_wrapped_is_unexpected() -> None:
    assert text(errors.ModuleExecuteError(cause=RuntimeError("disk full"))) == "Internal error occurred"
    assert text(errors.ModuleExecuteError(message="deliberate")) == "Module error: MODULE_EXECUTE_ERROR"
    inner = errors.ModuleExecuteError(cause=ModuleError("HOUSE_RULE", "m"))
    assert text(inner) == "Module error: MODULE_EXECUTE_ERROR"
