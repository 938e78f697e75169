"""`dragoman knowledge query`: the passages of a tenant's documents that fit a question."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.ledger_access import note, print_shown
from dragoman.cli.options import AsJson, ConfigFile
from dragoman.cli.storage_access import OPERATOR, OfTenant, OpenStorage, with_storage
from dragoman.telemetry.clean import sanitize, show_all

if TYPE_CHECKING:
    from dragoman.knowledge.port import Applied
    from dragoman.knowledge.querying import KnowledgeQuery

_MOST_MILLISECONDS = 10_000
_LONGEST = 2048


def query(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A question, or words to search for.")],
    tenant: OfTenant = "local",
    tags: Annotated[
        list[str] | None, typer.Option("--tag", help="Only documents with this tag; repeat it for several tags.")
    ] = None,
    top_k: Annotated[int, typer.Option("--top-k", min=1, max=20, help="The most passages.")] = 5,
    answer: Annotated[
        bool,
        typer.Option("--answer", help="Answer as `knowledge.query_knowledge` does: by a model if one is configured."),
    ] = False,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Search the documents, and show the passages that fit best. A server may run at the same time."""
    if len(text) > _LONGEST:
        raise typer.BadParameter(f"a query has at most {_LONGEST} characters")

    async def ask(stored: OpenStorage) -> Applied:
        from dragoman.knowledge.querying import KnowledgeQuery

        wanted = KnowledgeQuery(
            query=text, tags=frozenset(tags or ()), top_k=top_k, max_latency_ms=_MOST_MILLISECONDS, format="plain"
        )
        return await _ask(stored, wanted, tenant, answer=answer)

    applied = with_storage(config, ask)
    data = applied.data
    if as_json:
        print_shown({**(data if answer else {**data, "response": ""}), "hits": applied.hits})
        return
    if answer and data["response"]:
        typer.echo(show_all(data["response"], keep="\n\t") + "\n")
    for number, found in enumerate(data["context"], 1):
        _print_passage(number, found)
    if not data["context"]:
        note("nothing was found")
    for each in data.get("notes", ()):
        note(each)


async def _ask(stored: OpenStorage, wanted: KnowledgeQuery, tenant: str, *, answer: bool) -> Applied:
    """Answer a query; a model is asked only if an answer is wanted."""
    from dragoman.adapters.chat_answers import make_writer
    from dragoman.adapters.embedders import ChosenEmbedders
    from dragoman.ids import RandomIds
    from dragoman.knowledge.actions import QUERY
    from dragoman.knowledge.index import PassageIndex, PassageVectors
    from dragoman.knowledge.part import catch_up
    from dragoman.knowledge.port import ActionRequest, Documents
    from dragoman.knowledge.querying import Queries
    from dragoman.knowledge.roles import OWNER
    from dragoman.knowledge.vectors import embedder_of_queries

    port, settings = stored.storage.port, stored.config.knowledge
    embedders = ChosenEmbedders(settings, stored.folder, os.environ, stored.clock)
    queries = Queries(
        port(Documents),
        port(PassageIndex),
        stored.clock,
        embedder_of_queries(embedders, port(PassageVectors), stored.clock),
        make_writer(settings, os.environ) if answer else None,
        on_failure=lambda error: note(sanitize(str(error))),
    )
    request = ActionRequest(
        tenant=tenant,
        principal=OPERATOR,
        roles=frozenset((OWNER,)),
        action=QUERY,
        correlation_id=RandomIds().correlation_id(),
        web_base=stored.config.gateway.public_url or "",
    )
    await catch_up(port(PassageIndex))  # No server may have run since there is an index.
    return await queries.answer(wanted, request)


def _print_passage(number: int, found: dict[str, Any]) -> None:
    from dragoman.knowledge.answering import place_of

    where = show_all(place_of(found["path"], found["title"], found["heading"]))
    facts = [found["document_id"], f"revision {found['revision']}", f"score {found['score']:.3f}"]
    if found["tags"]:
        facts.append(f"tags {', '.join(map(show_all, found['tags']))}")
    lines = show_all(found["passage"].strip(), keep="\n\t").splitlines()
    typer.echo(
        "\n".join((f"[{number}] {where}", f"    {'  '.join(facts)}", *(f"    {line}".rstrip() for line in lines), ""))
    )
