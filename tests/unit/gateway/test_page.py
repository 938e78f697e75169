"""The page of a document."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from dragoman.access.callers import ANONYMOUS, LOCAL, Caller
from dragoman.gateway.page import document_page
from dragoman.knowledge.port import PIECE_LENGTH, Documents, UpdateDocument
from dragoman.parts.route import HttpResponse
from dragoman.parts.streaming import StreamedResponse
from tests.contract.engines import opened_storages
from tests.support.document_entries import BrokenDocuments, Tree
from tests.support.route_requests import request_to

ADA = Caller("ada", frozenset(("viewer",)), tenants=frozenset(("acme", "a/ü", "local")))
MOST_HELD = 6 * PIECE_LENGTH + 65_536
"""Bytes of a piece of a page: each character may be escaped by six. The first also has the title and the tags."""
EVIL = "</pre><script>alert(1)</script>&amp;\"'\0\U0001f600"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Documents]:
    async with opened_storages("memory", tmp_path) as (storage,):
        yield storage.port(Documents)


class CountedPieces:
    """Documents, and how many pieces of texts were asked for."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._documents, name)

    async def piece(self, *asked: Any, key: str) -> str:
        self.asked += 1
        return await self._documents.piece(*asked, key=key)


async def page(store: Documents, path: str, caller: Caller = ADA) -> tuple[int, str, dict[bytes, bytes]]:
    answered = await document_page(request_to(f"/knowledge/documents/{path}"), caller, store)
    if isinstance(answered, HttpResponse):
        return answered.status, answered.body.decode(), dict(answered.headers)
    pieces = [piece async for piece in answered.pieces()]
    assert len(pieces[0]) < MOST_HELD
    return answered.status, b"".join(pieces).decode(), dict(answered.headers)


@pytest.mark.requirement("MC-RBAC-07")
async def test_a_page_shows_the_text_and_runs_nothing(store: Documents) -> None:
    await Tree(store).create("a", title=f"T{EVIL}", body=f"B{EVIL}", tags=(f"t{EVIL}",))
    status, text, headers = await page(store, "acme/a")
    assert status == 200
    assert "<script" not in text
    escaped = "&lt;/pre&gt;&lt;script&gt;alert(1)&lt;/script&gt;&amp;amp;&quot;&#x27;\0\U0001f600"
    assert text.count(f"T{escaped}") == 2
    assert f"<pre>B{escaped}</pre>" in text
    assert f"Revision 1 · t{escaped}" in text
    assert headers[b"content-type"] == b"text/html; charset=utf-8"
    policy = headers[b"content-security-policy"].split(b"; ")
    assert policy[:2] == [b"sandbox", b"default-src 'none'"]
    assert not any(b"script" in each for each in policy)
    assert headers[b"x-content-type-options"] == b"nosniff"
    assert headers[b"cache-control"] == b"no-store"


async def test_the_text_of_a_page_is_made_piece_by_piece_as_the_client_reads_it(store: Documents) -> None:
    await Tree(store).create("a", body="'" * (10 * PIECE_LENGTH))
    counted = CountedPieces(store)
    answered = await document_page(request_to("/knowledge/documents/acme/a"), ADA, cast(Documents, counted))
    assert isinstance(answered, StreamedResponse)
    sizes = []
    async for piece in answered.pieces():
        sizes.append(len(piece))
        assert counted.asked <= len(sizes)
    assert max(sizes) < MOST_HELD
    assert sum(sizes) > 60 * PIECE_LENGTH


async def test_a_page_of_an_update_is_that_of_one_revision(store: Documents) -> None:
    tree = Tree(store)
    await tree.create("a", body="x" * (3 * PIECE_LENGTH))
    answered = await document_page(request_to("/knowledge/documents/acme/a"), ADA, store)
    assert isinstance(answered, StreamedResponse)
    pieces = answered.pieces()
    shown = [await anext(pieces)]
    await tree.do(UpdateDocument(id="a", fields={"content.body": "y" * (3 * PIECE_LENGTH)}))
    shown += [piece async for piece in pieces]
    assert (b"".join(shown).count(b"x" * 1000), b"yyyy" in b"".join(shown)) == (3 * PIECE_LENGTH // 1000, False)


@pytest.mark.requirement("MC-RBAC-07")
async def test_a_document_that_is_not_for_people_has_no_page(store: Documents) -> None:
    await Tree(store).create("a", is_human_readable=False, body="hidden")
    status, text, _ = await page(store, "acme/a")
    assert (status, "hidden" in text) == (404, False)


async def test_a_page_is_for_callers_of_the_tenant(store: Documents) -> None:
    for tenant in ("acme", "other", "local"):
        await Tree(store, tenant).create("a")
    nobody, without_role = Caller("bob", ADA.roles), Caller("cyd", frozenset(("admin",)), tenants=ADA.tenants)
    statuses = {
        (path, caller.name): (await page(store, path, caller))[0]
        for path in ("acme/a", "other/a", "local/a")
        for caller in (ADA, nobody, without_role, ANONYMOUS, LOCAL)
    }
    shown = {("acme/a", "ada"), ("local/a", "ada"), ("local/a", "local")}
    assert {key for key, status in statuses.items() if status == 200} == shown
    assert set(statuses.values()) == {200, 404}


async def test_refusals_do_not_tell_what_there_is(store: Documents) -> None:
    await Tree(store, "other").create("a")
    gone = Tree(store)
    await gone.create("b")
    await gone.delete("b")
    pages = [await page(store, path) for path in ("other/a", "acme/a", "acme/b", "")]
    assert pages == pages[:1] * 4


async def test_a_name_may_have_a_slash_in_it_and_ids_may_be_in_capitals(store: Documents) -> None:
    await Tree(store, "a/ü").create("ab")
    for path in ("a/ü/ab", "a/ü/AB"):
        assert (await page(store, path))[0] == 200
    for path in ("a%2F%C3%BC/ab", "a/ü/ab/", "a/ü/ab/c", "a/ab", "ü/ab"):
        assert (await page(store, path))[0] == 404


async def test_a_store_that_fails_is_no_secret_but_its_path_is() -> None:
    broken: Any = BrokenDocuments()
    status, text, _ = await page(broken, "acme/a")
    assert (status, "secret" in text) == (503, False)
