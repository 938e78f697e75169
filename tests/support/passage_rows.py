"""Whether the rows of the index in a database are exactly those of its documents."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator

import msgspec

from dragoman.knowledge.indexing import IndexEntry, entries_of, whole_text
from dragoman.knowledge.passages import passages_of
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
        entries = entries_of(title, passages_of(mime_type, body))
        if kept.pop(number, Counter()) != Counter(each.hash for each in entries):
            yield f"document {id} has other passages than it should have"
        space = tenants.get(tenant, 0)
        tags |= {(space, tag, number) for tag in msgspec.json.decode(tagged)}
        for words in ([*_each(entry)] for entry in entries):
            terms.update(f"{space:08x}{word}" for word in set(words))
            counts.setdefault(space, [0, 0])[0] += 1
            counts[space][1] += len(words)
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


def _each(entry: IndexEntry) -> Iterator[str]:
    """Each word as often as it occurs; those of rare texts that occur more than eight times would be counted less."""
    return iter(all_words_in(whole_text(entry.title, entry.passage)))
