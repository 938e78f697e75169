"""The secret of a data directory. A client that brings it over HTTP is the directory's owner, `LOCAL`.

It is made when it is first needed, in a file that only its owner can read. Processes that make it at the same time get
the same one.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from dragoman.errors import ConfigError
from dragoman.files import create_file, read_regular_file, refuse_links

PLACE = Path("keys", "local")
"""In the data directory."""
_BYTES = 32
_LENGTH = 43
"""Of that many bytes as base64url."""


def find_local_secret(folder: Path) -> str:
    """The secret of a data directory, which is made if there is none. Raises `ConfigError`."""
    path = folder / PLACE
    try:
        refuse_links(PLACE, folder)
        content = read_regular_file(path, _LENGTH)
        if content is None:
            _make(path)
            content = read_regular_file(path, _LENGTH)
        if os.name == "posix" and path.stat().st_mode & 0o077:
            raise ValueError("others than its owner can read it; delete it, and another one is made")
        if content is None or len(content) != _LENGTH or not content.isascii():
            raise ValueError("it is not what the server has written; delete it, and another one is made")
    except (OSError, ValueError) as error:
        raise ConfigError([("storage.data_dir", f"the secret in {path} cannot be used: {error}")]) from None
    return content.decode()


def _make(path: Path) -> None:
    for folder in (path.parent.parent, path.parent):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"local-{secrets.token_hex(8)}")
    descriptor = create_file(draft)
    try:
        with open(descriptor, "wb") as file:
            file.write(secrets.token_urlsafe(_BYTES).encode())
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):  # Another process was first: its secret counts.
            os.link(draft, path)  # Whole, or not at all.
    finally:
        draft.unlink()
