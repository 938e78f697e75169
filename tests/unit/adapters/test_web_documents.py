"""Documents of the disk, and locations that lead nowhere. Those of the web are fetched from a real server elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.adapters.web_documents import MOST_BYTES, WebDocuments
from dragoman.errors import VerifierUnavailable


async def test_a_location_that_is_no_url_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(b"x" * MOST_BYTES)
    assert await WebDocuments().get(str(file)) == b"x" * MOST_BYTES
    file.write_bytes(b"x" * (MOST_BYTES + 1))
    with pytest.raises(VerifierUnavailable, match=f"more than {MOST_BYTES} bytes"):
        await WebDocuments().get(str(file))


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("/no/such/file", "cannot be read: FileNotFoundError"),
        ("/", "cannot be read: IsADirectoryError"),
        ("a\0b", "cannot be read: ValueError"),
        ("http://issuer.example/keys", "neither https nor on this machine"),
        ("ftp://127.0.0.1/keys", "neither https nor on this machine"),
        ("file:///etc/passwd", "neither https nor on this machine"),
        ("https://", "neither https nor on this machine"),
        ("http://127.0.0.1:1/", "cannot be fetched: ConnectError"),
        ("http://127.0.0.1:99999/", "neither https nor on this machine"),
        ("https://no-such-host.invalid/", "cannot be fetched|did not answer"),
    ],
)
async def test_what_cannot_be_had_is_an_error_that_says_why(location: str, reason: str) -> None:
    with pytest.raises(VerifierUnavailable, match=reason):
        await WebDocuments().get(location)
