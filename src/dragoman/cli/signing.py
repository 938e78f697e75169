"""`dragoman token`: signs one request to the gateway, for a person who tries it with curl."""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.ledger_access import note
from dragoman.cli.output import refuse
from dragoman.telemetry.clean import sanitize

_ACTIONS = "http://127.0.0.1:8000/mcp/actions"
_LONGEST_SUB = 256
_LONGEST_LIFE = 600


def token(
    key: Annotated[Path, typer.Option("--key", help="The file that `dragoman keys generate` has made.")],
    sub: Annotated[str, typer.Option("--sub", help="Who sends the request: the envelope's `principal.sub`.")],
    body: Annotated[
        str | None, typer.Option("--body", help="The file with the body, or - for stdin. Without it, an empty body.")
    ] = None,
    method: Annotated[str, typer.Option("--method", help="The method of the request.")] = "POST",
    url: Annotated[str, typer.Option("--url", help="The address of the request, as the client calls it.")] = _ACTIONS,
    audience: Annotated[str, typer.Option("--audience", help="The server's `gateway.audience`.")] = "dragoman",
    ttl: Annotated[int, typer.Option("--ttl", min=1, max=_LONGEST_LIFE, help="Seconds until it expires.")] = 60,
) -> None:
    """Print a token for one request, to be sent as `Authorization: Bearer TOKEN`.

    It is good once, for exactly this method, address and body: with curl, send the body with --data-binary, because
    --data drops line ends.
    """
    if find_spec("joserfc") is None:
        refuse("signing needs what the extra `http` brings: pip install 'dragoman[http]'")
    import hashlib
    import secrets

    from joserfc.errors import JoseError

    from dragoman.cli.key_files import read_key
    from dragoman.gateway.signatures import sign

    _check(sub, method, url)
    private = read_key(key)
    now = int(time.time())
    claims = {
        "sub": sub,
        "aud": audience,
        "iat": now,
        "exp": now + ttl,
        "nonce": secrets.token_hex(16),
        "htm": method.upper(),
        "htu": url,
        "body_sha256": hashlib.sha256(_read(body)).hexdigest(),
    }
    web_key = {"kty": private.kty, "crv": private.crv, "x": private.x, "d": private.d}
    try:
        signed = sign(claims, web_key, private.kid)
    except (JoseError, ValueError, TypeError):
        refuse(f"{sanitize(str(key))} holds no key of Ed25519")
    if body is None and method.upper() == "POST":
        note("the token is for an empty body; --body FILE signs another one")
    typer.echo(signed)


def _check(sub: str, method: str, url: str) -> None:
    from urllib.parse import urlsplit

    if not (0 < len(sub) <= _LONGEST_SUB and sub.isprintable()):
        refuse(f"--sub has to have 1 to {_LONGEST_SUB} printable characters")
    if not (method.isascii() and method.isalpha()):
        refuse("--method has to be the name of a method, such as POST")
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.netloc or not url.isprintable():
        refuse("--url has to begin with http:// or https:// and a host")
    if not parts.path or parts.query or parts.fragment or url.endswith(("?", "#")):
        refuse("--url has to have a path, and nothing behind it: neither ? nor #")


def _read(body: str | None) -> bytes:
    """The body that is signed; or the end of the command."""
    if body is None:
        return b""
    try:
        return sys.stdin.buffer.read() if body == "-" else Path(body).read_bytes()
    except (OSError, ValueError) as error:
        refuse(f"the body cannot be read: {sanitize(str(error))}")
