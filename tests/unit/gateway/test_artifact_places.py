"""The places of transfers: bounded in all and for each tenant, and given back whatever happens."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from dragoman.errors import NoFreeSlot
from dragoman.gateway.artifacts import Places


def test_a_tenant_with_its_share_is_refused_and_another_one_is_not_until_all_are_taken() -> None:
    places = Places("downloads", 3, 2)
    with ExitStack() as running:
        for tenant in ("large", "large"):
            places.check(tenant)
            running.enter_context(places.taken(tenant))
        with pytest.raises(NoFreeSlot, match="of the tenant"):
            places.check("large")
        places.check("small")
        running.enter_context(places.taken("small"))
        with pytest.raises(NoFreeSlot) as refused:
            places.check("other")
        assert "of the tenant" not in str(refused.value)
    for tenant in ("large", "small", "other"):
        places.check(tenant)


def test_a_transfer_that_fails_gives_its_place_back() -> None:
    places = Places("uploads", 1, 1)
    with pytest.raises(OSError, match="disk"), places.taken("a"):
        raise OSError("disk")
    places.check("a")
