"""Limits and deadlines of tools, and which tools there are besides the user's."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import field

from dragoman.sections import Bytes, Milliseconds, Section, about


class AdminPolicy(Section, frozen=True):
    """Who may use the admin tools."""

    mode: Annotated[
        Literal["deny_all", "local_stdio_only", "token"],
        about("Nobody, the owner of stdin, or (reserved) a token."),
    ] = "deny_all"
    token_env_var: Annotated[str | None, about("Reserved: the variable that holds the token.")] = None


class ToolsConfig(Section, frozen=True):
    """Limits of a single call, and which tools there are besides the user's."""

    default_timeout_ms: Annotated[
        Milliseconds, about("The deadline of a tool that has none of its own.", is_limit=True)
    ] = 30_000
    max_payload_bytes: Annotated[
        Bytes, about("The most that a call's arguments may weigh, as JSON.", is_limit=True)
    ] = 1_048_576
    max_state_bytes: Annotated[Bytes, about("The most that an agent's state may weigh.", is_limit=True)] = 262_144
    memory_enabled: Annotated[
        bool, about("Whether the memory_* tools are served beside a target's own. Without a target they always are.")
    ] = False
    admin_registration_enabled: Annotated[bool, about("One of the two switches for registering tools at run time.")] = (
        False
    )
    admin_policy: AdminPolicy = AdminPolicy()


class CategoryTimeouts(Section, frozen=True):
    """Deadlines by what kind of work a tool does."""

    query: Annotated[Milliseconds, about("Quick reads.", is_limit=True)] = 10_000
    mutation: Annotated[Milliseconds, about("Writes.", is_limit=True)] = 30_000
    scan: Annotated[Milliseconds, about("Analysis of many things.", is_limit=True)] = 120_000
    execution: Annotated[Milliseconds, about("Agents and workflows.", is_limit=True)] = 1_200_000


class TimeoutsConfig(Section, frozen=True):
    """Deadlines: a tool's override wins over what the tool says itself, and that over its category's."""

    input_ms: Annotated[
        Milliseconds,
        about("How long a person may take to answer what a tool asks; no tool's deadline counts it.", is_limit=True),
    ] = 300_000
    tool_timeouts: CategoryTimeouts = CategoryTimeouts()
    tool_overrides: Annotated[dict[str, Milliseconds], about("Milliseconds by tool name.")] = field(
        default_factory=dict
    )
