"""`dragoman knowledge`: the documents of a tenant, read and written in the database, with or without a server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from dragoman.cli.knowledge_index import index
from dragoman.cli.knowledge_query import query
from dragoman.cli.ledger_access import note, print_shown
from dragoman.cli.options import AsJson, ConfigFile
from dragoman.cli.output import complain, print_columns, refuse
from dragoman.cli.storage_access import LARGEST, OfTenant, OpenStorage, with_storage
from dragoman.cli.words import Commands
from dragoman.process.exit_codes import FAILED
from dragoman.telemetry.clean import sanitize, show_all

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dragoman.cli.knowledge_export import Children, Exported
    from dragoman.cli.knowledge_import import Imported
    from dragoman.knowledge.port import Document, Documents, Revision

_TENANT = "local"
_ROOT = "root"


def _document_id(given: str | None) -> str | None:
    """A document's id as it is stored."""
    from uuid import UUID

    try:
        return given if given in (None, _ROOT) else str(UUID(given))
    except ValueError:
        raise typer.BadParameter("a document's id is a UUID") from None


DocumentId: TypeAlias = Annotated[str, typer.Argument(callback=_document_id, help="The document's id.")]
Below: TypeAlias = Annotated[
    str, typer.Option("--parent", callback=_document_id, help="The document below which they stand.")
]

app = Commands()
app.command()(query)
app.command()(index)


@app.command("import")
def import_files(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder with the files.")],
    tenant: OfTenant = _TENANT,
    parent: Below = _ROOT,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Make documents of the .md, .txt and .json files in DIR and below it, and of its folders.

    The same command again updates what differs from its file, goes on where it was interrupted, and deletes nothing.
    Documents stay where they have been moved to. Hidden files and links are skipped. A document that has the id of a
    file, and that no import has made, is not changed, and the file is not imported; nor is what is below it.

    Exit code 1 when a file could not be imported: they are listed at the end.
    """
    from dragoman.cli.knowledge_files import find_documents, read_list

    if not folder.is_dir():
        refuse(f"there is no folder {sanitize(str(folder))}")
    try:
        listed = read_list(folder)
    except Exception as error:  # Whatever is wrong with it, nothing has been done.
        refuse(f"the list in {sanitize(str(folder))} cannot be used: {sanitize(str(error))}")
    tree = find_documents(folder, listed)

    async def change(stored: OpenStorage) -> Imported:
        from dragoman.adapters.buckets import find_bucket
        from dragoman.cli.knowledge_import import Import
        from dragoman.cli.progress import progress_bar
        from dragoman.gateway.keeping import open_objects
        from dragoman.knowledge.port import DocumentQuota

        documents, settings = _documents(stored), stored.config.gateway
        bucket = find_bucket(settings, stored.folder, stored.clock)
        objects = open_objects(stored.storage, settings, stored.clock, bucket).objects
        if parent != _ROOT:
            await _found(documents, tenant, parent)
        most = stored.config.knowledge
        quota = DocumentQuota(most.documents_per_tenant, most.document_bytes_per_tenant)
        run = Import(documents, objects, tenant, parent, listed, stored.now, settings.max_artifact_bytes, quota)
        try:
            with progress_bar("importing", sum(map(len, tree.levels))) as advance:
                await run.run(tree, advance)
        except asyncio.CancelledError:
            note(f"{_counted(run.came_to)}; the same command goes on from here")
            raise
        return run.came_to

    came_to = with_storage(config, change)
    if as_json:
        facts = {"created": came_to.created, "updated": came_to.updated, "unchanged": came_to.unchanged}
        print_shown({**facts, "skipped": _pairs(tree.skipped), "problems": _pairs(came_to.problems)})
    else:
        typer.echo(_counted(came_to))
        _tell("skipped:", tree.skipped)
        _tell("not imported:", came_to.problems)
    raise typer.Exit(FAILED if came_to.problems else 0)


@app.command("export")
def export_files(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder; it is made if there is none.")],
    tenant: OfTenant = _TENANT,
    parent: Below = _ROOT,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that have another content.")] = False,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Write documents as files, from which `import` makes the same tree again, with the same ids.

    Nothing is written, and the exit code is 1, when a file is there already with another content. Files of documents
    that are gone are left where they are.
    """
    if folder.exists() and not folder.is_dir():
        refuse(f"{sanitize(str(folder))} is no folder")

    async def read(stored: OpenStorage) -> Exported:
        from dragoman.cli.knowledge_export import Export, load_tree
        from dragoman.cli.progress import progress_bar

        documents = _documents(stored)
        if parent != _ROOT:
            await _found(documents, tenant, parent)
        tree = await load_tree(documents, tenant, parent)
        run = Export(documents, tenant, folder, is_forced=force)
        with progress_bar("exporting", len(tree) - 1) as advance:
            await run.run(tree, parent, advance)
        return run.came_to

    came_to = with_storage(config, read)
    in_the_way = [(path, "it is there with another content; see --force") for path in came_to.in_the_way]
    if as_json:
        facts = {"written": came_to.written, "unchanged": came_to.unchanged}
        print_shown({**facts, "problems": _pairs(in_the_way + came_to.problems)})
    else:
        typer.echo(f"{came_to.written} files written, {came_to.unchanged} unchanged")
        _tell("nothing was written:", in_the_way)
        _tell("not written:", came_to.problems)
    raise typer.Exit(FAILED if in_the_way or came_to.problems else 0)


@app.command()
def tree(
    id: Annotated[
        str, typer.Argument(metavar="[ID]", callback=_document_id, help="Only what is below this one.")
    ] = _ROOT,
    tenant: OfTenant = _TENANT,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the documents below each other, in order. Exit code 1 when there is no document ID."""

    async def read(stored: OpenStorage) -> None:
        from dragoman.cli.knowledge_export import load_tree

        documents = _documents(stored)
        if id != _ROOT:
            await _found(documents, tenant, id)
        found = [*_in_order(await load_tree(documents, tenant, id), id)]
        if as_json:
            print_shown({"documents": [{"depth": depth, **_outline(each)} for depth, each in found]})
        elif found:
            rows = ((f"{'  ' * depth}{show_all(each.title)}", *_cells(each)) for depth, each in found)
            print_columns([("DOCUMENT", "REVISION", "TYPE", "ID"), *rows])
        else:
            note("there are no documents")

    with_storage(config, read)


@app.command()
def show(
    id: DocumentId,
    revision: Annotated[
        int | None, typer.Option("--revision", min=1, max=LARGEST - 1, help="As it stood then. Without it, the newest.")
    ] = None,
    tenant: OfTenant = _TENANT,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show a document with its text. Exit code 1 when there is no such document, or no such revision."""

    async def read(stored: OpenStorage) -> Document:
        documents = _documents(stored)
        if revision is None:
            return await _found(documents, tenant, id)
        found = await documents.revision(tenant, id, revision)
        if found is None:
            refuse(f"there is no revision {revision} of {sanitize(id)}", code=FAILED)
        return found.document

    document = with_storage(config, read)
    facts = _outline(document)
    if as_json:
        print_shown({**facts, "body": document.body})
        return
    texts = {name: ", ".join(fact) if isinstance(fact, list) else str(fact) for name, fact in facts.items()}
    print_columns((name, show_all(text)) for name, text in texts.items())
    typer.echo("\n" + show_all(document.body, keep="\n\t"))


@app.command()
def history(
    id: DocumentId,
    before: Annotated[
        int | None, typer.Option("--before", min=1, max=LARGEST, help="The revision before which the page ends.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="The most revisions of a page.")] = 100,
    tenant: OfTenant = _TENANT,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """List the revisions of a document, the newest first; also of a deleted one, until it is purged after 90 days.

    Exit code 1 when there is no such document.
    """

    async def read(stored: OpenStorage) -> list[Revision]:
        found: list[Revision] = []
        documents, start = _documents(stored), before
        while len(found) <= limit:
            page = await documents.history(tenant, id, limit + 1 - len(found), before=start)
            if not page:
                break
            found, start = [*found, *page], page[-1].document.revision
        return found

    page = with_storage(config, read)
    if not page and before is None:
        refuse(f"there is no document {sanitize(id)}", code=FAILED)
    shown, more = page[:limit], page[limit - 1].document.revision if len(page) > limit else None
    facts = [_facts(each) for each in shown]
    if as_json:
        print_shown({"revisions": facts, "before": more})
        return
    rows = (tuple(show_all(str(fact)) for fact in each.values()) for each in facts)
    print_columns([("REVISION", "AT", "ACTION", "PRINCIPAL", "PARENT", "TITLE"), *rows])
    if more is not None:
        note(f"there are more: --before {more}")


def _documents(stored: OpenStorage) -> Documents:
    from dragoman.knowledge.port import Documents

    return stored.storage.port(Documents)


async def _found(documents: Documents, tenant: str, id: str) -> Document:
    """A document; or the end of the command."""
    document = await documents.get(tenant, id)
    if document is None:
        refuse(f"tenant {sanitize(tenant)} has no document {sanitize(id)}", code=FAILED)
    return document


def _in_order(tree: Children, top: str) -> Iterator[tuple[int, Document]]:
    """The documents as a reader expects them, with how deep each is."""
    waiting = [(0, each) for each in reversed(tree[top])]
    while waiting:
        depth, document = waiting.pop()
        yield depth, document
        waiting += ((depth + 1, each) for each in reversed(tree[document.id]))


def _cells(document: Document) -> tuple[str, ...]:
    return str(document.revision), document.mime_type, document.id


def _outline(document: Document) -> dict[str, Any]:
    """Everything about a document but its text."""
    from dragoman.agents.tools import iso

    facts = {
        "id": document.id,
        "parentId": document.parent,
        "title": document.title,
        "mimeType": document.mime_type,
        "revision": document.revision,
        "tags": list(document.tags) or None,
        "source": document.source,
        "lastEditor": document.last_editor,
        "isHumanReadable": document.is_human_readable,
        "createdAt": iso(document.created_at),
        "updatedAt": iso(document.updated_at),
        "deleteAt": None if document.delete_at is None else iso(document.delete_at),
        "deletedAt": None if document.deleted_at is None else iso(document.deleted_at),
    }
    return {name: fact for name, fact in facts.items() if fact is not None}


def _facts(revision: Revision) -> dict[str, Any]:
    from dragoman.agents.tools import iso

    return {
        "revision": revision.document.revision,
        "at": iso(revision.at),
        "action": revision.action,
        "principal": revision.principal,
        "parentId": revision.document.parent,
        "title": revision.document.title,
    }


def _counted(came_to: Imported) -> str:
    return f"{came_to.created} created, {came_to.updated} updated, {came_to.unchanged} unchanged"


def _pairs(listed: list[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"path": path.encode(errors="replace").decode(), "reason": reason} for path, reason in listed]


def _tell(words: str, listed: list[tuple[str, str]]) -> None:
    """Say on stderr what is the matter with files."""
    if listed:
        complain(words, *(f"{show_all(path)}: {show_all(reason)}" for path, reason in listed))
