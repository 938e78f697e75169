"""Whether the rows of the index in a database are exactly those of its documents."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator

import msgspec

from dragoman.knowledge.indexing import IndexEntry, entries_of
from dragoman.search.titles import outline_of, unpacked
from dragoman.search.words import all_words_in

_TEXT = "SELECT text FROM document_piece WHERE number >> 16 = document.content ORDER BY number"
_STANDING = f"""
    SELECT number, tenant, id, title, mime_type, tags,
      CASE WHEN content IS NULL THEN body ELSE (SELECT coalesce(group_concat(text, ''), '') FROM ({_TEXT})) END
    FROM document WHERE deleted_at IS NULL
    """
_KEPT = "SELECT number >> 25, hash FROM passage"
_ORPHANS = {
    "vector": "SELECT count(*) FROM passage_vector WHERE passage NOT IN (SELECT number FROM passage)",
    "note": "SELECT count(*) FROM passage_wanted WHERE passage NOT IN (SELECT number FROM passage)",
}


def problems_with_passages(connection: sqlite3.Connection) -> list[str]:
    """What is missing, and what is left of documents that are gone; of a database in which all is indexed."""
    return [*_problems(connection)]


def _problems(connection: sqlite3.Connection) -> Iterator[str]:
    kept: dict[int, Counter[bytes]] = defaultdict(Counter)
    for document, hash in connection.execute(_KEPT):
        kept[document][hash] += 1
    tenants = {name: number for number, name in connection.execute("SELECT number, name FROM passage_tenant")}
    terms: Counter[str] = Counter()
    counts: dict[int, list[int]] = {number: [0, 0] for number in tenants.values()}
    tags: set[tuple[int, str, int]] = set()
    for number, tenant, id, title, mime_type, tagged, body in connection.execute(_STANDING).fetchall():
        entries = entries_of(mime_type, body)
        if kept.pop(number, Counter()) != Counter(each.hash for each in entries):
            yield f"document {id} has other passages than it should have"
        space = tenants.get(tenant, 0)
        tags |= {(space, tag, number) for tag in msgspec.json.decode(tagged)}
        terms.update(f"t{space:08x}{word}" for word in set(all_words_in(title)))
        for words in map(_words, entries):
            terms.update(f"{space:08x}{word}" for word in set(words))
            counts.setdefault(space, [0, 0])[0] += 1
            counts[space][1] += len(words)
        outline = connection.execute("SELECT outline FROM passage_document WHERE document = ?", (number,)).fetchone()
        lengths = connection.execute(
            "SELECT number & (1 << 25) - 1, length FROM passage WHERE number >> 25 = ?", (number,)
        )
        if outline is None or [*unpacked(outline[0])] != [outline_of(*each) for each in sorted(lengths)]:
            yield f"the outline of document {id} is not that of its passages"
    if kept:
        yield f"documents {[*kept]} are gone, and have passages"
    if dict(connection.execute("SELECT term, doc FROM passage_term_count")) != terms:
        yield "the index has other words than the passages"
    rows = connection.execute("SELECT number, passages, words FROM passage_tenant")
    if {number: [passages, words] for number, passages, words in rows} != counts:
        yield "the counts of a tenant are wrong"
    if {*connection.execute("SELECT tenant, tag, document FROM passage_tag")} != tags:
        yield "the index has other tags than the documents"
    for kind, statement in _ORPHANS.items():
        if connection.execute(statement).fetchone() != (0,):
            yield f"a {kind} of a passage is left that is gone"


def _words(entry: IndexEntry) -> list[str]:
    return all_words_in("\n".join((*entry.passage.heading, entry.passage.text)))
