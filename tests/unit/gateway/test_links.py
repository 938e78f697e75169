"""A link can be read as it was made, before it expires, and in no other form."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import Expired, MalformedEnvelope, Unauthorized
from dragoman.gateway.links import LINK_SECONDS, ArtifactLink, SignedLinks
from dragoman.gateway.objects import LinkKeys
from dragoman.testing import ManualClock
from tests.contract.engines import opened_storages
from tests.support.purge_clock import PromptPurgeClock

HASH = "0123456789abcdef" * 4
BASE = "https://tools.example.org"


def links_of(keys: LinkKeys, clock: ManualClock, public_url: str | None = None, start: int = 0) -> SignedLinks:
    numbers = count(start)
    return SignedLinks(keys, clock, PromptPurgeClock(clock), public_url, lambda size: bytes([next(numbers)]) * size)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def keys(tmp_path: Path) -> AsyncIterator[LinkKeys]:
    async with opened_storages("memory", tmp_path) as (storage,):
        yield storage.port(LinkKeys)


@pytest.fixture
def links(keys: LinkKeys, clock: ManualClock) -> SignedLinks:
    return links_of(keys, clock)


def link_for(clock: ManualClock, tenant: str = "acme", mime: str = "text/plain") -> ArtifactLink:
    return ArtifactLink(tenant, HASH, mime, int(clock.now().timestamp()) + LINK_SECONDS)


async def opened(links: SignedLinks, uri: str) -> ArtifactLink:
    parts = urlsplit(uri)
    return await links.open(parts.path.rpartition("/")[2], parts.query)


@pytest.mark.requirement("MC-ART-01")
async def test_a_link_is_read_as_it_was_made(links: SignedLinks, clock: ManualClock) -> None:
    link = link_for(clock, "größe & mehr/..", "application/problem+json")
    uri = await links.make(link, BASE)
    assert await opened(links, uri) == link
    assert await links.read(uri, link.tenant) == HASH
    assert await links.read(uri.removeprefix(BASE), link.tenant) == HASH


@given(tenant=st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=128))
async def test_a_link_names_any_tenant_in_one_way(links: SignedLinks, clock: ManualClock, tenant: str) -> None:
    assert (await opened(links, await links.make(link_for(clock, tenant), ""))).tenant == tenant


@pytest.mark.requirement("MC-ART-01", "MC-TEST-06")
async def test_a_link_is_refused_a_second_late_and_accepted_a_second_early(
    links: SignedLinks, clock: ManualClock
) -> None:
    uri = await links.make(link_for(clock), BASE)
    clock.advance(LINK_SECONDS - 1)
    assert await links.read(uri, "acme") == HASH
    clock.advance(1)
    with pytest.raises(Expired):
        await links.read(uri, "acme")


@pytest.mark.requirement("MC-ART-01")
async def test_a_link_with_any_character_altered_is_refused(links: SignedLinks, clock: ManualClock) -> None:
    uri = await links.make(link_for(clock), "")
    start = uri.index(HASH)
    for place in range(start, len(uri)):
        for other in ("0" if uri[place] != "0" else "1", "A", "%41", "", "&", uri[place].swapcase()):
            altered = uri[:place] + other + uri[place + 1 :]
            if altered != uri:
                with pytest.raises(Unauthorized):
                    await opened(links, altered)


@pytest.mark.requirement("MC-ART-01")
async def test_parts_of_a_link_cannot_be_exchanged_doubled_added_or_left_out(
    links: SignedLinks, clock: ManualClock
) -> None:
    uri = await links.make(link_for(clock), "")
    other = await links.make(link_for(clock, "other", "text/markdown"), "")
    query, others = (urlsplit(each).query.split("&") for each in (uri, other))
    tried = [[*query[:n], others[n], *query[n + 1 :]] for n in range(5) if others[n] != query[n]]
    tried += [[*query[:n], *query[n + 1 :]] for n in range(5)]
    tried += [[*query, each] for each in (*query, "method=PUT", "", "tenant=other")]
    tried += [query[::-1], [f"tenant=other&{query[0]}", *query[1:]]]
    for each in tried:
        with pytest.raises(Unauthorized):
            await links.open(HASH, "&".join(each))
    for hash in (HASH.upper(), HASH[:-1], f"../{HASH}", f"{HASH}/", "f" * 64, ""):
        with pytest.raises(Unauthorized):
            await links.open(hash, "&".join(query))


async def test_another_spelling_of_the_same_tenant_or_signature_is_refused(
    links: SignedLinks, clock: ManualClock
) -> None:
    uri = await links.make(link_for(clock, "a b"), "")
    for old, new in (("a%20b", "a+b"), ("a%20b", "%61%20b"), ("text%2F", "text%2f")):
        assert old in uri
        with pytest.raises(Unauthorized):
            await opened(links, uri.replace(old, new))
    signature = uri[-43:]
    last = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_".index(signature[-1])
    alphabet = [urlsafe_b64encode(bytes([n << 2]))[:1].decode() for n in range(64)]
    for low in range(1, 4):  # The last character has two bits that mean nothing.
        with pytest.raises(Unauthorized):
            await opened(links, uri[:-1] + alphabet[last ^ low])


async def test_a_link_of_another_tenant_or_another_server_is_refused(
    links: SignedLinks, clock: ManualClock, keys: LinkKeys, tmp_path: Path
) -> None:
    uri = await links.make(link_for(clock, "other"), BASE)
    with pytest.raises(Unauthorized):
        await links.read(uri, "acme")
    async with opened_storages("memory", tmp_path) as (storage,):
        elsewhere = links_of(storage.port(LinkKeys), clock, start=100)
        with pytest.raises(Unauthorized):
            await links.read(await elsewhere.make(link_for(clock), BASE), "acme")
    named = links_of(keys, clock, BASE)
    own = await links.make(link_for(clock), BASE)
    assert await named.read(own, "acme") == HASH
    for other in ("http://tools.example.org", "https://evil.example", "https://tools.example.org@evil.example"):
        with pytest.raises(Unauthorized):
            await named.read(own.replace(BASE, other), "acme")


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "file:///etc/passwd",
        "http://169.254.169.254/latest/meta-data",
        "https://[",
        "/mcp/artifacts/x",
        f"https://tools.example.org/mcp/artifacts/{HASH}",
        f"/elsewhere/{HASH}?tenant=acme",
        "gopher://x",
        f"/mcp/artifacts/{HASH}?{'a' * 5000}",
    ],
)
async def test_an_address_that_is_no_link_is_refused(links: SignedLinks, uri: str) -> None:
    with pytest.raises((MalformedEnvelope, Unauthorized)):
        await links.read(uri, "acme")


async def test_a_link_with_a_fragment_is_refused(links: SignedLinks, clock: ManualClock) -> None:
    uri = await links.make(link_for(clock), BASE)
    with pytest.raises(MalformedEnvelope):
        await links.read(f"{uri}#x", "acme")


@pytest.mark.requirement("MC-ART-01")
async def test_a_new_key_each_day_leaves_links_of_the_old_one_good_and_is_known_to_other_processes(
    keys: LinkKeys, clock: ManualClock
) -> None:
    here, there = links_of(keys, clock), links_of(keys, clock, start=50)
    before = await here.make(link_for(clock), BASE)
    assert await there.read(before, "acme") == HASH
    clock.advance(timedelta(days=1).total_seconds() - 60)
    last = await here.make(link_for(clock), BASE)
    clock.advance(120)
    first = await there.make(link_for(clock), BASE)
    assert len({uri.partition("&key=")[2][:16] for uri in (before, last, first)}) == 2
    assert [await each.read(uri, "acme") for each in (here, there) for uri in (last, first)] == [HASH] * 4


async def test_a_key_is_forgotten_when_no_link_of_it_can_be_good(keys: LinkKeys, clock: ManualClock) -> None:
    links = links_of(keys, clock)
    for _ in range(5):
        await links.make(link_for(clock), BASE)
        clock.advance(timedelta(days=1, seconds=1).total_seconds())
    assert len(await keys.all()) == 2
