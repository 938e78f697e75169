"""`dragoman keys`: the keys that external callers of the gateway sign with. The server keeps the public halves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from dragoman.cli.ledger_access import age_in_words, note, print_shown
from dragoman.cli.options import AsJson, ConfigFile, settings_from
from dragoman.cli.output import complain, print_columns, refuse
from dragoman.cli.storage_access import OPERATOR, OpenStorage, check_tenant, with_storage
from dragoman.cli.words import Commands
from dragoman.process.exit_codes import FAILED
from dragoman.telemetry.clean import sanitize

if TYPE_CHECKING:
    from dragoman.gateway.port import SigningKey
    from dragoman.knowledge.port import AuditEvent

_DAY = 86_400

Kid: TypeAlias = Annotated[str, typer.Argument(help="The name of the key.")]
Out: TypeAlias = Annotated[
    Path | None,
    typer.Option("--out", help="A new file for the private half. Without it, keys/KID.json in the data directory."),
]

app = Commands()


@app.command()
def generate(
    tenant: Annotated[str, typer.Option("--tenant", callback=check_tenant, help="Whose documents it is for.")],
    role: Annotated[
        list[str],
        typer.Option(
            "--role", help="The most that its requests can be: owner, editor, viewer, agent; may be repeated."
        ),
    ],
    out: Out = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Make a key. Its private half goes to a file that only you can read, and nowhere else.

    Running servers accept it at once, for 90 days.
    """
    roles = _canonical(role)
    made = with_storage(config, lambda stored: _make(stored, tenant, roles, out, "key.generated", {}))
    _print_made(*made, as_json=as_json)


@app.command("list")
def list_keys(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """List the keys, the oldest first, revoked ones too. Keys are refused when they are older than 90 days."""

    async def read(stored: OpenStorage) -> None:
        from dragoman.gateway.port import SigningKeys

        now = stored.now()
        facts = [_facts(key, now) for key in await stored.storage.port(SigningKeys).list()]
        if as_json:
            print_shown({"keys": facts})
            return
        if not facts:
            note("there are no keys; `dragoman keys generate` makes one")
            return
        print_columns([("KEY", "TENANT", "ROLES", "AGE", "STATUS"), *map(_row, facts)])
        for each in facts:
            if each["status"] == "old":
                left = max(0, 90 - each["ageDays"])
                complain(f"{each['kid']} is refused in {left} days: `dragoman keys rotate {each['kid']}`")

    with_storage(config, read)


@app.command()
def rotate(kid: Kid, out: Out = None, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Make a new key for the same tenant and roles. The old one stays valid until it is revoked, or 90 days old.

    A client that signs with the new key and the same `sub` remains the same caller: order, answers, rate and registry.

    Exit code 1 when there is no such key, or it has been revoked.
    """

    async def change(stored: OpenStorage) -> tuple[SigningKey, Path]:
        old = await _found(stored, kid)
        if old.revoked_at is not None:
            refuse(f"{old.kid} has been revoked: make a new key with `dragoman keys generate`", code=FAILED)
        return await _make(stored, old.tenant, old.roles, out, "key.rotated", {"from": old.kid}, old.line)

    _print_made(*with_storage(config, change), as_json=as_json, old=kid)


@app.command()
def revoke(kid: Kid, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Revoke a key, for good. Every server refuses what it signs from now on.

    Exit code 1 when there is no such key, or it was revoked before.
    """

    async def change(stored: OpenStorage) -> None:
        from dragoman.gateway.port import SigningKeys

        key, now = await _found(stored, kid), stored.now()
        if not await stored.storage.port(SigningKeys).revoke(kid, now, _event(key, "key.revoked", now, {})):
            refuse(f"{key.kid} was revoked before", code=FAILED)

    with_storage(config, change)
    if as_json:
        print_shown({"kid": kid, "status": "revoked"})
    else:
        typer.echo(f"{kid} is revoked")


@app.command()
def local(config: ConfigFile = None) -> None:
    """Print the secret of the data directory.

    A client that sends it to a server on this machine is the owner of the tenant `local`. Clients over HTTP send it as
    a bearer token, and pages take it as #local=SECRET: a server without authentication prints such an address when it
    starts on a terminal. Delete the file keys/local, and restart the servers, to have another one.
    """
    from dragoman.access.local_secret import find_local_secret
    from dragoman.errors import ConfigError
    from dragoman.storage.settings import data_directory

    storage = settings_from(config).config.storage
    if storage.engine == "memory":
        refuse("storage.engine is memory: there is no data directory with a secret")
    try:
        secret = find_local_secret(data_directory(storage, os.environ))
    except ConfigError as error:
        refuse("The settings cannot be used:", *str(error).splitlines())
    typer.echo(secret)


def _canonical(given: list[str]) -> tuple[str, ...]:
    """The roles, in order and under the names that count; or the end of the command."""
    from dragoman.knowledge.roles import ALIASES, ROLES, canonical

    for role in given:
        if role in ALIASES:
            note(f"{role} is another name of {ALIASES[role]}, which the key gets")
        elif role not in ROLES:
            refuse(f"there is no role {sanitize(role)}. There are {', '.join(sorted(ROLES))}")
    return tuple(sorted(canonical(given)))


async def _make(
    stored: OpenStorage,
    tenant: str,
    roles: tuple[str, ...],
    out: Path | None,
    event: str,
    details: dict[str, Any],
    line: str = "",
) -> tuple[SigningKey, Path]:
    """A new key, of a line or the first of its own, and the file with its private half."""
    from dragoman.cli.key_files import make_key, write_key
    from dragoman.gateway.port import SigningKey, SigningKeys

    private, now = make_key(tenant), stored.now()
    key = SigningKey(kid=private.kid, public=private.x, tenant=tenant, roles=roles, created_at=now, line=line)
    path = write_key(private, out, stored.folder)
    try:
        noted = _event(key, event, now, {"roles": list(roles), **details})
        if not await stored.storage.port(SigningKeys).add(key, noted):
            refuse("there is a key of this name: try again", code=FAILED)
    except BaseException:  # No server knows the key.
        path.unlink(missing_ok=True)
        raise
    return key, path


async def _found(stored: OpenStorage, kid: str) -> SigningKey:
    """A key; or the end of the command."""
    from dragoman.gateway.port import SigningKeys

    key = await stored.storage.port(SigningKeys).find(kid) if kid.isprintable() else None
    if key is None:
        refuse(f"there is no key {sanitize(kid)}; see `dragoman keys list`", code=FAILED)
    return key


def _event(key: SigningKey, event: str, at: float, details: dict[str, Any]) -> AuditEvent:
    from dragoman.knowledge.port import AuditEvent

    return AuditEvent(tenant=key.tenant, event=event, principal=_user(), subject=key.kid, at=at, details=details)


def _user() -> str:
    """The name of the person who runs the command, as far as the operating system can say."""
    import getpass

    try:
        name = getpass.getuser()
    except (OSError, KeyError, ImportError):  # There may be nobody of this number, as in containers.
        return OPERATOR
    return name if name and name.isprintable() else OPERATOR


def _facts(key: SigningKey, now: float) -> dict[str, Any]:
    """A key as a list has it."""
    from dragoman.agents.tools import iso
    from dragoman.gateway.port import LONGEST_KEY_SECONDS, OLD_KEY_SECONDS

    age = now - key.created_at
    status = "refused" if age > LONGEST_KEY_SECONDS else "old" if age > OLD_KEY_SECONDS else "valid"
    facts = {
        "kid": key.kid,
        "tenant": key.tenant,
        "roles": list(key.roles),
        "createdAt": iso(key.created_at),
        "ageDays": int(age // _DAY),
        "status": status if key.revoked_at is None else "revoked",
    }
    return facts if key.revoked_at is None else {**facts, "revokedAt": iso(key.revoked_at)}


_STATUSES = {
    "valid": "valid",
    "old": "valid, but rotate it soon",
    "refused": "refused: older than 90 days",
    "revoked": "revoked",
}


def _row(facts: dict[str, Any]) -> tuple[str, ...]:
    age = age_in_words(facts["ageDays"] * _DAY) if facts["ageDays"] > 1 else "new"
    return (*map(sanitize, (facts["kid"], facts["tenant"], ", ".join(facts["roles"]))), age, _STATUSES[facts["status"]])


def _print_made(key: SigningKey, path: Path, *, as_json: bool, old: str | None = None) -> None:
    if as_json:
        facts = {"kid": key.kid, "tenant": key.tenant, "roles": list(key.roles), "file": str(path)}
        print_shown(facts if old is None else {**facts, "from": old})
        return
    typer.echo(f"{key.kid} may sign for tenant {sanitize(key.tenant)} as {', '.join(key.roles)}, for 90 days")
    typer.echo(f"its private half is in {sanitize(str(path))}, and nowhere else")
    if old is not None:
        typer.echo(f"{old} stays valid: when it is not used any longer, `dragoman keys revoke {old}`")
