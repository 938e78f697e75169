"""The list of tools, for everybody and for those who may not call them all."""

from __future__ import annotations

import msgspec
import pytest

from dragoman import tool
from dragoman.access.callers import ANONYMOUS, LOCAL, Caller
from dragoman.edge.listing import Listing
from dragoman.errors import InvalidParams
from dragoman.testing import open_server


@tool
def one() -> None:
    """One."""


@tool
def two() -> None:
    """Two."""


def granted(*scopes: str) -> Caller:
    return Caller("ada", scopes=frozenset(scopes))


def names(encoded: bytes) -> list[str]:
    return [listed["name"] for listed in msgspec.json.decode(encoded)["tools"]]


async def test_a_list_is_encoded_once_for_each_set_of_scopes() -> None:
    async with open_server([one, two]) as server:
        listing = Listing(server.runtime.catalogue, server.runtime.identity)
        whole = listing.encoded_tools(None, modern=False)
        assert names(whole) == ["health", "one", "two"]
        assert listing.encoded_tools(None, modern=False, caller=ANONYMOUS) is whole
        part = listing.encoded_tools(None, modern=False, caller=granted("tool:one"))
        assert names(part) == ["one"]
        ben = Caller("ben", scopes=frozenset({"tool:one"}))
        assert listing.encoded_tools(None, modern=False, caller=ben) is part
        assert listing.encoded_tools(None, modern=False) is whole
        assert names(listing.encoded_tools(None, modern=True, caller=granted())) == []


@pytest.mark.requirement("FND-CALL-15")
async def test_each_list_changes_with_the_tools() -> None:
    async with open_server([one]) as server:
        catalogue = server.runtime.catalogue
        listing = Listing(catalogue, server.runtime.identity)

        def lists() -> list[list[str]]:
            callers = (LOCAL, granted("tool:two"))
            return [names(listing.encoded_tools(None, modern=False, caller=each)) for each in callers]

        assert lists() == [["health", "one"], []]
        catalogue.unregister("one")
        assert lists() == [["health"], []]
        catalogue.register(two)
        assert lists() == [["health", "two"], ["two"]]


async def test_any_number_of_scopes_leaves_a_bounded_number_of_lists() -> None:
    async with open_server([one]) as server:
        listing = Listing(server.runtime.catalogue, server.runtime.identity)
        for number in range(200):
            listing.encoded_tools(None, modern=False, caller=granted(f"tool:{number}"))
        assert len(listing._encoded) == 64


async def test_a_cursor_is_refused_whoever_brings_it() -> None:
    async with open_server([one]) as server:
        listing = Listing(server.runtime.catalogue, server.runtime.identity)
        with pytest.raises(InvalidParams):
            listing.encoded_tools({"cursor": "x"}, modern=False, caller=granted("tool:one"))
