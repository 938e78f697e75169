"""What the page fetches: who may read what, page by page, and nothing of anybody else's."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

import pytest

from dragoman.access.callers import LOCAL
from dragoman.calls.places import Holder
from dragoman.gateway.rates import GatewayRates, RequestRates
from dragoman.gateway.settings import GatewayConfig
from dragoman.knowledge import changing
from dragoman.knowledge.actions import QUERY
from dragoman.knowledge.changing import PAGES
from dragoman.knowledge.port import PIECE_LENGTH, Documents, UpdateDocument
from dragoman.knowledge_page import reading as reading_module
from dragoman.knowledge_page.reading import (
    CHILDREN_AT_ONCE,
    LONGEST_LINE,
    MOST_ABOVE,
    MOST_DIFFERENT,
    REVISIONS_AT_ONCE,
    Reading,
)
from dragoman.knowledge_page.rendering import MOST_SHOWN
from dragoman.knowledge_page.routes import API, KnowledgePage
from dragoman.parts.route import HttpResponse
from tests.support.document_entries import BrokenDocuments, Tree, titled
from tests.support.gateway import Signer
from tests.support.gateway_serving import NOBODY, GatewayApp, internal, keep_keys, open_gateway
from tests.support.http_wire import Response, request
from tests.support.plain_quotas import PlainQuotas
from tests.support.route_requests import request_to
from tests.support.waiting import PATIENCE

VIEWER, TWO, ROLELESS, STRANGER = (f"a-token-of-the-{each}" for each in ("viewer", "two", "roleless", "stranger"))
CALLERS: dict[str, Any] = {
    "auth": {
        "callers": {
            "viewer": internal("viewer", token=VIEWER),
            "two": internal("viewer", token=TWO, tenants=("acme", "a/ü")),
            "roleless": internal("admin", token=ROLELESS),
            "stranger": internal("owner", token=STRANGER, tenants=("other",)),
        }
    }
}
MEGABYTE = 1_048_576
KINDS = ("children", "document", "rendered", "history", "difference", "search")


async def ask(gateway: GatewayApp, what: str, token: str | None = VIEWER, **values: Any) -> Response:
    query = urlencode({name.rstrip("_"): value for name, value in values.items()}, doseq=True)
    return await gateway.get(f"/knowledge/api/{what}?{query}", token=token)


async def found(gateway: GatewayApp, what: str, token: str | None = VIEWER, **values: Any) -> Any:
    answered = await ask(gateway, what, token, **values)
    assert answered.status == 200, answered
    return answered.json


# The page itself.


async def test_the_page_is_one_file_under_a_policy_that_names_its_script() -> None:
    async with open_gateway(CALLERS) as gateway:
        answered = await gateway.get("/knowledge/")
        assert answered.status == 200
        policy = dict(each.split(" ", 1) for each in answered.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"].startswith("'sha256-")
        assert policy["style-src"].count("'sha256-") == 2  # The page's own, and that of the documents in its frame.
        assert policy["connect-src"] == "'self'"
        assert policy["frame-src"] == "blob:"
        assert policy["frame-ancestors"] == "'none'"
        assert (policy["require-trusted-types-for"], policy["trusted-types"]) == ("'script'", "'none'")
        assert "unsafe" not in str(policy)
        assert (await gateway.get("/knowledge")).headers["location"] == "knowledge/"
        assert gateway.driver.app.pages == ("/knowledge/",)
        posted = await gateway.driver.ask(request(b"{}", {}, path="/knowledge/"))
        assert posted.status == 405


# Who may read.


async def test_callers_read_in_their_tenants_and_with_a_role_only() -> None:
    async with open_gateway(CALLERS) as gateway:
        for tenant in ("acme", "other", "a/ü", "local"):
            await Tree(gateway.documents, tenant).create("a", title=f"In {tenant}")
        for token in (None, "no-such-token"):
            for what in (*KINDS, "start", "nothing"):
                assert (await ask(gateway, what, token, id="a")).status == 401
        assert (await found(gateway, "start"))["tenants"] == ["acme"]
        assert (await found(gateway, "start", TWO))["tenants"] == ["a/ü", "acme"]
        assert (await found(gateway, "start", ROLELESS))["tenants"] == []
        refused: list[Response] = []
        for what in KINDS:
            asked: dict[str, Any] = {"id": "a", "from_": 0, "to": 1, "q": "x"}
            refused += [
                await ask(gateway, what, VIEWER, tenant="other", **asked),
                await ask(gateway, what, VIEWER, tenant="local", **asked),
                await ask(gateway, what, STRANGER, tenant="acme", **asked),
                await ask(gateway, what, ROLELESS, **asked),
                await ask(gateway, what, TWO, **asked),  # It has two, and has named none.
            ]
        refused.append(await ask(gateway, "document", id="no such document"))
        refused.append(await ask(gateway, "nothing"))
        assert {(each.status, each.body) for each in refused} == {(404, b'{"error":"There is no such document"}')}
        assert (await found(gateway, "document", TWO, tenant="a/ü", id="A"))["title"] == "In a/ü"


async def test_the_owner_of_the_data_directory_reads_what_is_local_and_nobody_else_does(tmp_path: Path) -> None:
    await keep_keys(tmp_path, Signer())
    async with open_gateway(NOBODY, tmp_path) as gateway:
        for token, tenants in ((gateway.local_secret, ["local"]), (None, []), (VIEWER, [])):
            start = await found(gateway, "start", token)
            assert (start["tenants"], start["isAuthenticated"]) == (tenants, False)
            assert (await ask(gateway, "children", token)).status == (200 if tenants else 404)


@pytest.mark.requirement("MC-RBAC-07")
async def test_documents_that_are_not_for_people_are_listed_and_not_shown() -> None:
    async with open_gateway(CALLERS) as gateway:
        tree = Tree(gateway.documents)
        await tree.create("a", is_human_readable=False, body="hidden")
        await tree.create("b", "a")
        (listed,) = (await found(gateway, "children"))["children"]
        assert (listed["id"], listed["isReadable"], listed["hasChildren"]) == ("a", False, True)
        assert b"hidden" not in (await ask(gateway, "document", id="a")).body
        for what in ("rendered", "history", "difference"):
            assert (await ask(gateway, what, id="a", from_=0, to=1)).status == 404


async def test_deleted_documents_have_neither_text_nor_history() -> None:
    async with open_gateway(CALLERS) as gateway:
        tree = Tree(gateway.documents)
        await tree.create("a")
        await tree.delete("a")
        for what in ("document", "rendered", "history", "difference"):
            assert (await ask(gateway, what, id="a", from_=0, to=1)).status == 404
        assert await found(gateway, "children") == {"children": [], "next": None}


# What there is to read.


async def test_children_come_in_pages_in_their_order() -> None:
    async with open_gateway(CALLERS) as gateway:
        tree = Tree(gateway.documents)
        count = 2 * CHILDREN_AT_ONCE + 1
        for number in range(count):
            await tree.create(f"d{number}")
        await tree.create("below", "d7")
        seen: list[Any] = []
        after: str | None = ""
        while after is not None:
            page = await found(gateway, "children", after=after)
            seen += page["children"]
            after = page["next"]
        assert [each["id"] for each in seen] == [f"d{number}" for number in range(count)]
        assert [each["id"] for each in seen if each["hasChildren"]] == ["d7"]
        assert [each["id"] for each in (await found(gateway, "children", id="d7"))["children"]] == ["below"]
        exact = await found(gateway, "children", id="d7", after="not a number")
        assert exact["next"] is None


async def test_a_document_has_its_facts_and_the_documents_above_it() -> None:
    async with open_gateway(CALLERS) as gateway:
        tree = Tree(gateway.documents)
        await tree.create("a", title="Top\N{RIGHT-TO-LEFT OVERRIDE}")
        await tree.create("b", "a")
        await tree.create("c", "b", tags=("x", "y"), mime_type="text/markdown", body="1234", source="s")
        told = await found(gateway, "document", id="c")
        assert [each["title"] for each in told["path"]] == ["Top[U+202E]", "Title of b"]
        wanted = {"tags": ["x", "y"], "length": 4, "revision": 1, "hasChildren": False, "isWhole": True, "source": "s"}
        assert {name: told[name] for name in wanted} == wanted
        assert "body" not in told


async def test_a_tree_that_is_very_deep_costs_no_more_than_a_deep_one() -> None:
    async with open_gateway(CALLERS) as gateway:
        tree = Tree(gateway.documents)
        for number in range(MOST_ABOVE + 5):
            await tree.create(f"d{number}", f"d{number - 1}" if number else "root")
        told = await found(gateway, "document", id=f"d{MOST_ABOVE + 4}")
        assert (len(told["path"]), told["isWhole"]) == (MOST_ABOVE, False)
        assert told["path"][-1]["id"] == f"d{MOST_ABOVE + 3}"


async def test_a_rendered_document_has_a_policy_of_its_own() -> None:
    async with open_gateway(CALLERS) as gateway:
        await Tree(gateway.documents).create("a", mime_type="text/markdown", body="*b* <script>")
        answered = await ask(gateway, "rendered", id="a")
        assert b"<em>b</em> &lt;script&gt;" in answered.body
        policy = answered.headers["content-security-policy"].split("; ")
        assert policy[:2] == ["sandbox", "default-src 'none'"]
        assert policy[2].startswith("style-src 'sha256-")
        assert not any("script" in each for each in policy)
        assert answered.headers["x-content-type-options"] == "nosniff"
        assert answered.headers["cache-control"] == "no-store"


async def test_history_comes_in_pages_the_newest_first_and_differences_between_any_two() -> None:
    async with open_gateway(CALLERS) as gateway:
        tree = Tree(gateway.documents)
        await tree.create("a", body="one\ntwo")
        last = REVISIONS_AT_ONCE + 2
        for number in range(2, last):
            await tree.do(titled("a", f"Title {number}"))
        await tree.do(UpdateDocument(id="a", fields={"content.body": "one\nthree", "metadata.tags": ("x", "y")}))
        first = await found(gateway, "history", id="a")
        rest = await found(gateway, "history", id="a", before=first["next"])
        revisions = [*first["revisions"], *rest["revisions"]]
        assert [each["revision"] for each in revisions] == [*range(last, 0, -1)]
        assert rest["next"] is None
        assert {each["action"] for each in revisions} == {"create", "update"}
        assert {each["by"] for each in revisions} == {"svc:writer"}

        told = await found(gateway, "difference", id="a", from_=1, to=last)
        assert [(each["op"], each["text"]) for each in told["rows"]] == [(" ", "one"), ("-", "two"), ("+", "three")]
        assert told["fields"] == [
            {"field": "title", "before": "Title of a", "after": f"Title {last - 1}"},
            {"field": "tags", "before": "", "after": "x, y"},
        ]
        assert (await found(gateway, "difference", id="a", from_=0, to=1))["added"] == 2
        for wrong in ((2, 2), (3, 2), (-1, 2), (1, last + 1), ("x", 2), ("", "")):
            assert (await ask(gateway, "difference", id="a", from_=wrong[0], to=wrong[1])).status == 404


# What it may cost.


async def test_whole_texts_count_against_the_rates_that_the_gateway_has() -> None:
    rates = {"requests_per_minute_per_principal": 3, "requests_per_minute_per_tenant": 5}
    async with open_gateway({**CALLERS, "gateway": rates}) as gateway:
        for tenant in ("acme", "a/ü"):
            await Tree(gateway.documents, tenant).create("a")
        for what in ("rendered", "history"):
            assert (await ask(gateway, what, id="a")).status == 200
        assert (await gateway.get(f"{PAGES}/acme/a", token=VIEWER)).status == 200
        refused = await ask(gateway, "difference", id="a", from_=0, to=1)
        assert (refused.status, refused.json) == (429, {"error": "At most 3 calls a minute"})
        assert 0 < int(refused.headers["retry-after"]) <= 60
        for what in ("children", "document", "search", "start"):
            assert (await ask(gateway, what, id="" if what == "children" else "a")).status == 200
        statuses = [(await ask(gateway, "rendered", TWO, tenant="acme", id="a")).status for _ in range(3)]
        assert statuses == [200, 200, 429]  # Of the tenant's five, the other one has had three.
        assert (await ask(gateway, "rendered", TWO, tenant="a/ü", id="a")).status == 200


async def test_nothing_is_made_for_a_client_that_has_left_while_it_waited() -> None:
    async with open_gateway(CALLERS) as gateway:
        await Tree(gateway.documents).create("a")
        go_on, threads = threading.Event(), ThreadPoolExecutor(1)
        asyncio.get_running_loop().set_default_executor(threads)
        threads.submit(go_on.wait, PATIENCE)
        headers = {"authorization": f"Bearer {VIEWER}"}
        asked = [
            gateway.driver.begin(request(None, headers, method="GET", path=f"{API}rendered?id=a")) for _ in range(2)
        ]
        await asyncio.sleep(0)
        for each in asked:
            each.leave()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(each.task for each in asked))
        assert not any(each.sent for each in asked)
        go_on.set()
        assert (await ask(gateway, "rendered", id="a")).status == 200


class FrugalDocuments:
    """Documents that are not to be read whole, and how many pieces of their texts were."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self.pieces = 0

    def __getattr__(self, name: str) -> Any:
        assert name not in ("get", "revision"), "a text was read whole"
        return getattr(self._documents, name)

    async def piece(self, *asked: Any, key: str) -> str:
        self.pieces += 1
        return await self._documents.piece(*asked, key=key)


@pytest.mark.slow
async def test_no_answer_is_as_large_as_the_documents_that_it_is_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changing, "LONGEST_LINE", MEGABYTE)  # As for documents from before there was a limit.
    async with open_gateway(CALLERS) as gateway:
        tree = Tree(gateway.documents)
        for number in range(9):
            await tree.create(f"d{number}", title=f"{number}" + "t" * LONGEST_LINE, source="s" * MEGABYTE)
        await tree.create("a", body="x" * MEGABYTE)
        for number in range(9):
            editor = f"{number}" + "e" * (MEGABYTE - 1)
            await tree.do(UpdateDocument(id="a", fields={"metadata.last_editor": editor}))
        answers, titles, after = [], list[str](), ""
        while after is not None:
            answers.append(await ask(gateway, "children", after=after))
            titles += [each["title"] for each in answers[-1].json["children"]]
            after = answers[-1].json["next"]
        assert [each[0] for each in titles] == [*"012345678T"]
        assert {len(each) for each in titles} == {LONGEST_LINE + 1, len("Title of a")}
        answers += [await ask(gateway, what, id="a") for what in ("document", "history", "rendered")]
        history = answers[-2].json["revisions"]
        assert [each["revision"] for each in history] == [*range(10, 0, -1)]
        answers.append(await ask(gateway, "difference", id="a", from_=1, to=10))
        assert f"of {MEGABYTE:,} characters".encode() in answers[-2].body
        assert max(len(each.body) for each in answers) < 300_000
        frugal = FrugalDocuments(gateway.documents)
        reading, holder = Reading(cast(Documents, frugal)), Holder("acme", "viewer")
        await reading.document(holder, "a")
        await reading.children(holder, "root", None)
        await reading.history(holder, "a", None)
        assert frugal.pieces == 0
        assert len(await reading.rendered(holder, "a")) < 300_000
        assert frugal.pieces == MOST_SHOWN // PIECE_LENGTH
        monkeypatch.setattr(reading_module, "MOST_COMPARED", 2 * PIECE_LENGTH)
        told = await reading.compare(holder, "a", 1, 2)
        assert (frugal.pieces, told["isCut"]) == (MOST_SHOWN // PIECE_LENGTH + 4, True)


@pytest.mark.slow
async def test_a_difference_has_no_more_text_than_can_be_looked_at() -> None:
    async with open_gateway(CALLERS) as gateway:
        tree = Tree(gateway.documents)
        await tree.create("a", body="\n".join(f"{number} " + "old" * 650 for number in range(300)))
        new = "\n".join(f"{number} " + "new" * 650 for number in range(300))
        await tree.do(UpdateDocument(id="a", fields={"content.body": new}))
        told = await found(gateway, "difference", id="a", from_=1, to=2)
        assert sum(len(row["text"]) for row in told["rows"]) <= MOST_DIFFERENT
        assert (told["isCut"], told["removed"], told["added"]) == (True, 300, 300)


# Search.


async def test_a_search_is_a_call_of_the_action_as_the_pages_caller() -> None:
    async with open_gateway(CALLERS) as gateway:
        tree, other = Tree(gateway.documents), Tree(gateway.documents, "other")
        await tree.create("a", title="Manual")
        said = "Turn the red knob\N{RIGHT-TO-LEFT OVERRIDE} and wait until the lamp has been green for a minute or two."
        body = f"# First\n\n{'Many words. ' * 10}\n\n# Big Set-up\n\n{said}"
        await tree.create("b", "a", title="Setup", mime_type="text/markdown", body=body, tags=("x", "y"))
        await tree.create("c", title="Another", body="A red knob as well", tags=("x",))
        await tree.create("e", mime_type="text/markdown", body="# Brief one\n\nYes.")
        await other.create("d", body="The red knob of somebody else")
        told = await found(gateway, "search", q="red knob")
        assert told["response"] == ""  # Nobody wants an answer while typing.
        assert {each["document_id"] for each in told["context"]} == {"b", "c"}
        (first,) = (await found(gateway, "search", q="kno", tag=["x", "y"]))["context"]
        wanted = {
            "document_id": "b",
            "title": "Setup",
            "path": ["Manual"],
            "heading": ["Big Set-up"],
            "anchor": "big-set-up",
            "passage": said.replace("\N{RIGHT-TO-LEFT OVERRIDE}", "[U+202E]"),
        }
        assert {name: first[name] for name in wanted} == wanted
        short = (await found(gateway, "search", q="brief"))["context"]
        assert [each["anchor"] for each in short] == ["brief-one"]  # A section that is too short for a passage.
        assert "red knob" in (await found(gateway, "search", q="red knob", answer=1))["response"]
        assert await found(gateway, "search", q="xylophone") == {"response": "", "context": []}
        assert await found(gateway, "search") == {"response": "", "context": []}
        assert (await found(gateway, "search", STRANGER, q="red knob"))["context"][0]["document_id"] == "d"
        assert (await found(gateway, "search", TWO, tenant="acme", q="red knob"))["context"] == told["context"]
        assert sum(each.get("toolName") == QUERY for each in gateway.log) == 8


async def test_a_caller_without_the_scope_of_the_query_has_no_tenant_to_read() -> None:
    callers = {"narrow": {**internal("viewer", token=VIEWER), "scopes": ["tool:health"]}}
    async with open_gateway({"auth": {"callers": callers}}) as gateway:
        assert (await found(gateway, "start"))["tenants"] == []
        assert [(await ask(gateway, kind, q="x", id="a")).status for kind in KINDS] == [403] * len(KINDS)


async def test_a_store_that_fails_is_told_without_its_path() -> None:
    broken: Any = BrokenDocuments()
    async with open_gateway(CALLERS) as gateway:
        rates = RequestRates(GatewayRates(PlainQuotas(), gateway.clock), GatewayConfig())
        page = KnowledgePage(Reading(broken), gateway.runtime.edge.services, rates, has_answers=False)
        *_, fetched = page.routes()
        answered = await fetched.handler(request_to("/knowledge/api/document", caller=LOCAL))
        assert isinstance(answered, HttpResponse)
        assert (answered.status, b"secret" in answered.body) == (503, False)


async def test_more_parameters_than_anybody_needs_are_none() -> None:
    async with open_gateway(CALLERS) as gateway:
        answered = await gateway.get("/knowledge/api/document?" + "&" * 5000 + "id=a", token=VIEWER)
        assert answered.status == 404
