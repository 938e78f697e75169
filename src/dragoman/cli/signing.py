"""`dragoman token`: signs one request to the gateway, for a person who tries it with curl."""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from dragoman.cli.ledger_access import note
from dragoman.cli.output import refuse
from dragoman.extras import install_command
from dragoman.telemetry.clean import sanitize

if TYPE_CHECKING:
    from dragoman.cli.key_files import PrivateKey

ACTIONS_URL = "http://127.0.0.1:8000/mcp/actions"
_LONGEST_SUB = 256
_LONGEST_LIFE = 600

KeyFile: TypeAlias = Annotated[Path, typer.Option("--key", help="The file that `dragoman keys generate` has made.")]
Audience: TypeAlias = Annotated[str, typer.Option("--audience", help="The server's `gateway.audience`.")]
SignedUrl: TypeAlias = Annotated[str, typer.Option("--url", help="The address of the request, as the client calls it.")]


def token(
    key: KeyFile,
    sub: Annotated[str, typer.Option("--sub", help="Who sends the request: the envelope's `principal.sub`.")],
    body: Annotated[
        str | None, typer.Option("--body", help="The file with the body, or - for stdin. Without it, an empty body.")
    ] = None,
    method: Annotated[str, typer.Option("--method", help="The method of the request.")] = "POST",
    url: SignedUrl = ACTIONS_URL,
    audience: Audience = "dragoman",
    ttl: Annotated[int, typer.Option("--ttl", min=1, max=_LONGEST_LIFE, help="Seconds until it expires.")] = 60,
) -> None:
    """Print a token for one request, to be sent as `Authorization: Bearer TOKEN`.

    It is good once, for exactly this method, address and body: with curl, send the body with --data-binary, because
    --data drops line ends.
    """
    if not (method.isascii() and method.isalpha()):
        refuse("--method has to be the name of a method, such as POST")
    check_url(url)
    signer = RequestSigner(key, audience)
    signed = signer.token(sub, b"" if body is None else read_body(body), method.upper(), url, ttl)
    if body is None and method.upper() == "POST":
        note("the token is for an empty body; --body FILE signs another one")
    typer.echo(signed)


class RequestSigner:
    """Signs requests with the key in a file; ends the command if it cannot."""

    def __init__(self, file: Path, audience: str) -> None:
        if find_spec("joserfc") is None:
            refuse(f"signing needs the extra `http`: {install_command('http')}")
        from dragoman.cli.key_files import read_key

        self.key: PrivateKey = read_key(file)
        self._file = file
        self._audience = audience

    def token(self, sub: str, body: bytes, method: str, url: str, ttl: int = 60) -> str:
        """A token for one request, valid for `ttl` seconds."""
        import hashlib
        import secrets

        from joserfc.errors import JoseError

        from dragoman.gateway.signatures import sign

        if not (0 < len(sub) <= _LONGEST_SUB and sub.isprintable()):
            refuse(f"--sub has to have 1 to {_LONGEST_SUB} printable characters")
        now = int(time.time())
        claims = {
            "sub": sub,
            "aud": self._audience,
            "iat": now,
            "exp": now + ttl,
            "nonce": secrets.token_hex(16),
            "htm": method,
            "htu": url,
            "body_sha256": hashlib.sha256(body).hexdigest(),
        }
        key = self.key
        try:
            return sign(claims, {"kty": key.kty, "crv": key.crv, "x": key.x, "d": key.d}, key.kid)
        except (JoseError, ValueError, TypeError):
            refuse(f"{sanitize(str(self._file))} holds no key of Ed25519")


def check_url(url: str) -> None:
    """End the command unless requests to this address can be signed."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.netloc or not url.isprintable():
        refuse("--url has to begin with http:// or https:// and a host")
    if not parts.path or parts.query or parts.fragment or url.endswith(("?", "#")):
        refuse("--url has to have a path, and nothing behind it: neither ? nor #")


def read_body(name: str) -> bytes:
    """The content of a file, or of stdin for `-`; or the end of the command."""
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except (OSError, ValueError) as error:
        refuse(f"the body cannot be read: {sanitize(str(error))}")
