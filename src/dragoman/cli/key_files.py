"""The private halves of signing keys: made here, and kept in files that only their owner can read."""

from __future__ import annotations

import os
import secrets
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from dragoman.cli.output import complain, refuse
from dragoman.files import create_file, read_regular_file, refuse_links
from dragoman.process.exit_codes import FAILED
from dragoman.telemetry.clean import sanitize

FOLDER = "keys"
"""In the data directory."""
_MOST_BYTES = 16_384


class PrivateKey(Struct, frozen=True, kw_only=True):
    """A JSON Web Key of Ed25519 with its private half, and what it was made for."""

    kty: Literal["OKP"] = "OKP"
    crv: Literal["Ed25519"] = "Ed25519"
    x: str
    d: str
    kid: str
    tenant: str

    def __repr__(self) -> str:
        return f"<PrivateKey {self.kid}>"  # Whatever prints it prints no secret.


def make_key(tenant: str) -> PrivateKey:
    """A new key with a random name."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.generate()
    return PrivateKey(
        x=_encoded(private.public_key().public_bytes_raw()),
        d=_encoded(private.private_bytes_raw()),
        kid=f"dk-{secrets.token_hex(8)}",
        tenant=tenant,
    )


def _encoded(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def write_key(key: PrivateKey, out: Path | None, folder: Path) -> Path:
    """Write a key to a new file, and return its path; or end the command. `folder` is the data directory."""
    if out == Path("-"):
        refuse("a private key is not written to stdout: --out has to name a new file")
    path = out or folder / FOLDER / f"{key.kid}.json"
    try:
        if out is None:
            for each in (folder, path.parent):
                each.mkdir(mode=0o700, parents=True, exist_ok=True)
            refuse_links(Path(FOLDER, path.name), folder)
        descriptor = create_file(path)
    except FileExistsError:
        refuse(f"{sanitize(str(path))} is there already, and keys are written to new files alone", code=FAILED)
    except (OSError, ValueError) as error:
        refuse(f"the key cannot be written: {sanitize(str(error))}", code=FAILED)
    try:
        with open(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(key), indent=2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        path.unlink(missing_ok=True)
        refuse(f"the key cannot be written: {sanitize(str(error))}", code=FAILED)
    return path


def read_key(path: Path) -> PrivateKey:
    """The key in a file; or the end of the command."""
    said = sanitize(str(path))
    try:
        content = read_regular_file(path, _MOST_BYTES)
    except (OSError, ValueError) as error:
        refuse(f"the key cannot be read: {sanitize(str(error))}")
    if content is None:
        refuse(f"there is no file {said}")
    try:
        key = msgspec.json.decode(content, type=PrivateKey)
    except (msgspec.MsgspecError, UnicodeError):
        refuse(f"{said} is no key that `dragoman keys generate` has made")
    if os.name == "posix" and path.stat().st_mode & 0o077:
        complain(f"others than the owner can read {said}: chmod 600, or rotate the key")
    return key
