"""`dragoman resources` and `dragoman prompts`: what a client would find besides tools, without a client."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.cli.options import AsJson, ConfigFile, ExtensionsDir, Target, settings_from
from dragoman.cli.output import kept_for_answers, print_columns, print_json
from dragoman.cli.words import Commands
from dragoman.telemetry.clean import sanitize
from dragoman.workers.control import Source

if TYPE_CHECKING:
    from dragoman.offers.catalogue import Offer, Offers

resources = Commands()
prompts = Commands()


@resources.command("list")
def list_resources(
    target: Target = None, extensions_dir: ExtensionsDir = None, config: ConfigFile = None, as_json: AsJson = False
) -> None:
    """List the resources that TARGET would be served with, and then its templates."""
    offers = _offers(Source(target, extensions_dir), config)
    _print([*offers.resources(), *offers.templates()], as_json)


@prompts.command("list")
def list_prompts(target: Target = None, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """List the prompts that TARGET would be served with."""
    _print(_offers(Source(target), config).prompts(), as_json)


def _offers(source: Source, config: Path | None) -> Offers:
    from dragoman.cli.target import server_for

    settings = settings_from(config)
    with kept_for_answers():
        return server_for(source, settings.config).offers


def _print(offers: Iterable[Offer], as_json: bool) -> None:
    if as_json:
        print_json([each.listing() for each in offers])
    else:
        rows = ((each.key, (each.description or "").strip().partition("\n")[0]) for each in offers)
        print_columns((sanitize(key), sanitize(said)) for key, said in rows)
