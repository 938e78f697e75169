"""Queries: what is searched and answered, within a budget, and what repeats get."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest

from dragoman.access.callers import LOCAL
from dragoman.errors import Aborted, Conflict, ModelUnavailable, NotEnabled, Unauthorized
from dragoman.knowledge.index import Hit, PassageQuery
from dragoman.knowledge.port import ActionRequest, Documents
from dragoman.knowledge.querying import CANDIDATES, KnowledgeQuery, Queries
from dragoman.telemetry.log import StructuredLogger
from dragoman.testing import ManualClock
from dragoman.tools.context import Cancellation, ToolContext
from tests.contract.engines import opened_storages
from tests.support.document_entries import asked
from tests.support.passages import FewPassages, Held, passage
from tests.support.waiting import until

T = TypeVar("T")
OWLS = (passage(1, "owls hunt"), passage(2, "owls sleep"), passage(3, "mice hide"))


def test_numbers_of_json_that_are_whole_are_integers() -> None:
    """JSON Schema takes 6.0 for an integer."""
    query = KnowledgeQuery.of({"query": "owls", "top_k": 6.0, "routing": {"max_latency_ms": 500.0}})
    assert (repr(query.top_k), repr(query.max_latency_ms)) == ("6", "500")


class Asking:
    """Queries over a few passages, with a clock that stands still."""

    documents: ClassVar[Documents]

    def __init__(self, index: FewPassages | None = None, **options: Any) -> None:
        self.index = index or FewPassages(*OWLS)
        self.clock = ManualClock()
        self.queries = Queries(self.documents, self.index, self.clock, most_kept=10_000, **options)
        self.cancellation = Cancellation()
        self.progress: list[float] = []

    async def ask(self, query: str = "owls", request: ActionRequest | None = None, **arguments: Any) -> dict[str, Any]:
        applied = await self.queries.perform({"query": query, **arguments}, request or query_request(), self.context())
        return {**applied.data, "hits": applied.hits}

    def context(self) -> ToolContext:
        def progress(done: float, total: float | None, message: str | None) -> None:
            self.progress.append(done)

        return ToolContext("r", "c", StructuredLogger(lambda _: None, self.clock), self.cancellation, LOCAL, progress)

    async def after(self, seconds: float, held: Held | None, asking: Awaitable[T]) -> T:
        """What comes of it when so much time passes while something is held up."""
        task = asyncio.ensure_future(asking)
        await until(lambda: held.waiting if held is not None else self.index.asked)
        self.clock.advance(seconds)
        return await task


@pytest.fixture(autouse=True)
async def documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Where receipts are kept."""
    async with opened_storages("memory", tmp_path) as (storage,):
        monkeypatch.setattr(Asking, "documents", storage.port(Documents), raising=False)
        yield


def query_request(**fields: Any) -> ActionRequest:
    return asked(**{"action": "query", "subject": "svc:writer", **fields})


def passages_in(data: dict[str, Any]) -> list[str]:
    return [each["passage"] for each in data["context"]]


@pytest.mark.requirement("MC-QUERY-02")
async def test_a_passage_is_told_with_its_document_and_its_source_is_quoted() -> None:
    found = passage(4, "Barn owls hunt at night.", path=("Birds",), heading=("Night",), tags=("owl",), revision=3)
    hidden = passage(5, "owls of the house", is_human_readable=False)
    data = await Asking(FewPassages(found, hidden)).ask("night owls", query_request(web_base="https://x.example"))
    assert data["context"][0] == {
        "document_id": found.document_id,
        "title": "Title 4",
        "path": ["Birds"],
        "heading": ["Night"],
        "passage": "Barn owls hunt at night.",
        "score": 1.0,
        "revision": 3,
        "tags": ["owl"],
        "web_uri": f"https://x.example/knowledge/documents/acme/{found.document_id}",
    }
    assert "web_uri" not in data["context"][1]
    assert data["response"].startswith("> Barn owls hunt at night.\n\n[1] Birds › Title 4 › Night\n\n> owls of the")
    assert (data["hits"], "partial" in data, "notes" in data) == (2, False, False)


@pytest.mark.requirement("MC-QUERY-02")
@pytest.mark.parametrize("query", ["badgers", "", " \n"])
async def test_nothing_found_is_an_empty_response_without_context(query: str) -> None:
    embedder = Held()
    embedder.gate.set()
    asking = Asking(FewPassages(*OWLS, alike=[Hit(1, 0.09)]), get_embedder=embedder.get)  # Hardly alike at all.
    assert await asking.ask(query) == {"response": "", "context": [], "hits": 0}


@pytest.mark.requirement("MC-QUERY-02")
async def test_there_are_at_most_top_k_passages_and_hits_counts_all_that_were_found() -> None:
    asking = Asking(FewPassages(*(passage(number, "owls") for number in range(30))))
    for top_k in (1, 7, 20):
        data = await asking.ask(top_k=top_k)
        assert (len(data["context"]), data["hits"]) == (top_k, 30)
    assert len((await asking.ask())["context"]) == 5


@pytest.mark.requirement("MC-QUERY-02")
async def test_passages_that_are_deleted_meanwhile_are_replaced_by_the_next_ones() -> None:
    index = FewPassages(*(passage(number, "owls") for number in range(6)))

    class Deleting(FewPassages):
        async def by_words(self, *args: Any) -> list[Hit]:
            hits = await super().by_words(*args)
            del self.passages[0], self.passages[2]
            return hits

    data = await Asking(Deleting(*index.passages.values())).ask(top_k=3)
    assert [each["title"] for each in data["context"]] == ["Title 1", "Title 3", "Title 4"]


async def test_the_index_is_asked_for_the_tenant_and_the_tags() -> None:
    asking = Asking()
    await asking.ask(filters={"tags": ["a", "b", "a"], "tenant_id": "acme"})
    (query,) = asking.index.asked
    assert (query.tenant, query.tags, query.limit) == ("acme", frozenset("ab"), CANDIDATES)


async def test_another_tenant_in_the_filters_is_forbidden() -> None:
    asking = Asking()
    with pytest.raises(Unauthorized) as refused:
        await asking.ask(filters={"tenant_id": "beta"})
    assert refused.value.details == {"reason": "other_tenant"}
    assert asking.index.asked == []


async def test_words_and_vectors_are_fused() -> None:
    embedder = Held()
    embedder.gate.set()
    asking = Asking(FewPassages(*OWLS, alike=[Hit(3, 0.9), Hit(2, 0.8)]), get_embedder=embedder.get)
    data = await asking.ask()
    assert (passages_in(data), data["hits"]) == (["owls sleep", "owls hunt", "mice hide"], 3)


async def test_a_document_without_text_is_found_by_the_words_of_its_title_and_not_by_its_vector() -> None:
    class Titles(FewPassages):
        async def by_words(self, query: PassageQuery, text: str) -> list[Hit]:
            return [Hit(each.number, 1.0) for each in self.passages.values() if each.title == text]

    embedder = Held()
    embedder.gate.set()
    folders = [passage(number, title=title, text="") for number, title in ((1, "People"), (2, "Office"))]
    index = Titles(*folders, passage(3, "ask Ada"), alike=[Hit(1, 0.5), Hit(2, 0.4), Hit(3, 0.3)])
    asking = Asking(index, get_embedder=embedder.get)
    assert passages_in(await asking.ask("who repairs it?", top_k=2)) == ["ask Ada"]
    assert [each["title"] for each in (await asking.ask("Office"))["context"]] == ["Office", "Title 3"]


async def test_what_only_a_few_passages_have_is_among_those_that_are_merely_alike() -> None:
    class Rare(FewPassages):
        async def by_words(self, query: PassageQuery, text: str) -> list[Hit]:
            return [Hit(9, 0.1)] if text == "zugzwang" else [Hit(9, 0.1), Hit(8, 0.1), Hit(7, 0.1)]

    embedder = Held()
    embedder.gate.set()
    passages = [passage(1, ""), *(passage(number) for number in range(2, 10))]
    asking = Asking(Rare(*passages, alike=[Hit(number, 0.5) for number in range(1, 7)]), get_embedder=embedder.get)
    data = await asking.ask("zugzwang")
    assert [each["title"] for each in data["context"]] == [f"Title {number}" for number in (2, 3, 4, 5, 9)]
    assert data["hits"] == 7
    assert "Text 9" not in passages_in(await asking.ask("zugzwang", top_k=1))
    assert "Text 9" not in passages_in(await asking.ask("a common word"))  # Three of five: as they are fused.


# The budget.


async def test_a_slow_embedder_leaves_the_words() -> None:
    embedder = Held()
    asking = Asking(FewPassages(*OWLS, alike=[Hit(3, 0.9)]), get_embedder=embedder.get)
    data = await asking.after(1.0, embedder, asking.ask(routing={"max_latency_ms": 1000}))
    assert (passages_in(data), data["partial"], data["missing"]) == (["owls hunt", "owls sleep"], True, ["vectors"])
    assert data["notes"] == ["the embedder was too slow: only words were searched"]
    assert (data["context"][0]["score"], embedder.waiting) == (1.0, 0)


async def test_an_embedder_that_is_quick_enough_is_waited_for() -> None:
    embedder = Held()
    asking = Asking(FewPassages(*OWLS, alike=[Hit(3, 0.9)]), get_embedder=embedder.get)
    task = asyncio.ensure_future(asking.ask())
    await until(lambda: embedder.waiting)
    asking.clock.advance(3.999)
    embedder.gate.set()
    assert "partial" not in await task


async def test_an_embedder_that_fails_leaves_the_words() -> None:
    embedder = Held(error=ModelUnavailable("no"))
    embedder.gate.set()
    data = await Asking(get_embedder=embedder.get).ask()
    assert (len(data["context"]), data["missing"]) == (2, ["vectors"])


async def test_a_slow_index_leaves_nothing_and_says_so() -> None:
    asking = Asking()
    asking.index.gate.clear()
    data = await asking.after(4.0, None, asking.ask())
    assert data == {"response": "", "context": [], "partial": True, "missing": ["words"], "hits": 0}


async def test_a_slow_model_leaves_the_passages() -> None:
    model = Held("Owls hunt [1].")
    asking = Asking(writer=model)
    data = await asking.after(4.0, model, asking.ask())
    assert (data["missing"], data["response"].startswith("> owls hunt")) == (["answer"], True)
    assert data["notes"] == ["the model was too slow: the passages are quoted instead"]


async def test_all_steps_share_one_budget() -> None:
    embedder, model = Held(), Held("Owls hunt [1].")
    asking = Asking(get_embedder=embedder.get, writer=model)
    task = asyncio.ensure_future(asking.ask())
    await until(lambda: embedder.waiting)
    asking.clock.advance(3)
    embedder.gate.set()
    await until(lambda: model.waiting)
    asking.clock.advance(1)
    assert (await task)["missing"] == ["answer"]


async def test_a_query_that_nobody_waits_for_stops() -> None:
    model = Held("Owls hunt [1].")
    asking = Asking(writer=model)
    task = asyncio.ensure_future(asking.ask())
    await until(lambda: model.waiting)
    asking.cancellation.set("disconnect")
    with pytest.raises(Aborted):
        await task
    await until(lambda: not model.waiting)


# Answers that are written.


async def test_a_written_answer_is_the_response_and_progress_is_told_while_it_is_written() -> None:
    model = Held("Owls hunt at night [1]. " * 50)
    model.gate.set()
    asking = Asking(writer=model)
    data = await asking.ask(context_hints={"language": "de", "preferred_format": "plain"})
    assert data["response"] == model.answer.strip()
    assert "notes" not in data
    assert asking.progress == sorted(set(asking.progress))
    assert 3 < len(asking.progress) < 10
    system, user = model.sent[0]
    assert "plain text" in system["content"]
    assert '"language":"de"' in user["content"]


@pytest.mark.parametrize(
    ("answer", "note", "missing"),
    [
        ("Owls hunt.", "the model cited none of the passages: they are quoted instead", ["answer"]),
        ("Owls hunt [9].", "the model cited none of the passages: they are quoted instead", ["answer"]),
        ("NOT_ANSWERED", "the model found no answer in the passages: they are quoted instead", None),
    ],
)
async def test_an_answer_that_cannot_be_used_leaves_the_passages(answer: str, note: str, missing: Any) -> None:
    model = Held(answer)
    model.gate.set()
    data = await Asking(writer=model).ask()
    assert (data["response"].startswith("> owls hunt"), data["notes"], data.get("missing")) == (True, [note], missing)


async def test_a_model_that_fails_leaves_the_passages() -> None:
    model = Held(error=ModelUnavailable("no"))
    model.gate.set()
    data = await Asking(writer=model).ask()
    assert (data["partial"], data["missing"]) == (True, ["answer"])
    assert data["notes"] == ["the model cannot be used now: the passages are quoted instead"]


async def test_a_model_is_not_asked_when_nothing_was_found() -> None:
    model = Held("Anything [1].")
    assert (await Asking(writer=model).ask("badgers"))["response"] == ""
    assert model.sent == []


# Routing.


@pytest.mark.requirement("MC-ACT-03")
async def test_noop_is_refused_unless_the_server_is_in_test_mode() -> None:
    asking = Asking()
    with pytest.raises(NotEnabled):
        await asking.ask(routing={"noop_qdrant": True})
    asking = Asking(test_mode=True)
    data = await asking.ask(routing={"noop_qdrant": True})
    assert data == {"response": "", "context": [], "notes": ["noop_qdrant: nothing was searched"], "hits": 0}
    assert asking.index.asked == []
    assert (await asking.ask(routing={"noop_qdrant": False}))["hits"] == 2


async def test_external_search_changes_nothing_and_a_note_says_so() -> None:
    plain = await Asking().ask()
    external = await Asking().ask(routing={"allow_external_search": True})
    assert external.pop("notes") == ["allow_external_search has no effect: only documents are searched"]
    assert external == plain


# Repeats.


@pytest.mark.requirement("MC-IDEM-02")
async def test_a_repeat_gets_the_first_answer_and_nothing_is_searched() -> None:
    asking = Asking()
    request = query_request(key="k" * 16, fingerprint=b"1")
    first = await asking.ask(request=request)
    del asking.index.passages[1]
    assert await asking.ask(request=request) == first
    assert (len(asking.index.asked), first["hits"]) == (1, 2)
    with pytest.raises(Conflict):
        await asking.ask("mice", query_request(key="k" * 16, fingerprint=b"2"))
    other = await asking.ask(request=query_request(key="k" * 16, fingerprint=b"1", subject="svc:other"))
    assert other["hits"] == 1


async def test_a_query_that_is_too_old_for_its_stream_is_ignored() -> None:
    asking = Asking()
    assert (await asking.ask(request=query_request(seq=2)))["hits"] == 2
    assert await asking.ask(request=query_request(seq=1)) == {"ignored": True, "last_seq": 2, "hits": 0}
    assert len(asking.index.asked) == 1


# Usage.


@pytest.mark.requirement("MC-QUERY-02")
async def test_the_usage_tells_what_a_query_was_answered_with() -> None:
    def held(*results: Any, **options: Any) -> Held:
        made = Held(*results, **options)
        made.gate.set()
        return made

    async def took_part(query: str = "owls", request: ActionRequest | None = None, **options: Any) -> Any:
        asking = Asking(test_mode=True, **options)
        return (await asking.queries.perform({"query": query}, request or query_request(), asking.context())).took_part

    assert await took_part() == ("words",)
    assert await took_part(get_embedder=held().get) == ("words", "vectors")
    assert await took_part(get_embedder=held(error=ModelUnavailable("no")).get) == ("words",)
    assert await took_part(writer=held("Owls hunt [1].")) == ("words", "answer")
    assert await took_part(writer=held(error=ModelUnavailable("no"))) == ("words",)
    assert await took_part(writer=held("It cites nothing.")) == ("words",)
    assert await took_part("") == ()
    keyed = query_request(key="k")
    assert [await took_part(request=keyed) for _ in range(2)] == [("words",), None], "a repeat does not know"
