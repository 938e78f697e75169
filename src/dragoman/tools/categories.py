"""What kind of work a tool does, which decides how long it may take unless something says otherwise."""

from __future__ import annotations

from typing import Final

from dragoman.tools.settings import CategoryTimeouts

CATEGORIES: Final = CategoryTimeouts.__struct_fields__
"""The only ones there are: query, mutation, scan, execution."""

_BY_CATEGORY: Final = {
    "query": (
        "memory_retrieve memory_search memory_list agent_get agent_list session_status trace_get trace_list config_get "
        "config_show ability_list guard_list bugfix_list refactor_list workflow_list workflow_describe"
    ),
    "mutation": (
        "memory_store memory_delete agent_register agent_remove session_create session_join session_leave "
        "session_complete session_fail config_set guard_apply"
    ),
    "scan": "bugfix_scan refactor_scan trace_analyze guard_check",
    "execution": "agent_run workflow_run bugfix_run refactor_apply ability_inject",
}

TOOL_CATEGORIES: Final = {name: category for category, names in _BY_CATEGORY.items() for name in names.split()}
"""The category of well-known tools that do not state one."""
