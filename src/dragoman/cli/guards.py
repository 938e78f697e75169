"""`dragoman guards`: the gates that every call passes, and how each of them is switched."""

from __future__ import annotations

from dragoman.cli.options import AsJson, ConfigFile, settings_from
from dragoman.cli.output import print_columns, print_json


def guards(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """List the gates that calls pass, in order, with the mode that each is in.

    `guards.gates` switches them: enforce, warn or off.
    """
    from dragoman.calls.guards import listed

    gates = listed(settings_from(config).config.guards)
    if as_json:
        print_json(gates)
    else:
        print_columns((gate.id, gate.mode, gate.description) for gate in gates)
