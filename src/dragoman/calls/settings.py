"""What calls may look like, what they may use, and the gates that they pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta, field

from dragoman.protocol.shape import Shape
from dragoman.sections import Bytes, Count, Problem, Section, about, join, nearest

ARRAY_SIZE_OF_ENVELOPES = 100
"""The default of `limits.max_array_size` in the dialect `envelope`, whose document has it."""
DEFAULT_ARRAY_LIMITS = {"bugfix_scan": 100, "refactor_scan": 100, "memory_bulk_delete": 1000, "ability_inject": 20}


GATES = ("memory-pressure-check", "request-size-check", "array-size-check", "timeout-audit")


class ResourcesConfig(Section, frozen=True):
    """What the process may use at once."""

    max_concurrent_executions: Annotated[Count, about("How many calls may run at the same time.", is_limit=True)] = 10
    max_concurrent_per_caller: Annotated[
        Count | None, about("How many of them may be one caller's; unset, all of them.", is_limit=True)
    ] = None
    max_waiting_per_caller: Annotated[
        Count | None,
        about(
            "How many of the 1000 calls that may wait for their client's answer may be one caller's; unset, half of "
            "them. A caller that is not authenticated may have all."
        ),
    ] = None


class ToolLimits(Section, frozen=True):
    """Limits of one tool. What is unset is as for every tool."""

    max_payload_bytes: Annotated[Bytes | None, about("As `tools.max_payload_bytes`.")] = None
    max_array_size: Annotated[Count | None, about("As `limits.max_array_size`.")] = None
    max_string_length: Annotated[Count | None, about("As `limits.max_string_length`.")] = None
    max_object_depth: Annotated[Count | None, about("As `limits.max_object_depth`.")] = None
    max_object_members: Annotated[Count | None, about("As `limits.max_object_members`.")] = None
    max_concurrent: Annotated[Count | None, about("How many calls of it may run at the same time.", is_limit=True)] = (
        None
    )
    calls_per_minute: Annotated[
        Count | None, about("How many calls of it one caller may make in a minute.", is_limit=True)
    ] = None


class LimitsConfig(Section, frozen=True):
    """What a request may look like, and how many of them there may be. Exactly at a limit passes.

    TOML has no null; a variable or a JSON file has.
    """

    max_request_bytes: Annotated[
        Bytes, about("The most that one message may weigh, before it is parsed.", is_limit=True)
    ] = 10_485_760
    max_message_containers: Annotated[
        Count | None,
        about("The most arrays and objects of one message, before it is parsed; null: any.", is_limit=True),
    ] = 100_000
    max_message_elements: Annotated[
        Count | None, about("The most items and members of one message, before it is parsed; null: any.", is_limit=True)
    ] = 524_288
    max_array_size: Annotated[
        Count | None,
        about(
            "The most items of any array in the arguments; null: any. Unset, 100 in the `envelope` dialect.",
            is_limit=True,
        ),
    ] = 10_000
    max_string_length: Annotated[
        Count | None, about("The most characters of any string in the arguments; null: any.", is_limit=True)
    ] = 100_000
    max_object_depth: Annotated[
        Count | None, about("How deeply objects and arrays may be nested in the arguments; null: any.", is_limit=True)
    ] = 10
    max_object_members: Annotated[
        Count | None, about("The most members of any object in the arguments; null: any.", is_limit=True)
    ] = 1_000
    tool_array_limits: Annotated[dict[str, Count], about("`max_array_size` by tool name, whether higher or lower.")] = (
        field(default_factory=lambda: dict(DEFAULT_ARRAY_LIMITS))
    )
    calls_per_minute_per_caller: Annotated[
        Count | None, about("How many calls one caller may make in a minute; unset, any number.", is_limit=True)
    ] = None
    tools: Annotated[dict[str, ToolLimits], about("Limits by tool name.")] = field(default_factory=dict)

    @property
    def shape(self) -> Shape:
        """The limits of a message before it is parsed."""
        return Shape(self.max_message_containers, self.max_message_elements)


class GuardsConfig(Section, frozen=True):
    """The gates that every call passes."""

    memory_budget_bytes: Annotated[
        Bytes | None, about("What the process may use; unset, what the container or the machine has.")
    ] = None
    gates: Annotated[
        dict[str, Literal["enforce", "warn", "off"]],
        about("By gate: refuse what fails (the default), let it pass with a warning, or do not look."),
        Meta(extra_json_schema={"propertyNames": {"enum": list(GATES)}}),
    ] = field(default_factory=dict)

    def conflicts(self) -> Iterator[Problem]:
        for gate in self.gates:
            if gate not in GATES:
                hint = nearest(gate, GATES) or f"; there are {', '.join(GATES)}"
                yield join("gates", gate), f"is not a gate{hint}"
