"""The places of transfers: shared by tenants, and given back whatever happens."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from dragoman.calls.places import Holder
from dragoman.errors import NoFreeSlot
from dragoman.gateway.artifacts import Transfers

LARGE, SMALL, OTHER = map(Holder, ("large", "small", "other"))


def test_a_tenant_with_its_share_is_refused_and_another_one_is_not_until_all_are_taken() -> None:
    downloads = Transfers("downloads", 3)
    with ExitStack() as running:
        for holder in (LARGE, LARGE):
            downloads.check(holder)
            running.enter_context(downloads.taken(holder))
        with pytest.raises(NoFreeSlot, match="All 2 slots for downloads of this tenant are taken"):
            downloads.check(LARGE)
        downloads.check(SMALL)
        running.enter_context(downloads.taken(SMALL))
        with pytest.raises(NoFreeSlot, match="All 3 slots for downloads are taken"):
            downloads.check(OTHER)
    for holder in (LARGE, SMALL, OTHER):
        downloads.check(holder)


def test_a_transfer_that_fails_gives_its_place_back() -> None:
    uploads = Transfers("uploads", 1)
    with pytest.raises(OSError, match="disk"), uploads.taken(LARGE):
        raise OSError("disk")
    uploads.check(LARGE)
