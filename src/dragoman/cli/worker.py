"""The program that the parent of `dragoman serve --workers` starts for each worker; not a command for people."""

from __future__ import annotations

import sys

import typer

from dragoman.cli.output import refuse
from dragoman.cli.serve import Prepared, finish, prepare, run
from dragoman.errors import ConfigError
from dragoman.workers.control import Garbled
from dragoman.workers.worker import WorkerPlace, place_at, serve_at


def main() -> None:
    """Serve until the parent says otherwise, or is gone."""
    try:
        with place_at(*map(int, sys.argv[1:3])) as place:
            prepared, abandoned = _serve(place)
    except typer.Exit as ended:
        sys.exit(ended.exit_code)
    except Garbled as error:
        sys.exit(f"dragoman: {error}")
    finish(prepared, abandoned)


def _serve(place: WorkerPlace) -> tuple[Prepared, int]:
    prepared = prepare(place.welcome.source, place.config, place.siblings)
    try:
        app = prepared.server.http(siblings=place.siblings)
    except ConfigError as error:
        refuse("The settings cannot be used:", *str(error).splitlines())
    return prepared, run(prepared, serve_at(place, prepared.server, app))


if __name__ == "__main__":
    main()
