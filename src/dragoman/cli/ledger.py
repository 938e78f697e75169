"""`dragoman ledger`: how much is in a ledger, and whether it keeps its own rules."""

from __future__ import annotations

import typer

from dragoman.cli.ledger_access import Books, OfSpace, OfTarget, age_in_words, print_shown, with_books
from dragoman.cli.options import AsJson, ConfigFile
from dragoman.cli.output import print_columns
from dragoman.cli.words import Commands
from dragoman.process.exit_codes import FAILED
from dragoman.telemetry.clean import sanitize

app = Commands()


@app.command()
def stats(target: OfTarget = None, space: OfSpace = None, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Count the messages and the tasks by status, and what waits for each agent."""

    async def read(books: Books) -> None:
        figures = await books.admin.figures()
        counts, waiting = figures["byStatus"], figures["open"]
        tasks = (await books.runs.count())["byStatus"]
        oldest = min((each["oldest"] for each in waiting.values()), default=None)
        age = None if oldest is None else max(0.0, books.drafts.now() - oldest)
        if as_json:
            depths = {agent: each["depth"] for agent, each in waiting.items()}
            facts = {"space": books.space, "agents": len(figures["agents"]), "byStatus": counts, "depths": depths}
            print_shown({**facts, "oldestSeconds": None if age is None else round(age, 3), "tasks": tasks})
            return
        print_columns(
            [
                ("Space", sanitize(books.space)),
                ("Agents", str(len(figures["agents"]))),
                ("Messages", str(sum(counts.values()))),
                *((f"  {status}", str(counts[status])) for status in sorted(counts)),
                ("Oldest open", "-" if age is None else age_in_words(age)),
                ("Tasks", str(sum(tasks.values()))),
                *((f"  {status}", str(tasks[status])) for status in sorted(tasks)),
            ]
        )

    with_books(config, target, space, read)


@app.command()
def verify(target: OfTarget = None, space: OfSpace = None, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Look for what contradicts the rules of the ledger: gaps, orphans, responses without requests, old fences.

    Reads every message. Exit code 1 when something is wrong.
    """

    async def read(books: Books) -> list[str]:
        return await books.admin.verify()

    problems = with_books(config, target, space, read)
    if as_json:
        print_shown({"valid": not problems, "problems": problems})
    else:
        for each in problems:
            typer.echo(sanitize(each))
        if not problems:
            typer.echo("The ledger is in order.")
    raise typer.Exit(FAILED if problems else 0)
