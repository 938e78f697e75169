"""JSON values for property tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st


def json_values(
    leaves: st.SearchStrategy[Any], keys: st.SearchStrategy[str], *, max_size: int = 3, max_leaves: int = 8
) -> st.SearchStrategy[Any]:
    """Leaves, and lists and objects of them."""

    # No lambda: Hypothesis parses the source of one whenever a draw becomes too large, which in some releases of Python
    # 3.11 now and then ends in a SystemError.
    def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.lists(inner, max_size=max_size) | st.dictionaries(keys, inner, max_size=max_size)

    return st.recursive(leaves, containers, max_leaves=max_leaves)
