"""`dragoman knowledge index`: how many passages have vectors, and the vectors of those that have none."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.ledger_access import note, print_shown
from dragoman.cli.options import AsJson, ConfigFile
from dragoman.cli.output import print_columns, refuse
from dragoman.cli.storage_access import OpenStorage, with_storage
from dragoman.process.exit_codes import FAILED
from dragoman.telemetry.clean import sanitize

if TYPE_CHECKING:
    from dragoman.knowledge.embedding import Embedder
    from dragoman.knowledge.index import PassageVectors


def index(
    status: Annotated[bool, typer.Option("--status", help="Embed nothing: say what is left.")] = False,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Embed the passages that have no vector yet, of all tenants, as a server does in the background.

    It can be interrupted: what is embedded stays. Exit code 1 when the model cannot be used, or when a server embeds
    already.
    """

    async def work(stored: OpenStorage) -> list[dict[str, Any]]:
        from dragoman.adapters.embedders import ChosenEmbedders
        from dragoman.knowledge.index import PassageVectors

        chosen = ChosenEmbedders(stored.config.knowledge, stored.folder, os.environ, stored.clock)
        vectors = stored.storage.port(PassageVectors)
        if not status:
            embedder = chosen.make()
            if embedder is None:
                refuse("knowledge.embedder is none: passages are found by their words alone")
            await _embed(stored, vectors, embedder)
        return await _facts(vectors, chosen.model)

    models = with_storage(config, work)
    if as_json:
        print_shown({"models": models})
    elif models:
        rows = (tuple(sanitize(str(fact)) for fact in each.values()) for each in models)
        print_columns([("MODEL", "PASSAGES", "WITH VECTOR", "LEFT", "STATE"), *rows])
    else:
        note("there are no vectors, and knowledge.embedder is none")


async def _facts(vectors: PassageVectors, model: str | None) -> list[dict[str, Any]]:
    """The state of the vectors of each model; that of the settings comes first."""
    names = dict.fromkeys([*([] if model is None else [model]), *sorted(await vectors.models())])
    found = []
    for name in names:
        status = await vectors.status(name)
        left = status.passages - status.with_vector
        state = "other" if name != model else "done" if left <= 0 else "under way"
        facts = {"model": name, "passages": status.passages, "withVector": status.with_vector, "left": max(left, 0)}
        found.append({**facts, "state": state})
    return found


async def _embed(stored: OpenStorage, vectors: PassageVectors, embedder: Embedder) -> None:
    """Embed what is left, or end the command."""
    from dragoman.cli.progress import progress_bar
    from dragoman.errors import ModelUnavailable
    from dragoman.jobs.port import Schedule
    from dragoman.knowledge.vectors import JOB, VectorWork

    if not await stored.storage.port(Schedule).lead(JOB):
        refuse("a server on this data directory embeds already; see --status", code=FAILED)
    status = await vectors.status(embedder.model)
    work, embedded = VectorWork(vectors, embedder, stored.clock), 0
    try:
        with progress_bar("embedding", status.passages - status.with_vector) as advance:
            while done := await work.step():
                embedded += done
                advance(done)
        await work.forget_others()
    except ModelUnavailable as error:
        refuse(sanitize(str(error)), f"{embedded} passages embedded; the same command goes on from here", code=FAILED)
    except asyncio.CancelledError:
        note(f"{embedded} passages embedded; the same command goes on from here")
        raise
    note(f"{embedded} passages embedded")
