"""The contract of `PassageIndex` and `PassageVectors`, for every engine."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import pytest

from dragoman.errors import NotFound
from dragoman.knowledge import changing
from dragoman.knowledge.index import FoundPassage, Hit, IndexStatus, PassageIndex, PassageQuery, PassageVectors
from dragoman.knowledge.port import KEPT_DELETED_SECONDS, Documents, UpdateDocument
from dragoman.search import ranking
from dragoman.storage.port import Storage
from dragoman.testing import ManualClock
from tests.contract.engines import opened_storages
from tests.support.document_entries import ACME, OTHER, PLENTY, Tree, titled

NOW = ManualClock().now().timestamp()


@pytest.fixture
def tree(storage: Storage) -> Tree:
    return Tree(storage.port(Documents))


class Searching:
    """Searches of one tenant."""

    def __init__(self, storage: Storage, tenant: str = ACME) -> None:
        self.index = storage.port(PassageIndex)
        self.tenant = tenant

    async def hits(self, text: str, *tags: str, limit: int = 100) -> list[Hit]:
        query = PassageQuery(tenant=self.tenant, tags=frozenset(tags), limit=limit)
        return await self.index.by_words(query, text)

    async def found(self, text: str, *tags: str, limit: int = 100) -> list[FoundPassage]:
        hits = await self.hits(text, *tags, limit=limit)
        return await self.index.read(self.tenant, [hit.number for hit in hits])

    async def ids(self, text: str, *tags: str, limit: int = 100) -> list[str]:
        """The documents of what is found, in order."""
        return [each.document_id for each in await self.found(text, *tags, limit=limit)]


@pytest.fixture
def searching(storage: Storage) -> Searching:
    return Searching(storage)


def changed(id: str, **fields: object) -> UpdateDocument:
    return UpdateDocument(id=id, fields={name.replace("__", "."): value for name, value in fields.items()})


async def test_a_passage_is_found_by_its_words_and_told_with_its_document(tree: Tree, searching: Searching) -> None:
    await tree.create("top", title="Handbook")
    await tree.create("below", "top", title="Travel")
    body = "# Trains\n\nBook early.\n\n## Night trains\n\n" + "Sleepers leave at nine. " * 9
    await tree.create("a", "below", title="Rail", mime_type="text/markdown", body=body, tags=("x", "y"))
    (found,) = await searching.found("sleepers")
    assert found == FoundPassage(
        number=found.number,
        document_id="a",
        title="Rail",
        path=("Handbook", "Travel"),
        heading=("Trains", "Night trains"),
        text=("Sleepers leave at nine. " * 9),
        revision=1,
        tags=("x", "y"),
        is_human_readable=True,
    )


async def test_what_is_told_with_a_passage_is_bounded(
    tree: Tree, searching: Searching, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LONGEST_TAG", "MOST_TAGS"):  # As for documents from before there were limits.
        monkeypatch.setattr(changing, name, 2_000)
    parent = "root"
    for number in range(40):
        await tree.create(f"d{number}", parent, title=f"{number} " + "x" * 1_000)
        parent = f"d{number}"
    await tree.create(
        "a", parent, title="y" * 1_000, body="needle", tags=tuple(f"{n}" + "z" * 1_000 for n in range(150))
    )
    (found,) = await searching.found("needle")
    assert [each.split()[0] for each in found.path] == [str(number) for number in range(8, 40)]
    assert {len(each) for each in (*found.path, found.title, *found.tags)} == {241}
    assert len(found.tags) == 100


async def test_titles_and_headings_are_found_too_and_so_is_a_document_without_a_body(
    tree: Tree, searching: Searching
) -> None:
    await tree.create("a", title="Quarterly figures", body="")
    await tree.create("b", mime_type="text/markdown", body="# Onboarding\n\n" + "text " * 50)
    assert await searching.ids("quarterly") == ["a"]
    assert await searching.ids("onboarding") == ["b"]


async def test_words_of_a_title_and_of_a_text_are_found_together(tree: Tree, searching: Searching) -> None:
    paragraphs = "\n\n".join(f"number{n} " + "filler " * 110 for n in range(5))
    await tree.create("a", title="Alpha handbook", body=f"{paragraphs}\n\nbeta {'filler ' * 100}", tags=("x",))
    await tree.create("b", title="Other", body="beta " + "filler " * 100, tags=("x",))
    await tree.create("c", title="Alpha", body="")
    hits = await searching.found("alpha beta")
    assert [(each.document_id, "beta" in each.text) for each in hits[:1]] == [("a", True)]
    assert sorted(each.document_id for each in hits) == ["a"] * 6 + ["b", "c"]
    assert sorted(await searching.ids("alp")) == [*["a"] * 6, "c"]
    assert sorted(await searching.ids("alpha", "x")) == ["a"] * 6
    await tree.do(titled("a", "Gamma handbook"))
    assert (await searching.ids("alpha"), await searching.ids("gamma")) == (["c"], ["a"] * 6)
    twice, once = "delta " + "filler " * 30, "other " + "filler " * 30
    await tree.create("once", title="Delta", body=once)
    await tree.create("twice", title="Delta", body=twice)
    assert await searching.ids("delta") == ["twice", "once"]
    assert [hit.score for hit in await searching.hits("handbook")] == [
        hit.score for hit in await searching.hits("gamma")
    ], "every passage is found by each word of the title"


async def test_a_common_title_is_read_as_a_common_word_is(
    tree: Tree, searching: Searching, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        body = f"{'rare ' if number % 7 == 0 else ''}{'meeting ' * (number % 3)}word{number}"
        await tree.create(f"d{number}", title=f"Meeting notes {number}", body=body)
    everything = await searching.hits("meeting notes rare", limit=100)
    monkeypatch.setattr(ranking, "_FEW", 0)
    for lookups in (0, 20):
        monkeypatch.setattr(ranking, "_LOOKUPS_FOR_ONE_READ", lookups)
        for limit in (1, 3, 10):
            some = await searching.hits("meeting notes rare", limit=limit)
            assert [hit.number for hit in some] == [hit.number for hit in everything[:limit]]
            assert [hit.score for hit in some] == pytest.approx([hit.score for hit in everything[:limit]])


async def test_a_long_title_is_found_as_a_whole_and_is_not_embedded_with_every_passage(
    storage: Storage, tree: Tree, searching: Searching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changing, "LONGEST_LINE", 10_000)  # As for documents from before there was a limit.
    title = " ".join(f"w{number}" for number in range(1_000))
    await tree.create("a", title=title, body="\n\n".join(f"body{number} " + "x" * 780 for number in range(20)))
    assert set(await searching.ids("w999")) == {"a"}
    assert len(await searching.hits("w1")) == 20
    wanted = await storage.port(PassageVectors).wanted("model", 100)
    assert len(wanted) == 20
    assert max(len(each.text) for each in wanted) < 1_200


async def test_rarer_words_more_occurrences_and_shorter_passages_count_more(tree: Tree, searching: Searching) -> None:
    await tree.create("common", body="alpha")
    await tree.create("both", body="alpha beta")
    await tree.create("rare", body="beta gamma")
    for number in range(5):
        await tree.create(f"other{number}", body="alpha")
    assert (await searching.ids("alpha gamma"))[0] == "rare"
    await tree.create("twice", body="delta delta epsilon")
    await tree.create("once", body="delta zeta epsilon")
    assert await searching.ids("delta") == ["twice", "once"]
    await tree.create("long", body="eta " + "filler " * 100)
    await tree.create("short", body="eta")
    assert await searching.ids("eta") == ["short", "long"]


async def test_any_number_of_tags_can_be_asked_for(
    tree: Tree, searching: Searching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changing, "MOST_TAGS", 2_000)  # As for documents from before there was a limit.
    tags = tuple(f"t{number}" for number in range(1_200))
    await tree.create("all", body="word", tags=(*tags, tags[0]))
    await tree.create("most", body="word", tags=tags[1:])
    assert await searching.ids("word", *tags) == ["all"]
    assert await searching.ids("word", *tags, '\u2028\x01 ü"') == []


async def test_a_beginning_finds_longer_words_and_the_word_itself_is_worth_more(
    tree: Tree, searching: Searching
) -> None:
    await tree.create("longer", title="t", body="configuration configurations")
    await tree.create("exact", title="t", body="config other")
    assert await searching.ids("config") == ["exact", "longer"]
    assert sorted(await searching.ids("conf")) == ["exact", "longer"]
    assert await searching.ids("co") == []


async def test_a_score_from_0_to_1_tells_how_much_of_the_query_is_covered(tree: Tree, searching: Searching) -> None:
    for number in range(9):
        await tree.create(f"other{number}", body="omega and more of it")
    await tree.create("a", title="t", body="alpha beta")
    await tree.create("often", title="t", body="gamma " * 50)
    whole, half, often = [(await searching.hits(text))[0].score for text in ("alpha beta", "alpha zeta", "gamma")]
    assert 0 < half < whole / 2
    assert 0.5 < whole < 1
    assert 0.5 < often < 1


async def test_case_accents_and_variants_do_not_matter(tree: Tree, searching: Searching) -> None:
    await tree.create("a", body="Ünïcode 漢字")
    for text in ("unicode", "ＵＮＩＣＯＤＥ", "UNICODE?", "字"):
        assert await searching.ids(text) == ["a"]


async def test_ties_are_in_the_order_of_their_numbers(tree: Tree, searching: Searching) -> None:
    for number in range(30):
        await tree.create(f"d{number}", title="same", body="words here")
    hits = await searching.hits("words")
    assert len({hit.score for hit in hits}) == 1
    assert [hit.number for hit in hits] == sorted(hit.number for hit in hits)
    assert await searching.hits("words", limit=7) == hits[:7]
    assert await searching.ids("words") == [f"d{number}" for number in range(30)]


async def test_another_tenant_changes_nothing_not_even_scores(storage: Storage, tree: Tree) -> None:
    ours, theirs = Searching(storage), Searching(storage, OTHER)
    await tree.create("a", body="alpha beta")
    await tree.create("b", body="alpha " * 3)
    before = await ours.hits("alpha beta")
    other = Tree(tree.documents, OTHER)
    for number in range(20):
        await other.create(f"o{number}", body="alpha beta configuration " * 10, tags=("t",))
    assert await ours.hits("alpha beta") == before
    assert await ours.hits("conf") == []
    assert await ours.hits("alpha", "t") == []
    numbers = [hit.number for hit in await theirs.hits("alpha")]
    assert len(numbers) == 20
    assert await ours.index.read(ACME, numbers) == []
    for number in range(20):
        await other.delete(f"o{number}")
    assert await ours.hits("alpha beta") == before


async def test_only_documents_with_all_the_tags_are_found(tree: Tree, searching: Searching) -> None:
    await tree.create("none", body="word")
    await tree.create("x", body="word", tags=("x",))
    await tree.create("xy", body="word", tags=("y", "x", "x", ""))
    await tree.create("y", body="word", tags=("y",))
    assert await searching.ids("word", "x") == ["x", "xy"]
    assert await searching.ids("word", "x", "y") == ["xy"]
    assert await searching.ids("word", "z") == []
    assert await searching.ids("word", "") == ["xy"]
    await tree.do(changed("none", metadata__tags=("x",)))
    await tree.do(changed("xy", metadata__tags=None))
    assert await searching.ids("word", "x") == ["none", "x"]
    assert await searching.ids("word", "x", limit=1) == ["none"]


async def test_what_is_changed_is_found_as_it_is_now(tree: Tree, searching: Searching) -> None:
    await tree.create("a", title="First", body="before")
    await tree.do(changed("a", content__body="after"))
    assert (await searching.ids("before"), await searching.ids("after")) == ([], ["a"])
    await tree.do(titled("a", "Second"))
    assert (await searching.ids("first"), await searching.ids("second")) == ([], ["a"])
    await tree.do(changed("a", content__mime_type="text/markdown"))
    assert [(each.title, each.text, each.revision) for each in await searching.found("after")] == [
        ("Second", "after", 4)
    ]


async def test_an_edit_keeps_the_numbers_of_the_other_passages(tree: Tree, searching: Searching) -> None:
    def paragraphs(fifth: str) -> str:
        return "\n\n".join(f"Number{n} {fifth if n == 5 else 'words'} " + "filler " * 90 for n in range(10))

    await tree.create("a", title="t", body=paragraphs("first"))
    before = {hit.number for hit in await searching.hits("filler")}
    await tree.do(changed("a", content__body=paragraphs("second")))
    after = {hit.number for hit in await searching.hits("filler")}
    assert len(before) == len(after) == 10
    assert len(after - before) == 1
    assert {(await searching.found("second"))[0].number} == after - before
    await tree.do(changed("a", content__body=paragraphs("first")))
    assert not {hit.number for hit in await searching.hits("first")} & (before | after)


async def test_large_documents_are_found_after_each_kind_of_change(tree: Tree, searching: Searching) -> None:
    def large(word: str) -> str:
        return f"# {word}\n\n" + "\n\n".join(f"{word} {number} " + "filler " * 50 for number in range(200))

    await tree.create("a", body=large("first"), mime_type="text/markdown")
    assert (await searching.found("first", limit=1))[0].heading == ("first",)
    await tree.do(changed("a", content__body=large("second")))
    assert ((await searching.found("second", limit=1))[0].heading, await searching.ids("first")) == (("second",), [])
    await tree.do(changed("a", content__body=large("third"), content__mime_type="text/plain"))
    assert (await searching.found("third", limit=1))[0].heading == ()
    await tree.create("b", body="first")
    assert await searching.ids("first") == ["b"]
    with pytest.raises(NotFound):
        await tree.do(changed("missing", content__body=large("fourth")))


async def test_a_moved_document_keeps_its_passages_and_is_told_where_it_stands(
    tree: Tree, searching: Searching
) -> None:
    await tree.create("a", title="A")
    await tree.create("b", title="B")
    await tree.create("c", "a", title="C")
    await tree.create("d", "c", title="D", body="needle")
    (before,) = await searching.found("needle")
    await tree.move("c", "b")
    (after,) = await searching.found("needle")
    assert (before.path, after.path) == (("A", "C"), ("B", "C"))
    assert before.number == after.number


@pytest.mark.requirement("MC-DELETE-02")
async def test_nothing_below_a_deleted_document_is_found(tree: Tree, searching: Searching) -> None:
    await tree.create("a", body="needle")
    await tree.create("b", "a", body="needle", tags=("x",))
    await tree.create("c", "b", body="needle")
    await tree.create("stays", body="needle")
    numbers = [hit.number for hit in await searching.hits("needle")]
    await tree.delete("a")
    assert await searching.ids("needle") == ["stays"]
    assert await searching.ids("needle", "x") == []
    assert [each.document_id for each in await searching.index.read(ACME, numbers)] == ["stays"]


@pytest.mark.requirement("MC-DELETE-02")
async def test_what_is_due_is_not_found_and_a_purged_id_can_be_used_again(
    tree: Tree, searching: Searching, clock: ManualClock
) -> None:
    await tree.create("a", body="needle")
    (hit,) = await searching.hits("needle")
    await tree.delete("a", NOW + 10)
    assert await searching.ids("needle") == ["a"]
    clock.advance(10)
    assert await searching.index.read(ACME, [hit.number]) == []
    assert await searching.hits("needle") == []
    clock.advance(KEPT_DELETED_SECONDS)
    assert await tree.documents.tidy(PLENTY) == 2
    await tree.create("a", body="other")
    assert (await searching.hits("needle"), await searching.ids("other")) == ([], ["a"])


async def test_a_refused_change_leaves_nothing_to_be_found(tree: Tree, searching: Searching) -> None:
    await tree.create("a", body="first")
    with pytest.raises(Exception, match="revision"):
        await tree.do(UpdateDocument(id="a", fields={"content.body": "second"}, last_known_revision=9))
    with pytest.raises(Exception, match="id"):
        await tree.create("a", body="third")
    assert [await searching.ids(text) for text in ("first", "second", "third")] == [["a"], [], []]


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "\0", '"', "'", "*", "()", "a OR", "NEAR(a b", "{terms}: a", "^a", "a:b", "-a", "\u202ea\u202c",
        "\ufdd0", "\U0010ffff", "a" * 2048, "漢" * 2048, "a\u0301" * 1024, " ".join(f"w{n}" for n in range(500)), "😀",
    ],
)  # fmt: skip
async def test_no_query_is_an_error(tree: Tree, searching: Searching, text: str) -> None:
    await tree.create("a", title="t", body="needle")
    assert await searching.hits(text) == []


async def test_any_text_can_be_found_by_what_is_around_it(tree: Tree, searching: Searching) -> None:
    for number, odd in enumerate(("\0", '"', "\u202e", "\U0010ffff", "NEAR(", "' OR 1=1", "\n" * 5000, "x" * 50_000)):
        await tree.create(f"d{number}", body=f"needle {odd} haystack")
    assert len(set(await searching.ids("needle"))) == len(set(await searching.ids("haystack"))) == 8


async def test_none_are_found_where_there_are_none(searching: Searching) -> None:
    assert await searching.hits("word") == []
    assert await searching.index.read(ACME, [1, 0, -1, 2**62]) == []
    assert await searching.index.catch_up(10) == 0


async def test_common_words_do_not_hide_the_rare_one(tree: Tree, searching: Searching) -> None:
    body = "\n\n".join(f"common words number{n} " + "filler " * 110 for n in range(1200))
    await tree.create("a", title="t", body=body)
    await tree.create("b", title="t", body="common needle words " + "filler " * 110)
    assert await searching.index.catch_up(10) == 1
    assert len(await searching.hits("common", limit=5000)) == 1201
    assert (await searching.ids("common words needle filler", limit=1)) == ["b"]
    few = await searching.hits("number7 number9 needle filler common", limit=3)
    many = await searching.hits("number7 number9 needle filler common", limit=5000)
    assert [hit.number for hit in few] == [hit.number for hit in many[:3]]
    assert [hit.score for hit in few] == pytest.approx([hit.score for hit in many[:3]])


async def test_what_one_process_stores_another_finds(engine: str, tmp_path: Path) -> None:
    async with opened_storages(engine, tmp_path, count=2) as (first, second):
        tree = Tree(first.port(Documents))
        await tree.create("a", body="needle")
        assert await Searching(second).ids("needle") == ["a"]
        await Tree(second.port(Documents)).do(changed("a", content__body="other"))
        assert (await Searching(first).ids("needle"), await Searching(first).ids("other")) == ([], ["a"])


# Vectors.

MODEL = "test-2"


def unit(degrees: float) -> bytes:
    return struct.pack("<2f", math.cos(math.radians(degrees)), math.sin(math.radians(degrees)))


class Embedding:
    """Gives each passage that wants one the vector that its text names, in degrees."""

    def __init__(self, storage: Storage, tenant: str = ACME) -> None:
        self.vectors = storage.port(PassageVectors)
        self.index = storage.port(PassageIndex)
        self.tenant = tenant

    async def embed(self, model: str = MODEL) -> int:
        wanted = await self.vectors.wanted(model, PLENTY)
        await self.vectors.put(model, {each.number: unit(float(each.text.split()[-1])) for each in wanted})
        return len(wanted)

    async def hits(self, degrees: float, *tags: str, model: str = MODEL, limit: int = 100) -> list[Hit]:
        query = PassageQuery(tenant=self.tenant, tags=frozenset(tags), limit=limit)
        return await self.index.by_vector(query, model, unit(degrees))

    async def ids(self, degrees: float, *tags: str, model: str = MODEL, limit: int = 100) -> list[str]:
        hits = await self.hits(degrees, *tags, model=model, limit=limit)
        return [each.document_id for each in await self.index.read(self.tenant, [hit.number for hit in hits])]


@pytest.fixture
def embedding(storage: Storage) -> Embedding:
    return Embedding(storage)


async def test_passages_want_vectors_of_headings_and_text_until_they_have_them(
    tree: Tree, embedding: Embedding
) -> None:
    assert await embedding.vectors.wanted(MODEL, 10) == []
    body = "# Heading\n\n" + "text " * 20 + "30"
    await tree.create("a", title="Title", body=body, mime_type="text/markdown")
    await tree.create("b", title="Other", body="60")
    wanted = await embedding.vectors.wanted(MODEL, 10)
    assert [each.text for each in wanted] == ["Heading\n" + "text " * 20 + "30", "60"]
    assert await embedding.vectors.wanted(MODEL, 1) == wanted[:1]
    assert await embedding.vectors.status(MODEL) == IndexStatus(2, 0)
    await embedding.vectors.put(MODEL, {wanted[0].number: unit(30)})
    assert await embedding.vectors.wanted(MODEL, 10) == wanted[1:]
    assert await embedding.vectors.status(MODEL) == IndexStatus(2, 1)
    assert await embedding.embed() == 1
    assert await embedding.embed() == 0


async def test_the_most_alike_vectors_are_found_first_and_ties_are_in_order(tree: Tree, embedding: Embedding) -> None:
    for number, degrees in enumerate((0, 90, 30, 60, 30)):
        await tree.create(f"d{number}", body=str(degrees))
    assert await embedding.hits(0) == []
    await embedding.embed()
    hits = await embedding.hits(31)
    assert [hit.score for hit in hits] == pytest.approx(
        [math.cos(math.radians(each)) for each in (1, 1, 29, 31, 59)], abs=1e-5
    )
    assert await embedding.ids(31) == ["d2", "d4", "d3", "d0", "d1"]
    assert await embedding.hits(31, limit=1) == hits[:1]
    assert await embedding.hits(31, limit=0) == []


async def test_vectors_of_other_models_tenants_and_lengths_are_left_out(
    storage: Storage, tree: Tree, embedding: Embedding
) -> None:
    other = Tree(tree.documents, OTHER)
    await tree.create("a", body="10", tags=("x",))
    await tree.create("b", body="20", tags=("x", "y"))
    await other.create("c", body="10", tags=("x",))
    await embedding.embed()
    assert await embedding.ids(0) == ["a", "b"]
    assert await embedding.ids(0, "x", "y") == ["b"]
    assert await embedding.ids(0, "z") == []
    assert await embedding.ids(0, model="other-2") == []
    assert await Embedding(storage, OTHER).ids(0) == ["c"]
    assert await embedding.vectors.status(MODEL, ACME) == IndexStatus(2, 2)
    assert await embedding.vectors.status(MODEL) == IndexStatus(3, 3)
    assert await embedding.vectors.status(MODEL, "nobody") == IndexStatus(0, 0)
    query = PassageQuery(tenant=ACME, limit=10)
    for odd in (b"", b"123", unit(0) * 2):
        assert await embedding.index.by_vector(query, MODEL, odd) == []


async def test_an_edit_keeps_the_vectors_of_the_other_passages(tree: Tree, embedding: Embedding) -> None:
    def body(first: int) -> str:
        return "\n\n".join("filler " * 100 + str(degrees) for degrees in (first, 40, 50, 60))

    await tree.create("a", title="t", body=body(10))
    assert await embedding.embed() == 4
    before = await embedding.hits(50)
    await tree.do(changed("a", content__body=body(80)))
    assert len(await embedding.hits(50)) == 3
    assert await embedding.embed() == 1
    after = await embedding.hits(50)
    assert after[:3] == before[:3]
    before = await embedding.hits(50)
    await tree.do(titled("a", "u"))
    await tree.do(changed("a", metadata__tags=("x",)))
    assert (await embedding.hits(50), await embedding.embed()) == (before, 0)
    assert await embedding.hits(50, "x") == before


async def test_a_document_without_text_has_the_vector_of_its_title(tree: Tree, embedding: Embedding) -> None:
    await tree.create("a", title="10", body="")
    await tree.create("b", title="t", body="text 5")
    await tree.do(changed("b", content__body=""))
    await tree.do(titled("b", "20"))
    await embedding.embed()
    assert await embedding.ids(0) == ["a", "b"]
    await tree.do(titled("b", "5"))
    assert await embedding.ids(0) == ["a"]
    assert [each.text for each in await embedding.vectors.wanted(MODEL, 10)] == ["5"]
    await embedding.embed()
    assert await embedding.ids(0) == ["b", "a"]


async def test_vectors_of_what_is_gone_are_gone(tree: Tree, embedding: Embedding, clock: ManualClock) -> None:
    for number in range(4):
        await tree.create(f"d{number}", body=str(number))
    wanted = await embedding.vectors.wanted(MODEL, 10)
    await tree.delete("d3")
    await embedding.vectors.put(MODEL, {each.number: unit(float(each.text.split()[-1])) for each in wanted})
    assert await embedding.ids(0) == ["d0", "d1", "d2"]
    await tree.delete("d0")
    assert await embedding.ids(0) == ["d1", "d2"]
    assert await embedding.ids(0, limit=1) == ["d1"]
    await tree.delete("d1", NOW + 5)
    clock.advance(5)
    assert await embedding.ids(0) == ["d2"]
    await tree.documents.tidy(PLENTY)
    assert await embedding.vectors.models() == {MODEL: 1}


async def test_a_vector_is_gone_with_its_passage_even_if_another_one_gets_the_number(
    storage: Storage, tree: Tree, embedding: Embedding, clock: ManualClock
) -> None:
    other, others = Tree(tree.documents, OTHER), Embedding(storage, OTHER)
    await tree.create("stays", body="80")
    await tree.create("purged", body="10")
    await embedding.embed()
    assert await embedding.ids(10) == ["purged", "stays"]

    async def purge(owner: Tree, id: str) -> None:
        await owner.delete(id)
        clock.advance(KEPT_DELETED_SECONDS + 1)
        await tree.documents.tidy(PLENTY)

    await purge(tree, "purged")
    await other.create("others", body="11")
    await others.embed()
    assert len(await embedding.hits(10)) == 1
    await purge(other, "others")
    await tree.create("new", body="90")
    await embedding.embed()
    assert [hit.score for hit in await embedding.hits(10)] == pytest.approx([0.342, 0.174], abs=0.001)


async def test_no_tenant_waits_until_all_passages_of_another_have_vectors(
    storage: Storage, tree: Tree, embedding: Embedding
) -> None:
    others = [Tree(tree.documents, f"other{number}") for number in range(4)]
    await tree.create("a", title="", body="\n\n".join(f"{number} " + "filler " * 110 for number in range(30)))
    for each in others:
        await each.create("b", title="", body=each.tenant)
        await each.create("c", title="", body="c")
    wanted = await embedding.vectors.wanted(MODEL, 10)
    texts = [each.text.split()[0] for each in wanted]
    assert {*texts[:5]} == {"0", *(each.tenant for each in others)}
    assert sorted(texts[5:]) == ["1", "c", "c", "c", "c"]
    vectors = storage.port(PassageVectors)
    seen = set()
    for _ in range(10):  # However few are wanted at a time.
        (each,) = await vectors.wanted(MODEL, 1)
        await vectors.put(MODEL, {each.number: unit(0)})
        seen.add(each.text.split()[0])
    assert {each.tenant for each in others} <= seen


async def test_passages_can_be_put_off(tree: Tree, embedding: Embedding, clock: ManualClock) -> None:
    for number in range(3):
        await tree.create(f"d{number}", body=str(number))
    first, *others = await embedding.vectors.wanted(MODEL, 10)
    await embedding.vectors.put_off(MODEL, [first.number, 2**40], 60)
    assert await embedding.vectors.wanted(MODEL, 10) == others
    await embedding.vectors.put_off(MODEL, [each.number for each in others], 30)
    assert await embedding.vectors.wanted(MODEL, 10) == []
    assert len(await embedding.vectors.wanted("new", 10)) == 3
    await tree.do(changed("d0", content__body="5"))
    (changed_one,) = await embedding.vectors.wanted(MODEL, 10)
    assert changed_one.number != first.number
    clock.advance(30)
    assert len(await embedding.vectors.wanted(MODEL, 10)) == 3
    assert await embedding.embed() == 3


async def test_a_model_that_never_made_a_vector_is_forgotten_too(tree: Tree, embedding: Embedding) -> None:
    await tree.create("a", body="10")
    await embedding.vectors.wanted("never", 10)
    await embedding.embed()
    assert await embedding.vectors.models() == {MODEL: 1, "never": 0}
    assert await embedding.vectors.forget("never", 2) == 0
    assert await embedding.vectors.models() == {MODEL: 1}


async def test_a_vector_that_is_there_stays(tree: Tree, embedding: Embedding) -> None:
    await tree.create("a", body="10")
    (wanted,) = await embedding.vectors.wanted(MODEL, 1)
    await embedding.vectors.put(MODEL, {wanted.number: unit(10)})
    await embedding.vectors.put(MODEL, {wanted.number: unit(80), 2**40: unit(0), 0: unit(0)})
    assert [hit.score for hit in await embedding.hits(10)] == pytest.approx([1.0])


async def test_one_model_serves_until_another_is_done_and_it_is_forgotten(tree: Tree, embedding: Embedding) -> None:
    for number in range(3):
        await tree.create(f"d{number}", body=str(number))
    await embedding.embed()
    assert len(await embedding.vectors.wanted("new", 10)) == 3
    await embedding.embed("new")
    assert await embedding.vectors.models() == {MODEL: 3, "new": 3}
    assert len(await embedding.hits(0)) == 3
    assert await embedding.vectors.forget(MODEL, 2) == 2
    assert len(await embedding.hits(0)) == 1
    assert await embedding.vectors.forget(MODEL, 2) == 1
    assert await embedding.vectors.forget(MODEL, 2) == 0
    assert (await embedding.hits(0), len(await embedding.hits(0, model="new"))) == ([], 3)
    assert await embedding.vectors.models() == {"new": 3}
    await tree.create("later", body="5")
    assert await embedding.embed("new") == 1


async def test_many_vectors_that_come_and_go(tree: Tree, embedding: Embedding) -> None:
    for turn in range(4):
        paragraphs = [f"n{n} " + "filler " * 105 + str((n * 37 + turn) % 360) for n in range(200)]
        change = changed("a", content__body="\n\n".join(paragraphs))
        await (tree.do(change) if turn else tree.create("a", title="t", body="\n\n".join(paragraphs)))
        await embedding.index.catch_up(10)
        await embedding.embed()
        hits = await embedding.hits(turn, limit=400)
        assert len(hits) == 200
        assert hits[0].score == pytest.approx(1.0)
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


async def test_vectors_that_one_process_stores_another_finds(engine: str, tmp_path: Path) -> None:
    async with opened_storages(engine, tmp_path, count=2) as (first, second):
        trees = [Tree(storage.port(Documents)) for storage in (first, second)]
        embeddings = [Embedding(storage) for storage in (first, second)]
        await trees[0].create("a", body="10")
        await embeddings[0].embed()
        assert [await each.ids(0) for each in embeddings] == [["a"], ["a"]]
        await trees[1].create("b", body="5")
        await embeddings[1].embed()
        assert [await each.ids(0) for each in embeddings] == [["b", "a"], ["b", "a"]]
        await trees[1].do(changed("a", content__body="2"))
        assert [await each.ids(0) for each in embeddings] == [["b"], ["b"]]
        await embeddings[0].embed()
        assert [await each.ids(0) for each in embeddings] == [["a", "b"], ["a", "b"]]
        await trees[0].delete("b")
        assert [await each.ids(0) for each in embeddings] == [["a"], ["a"]]
