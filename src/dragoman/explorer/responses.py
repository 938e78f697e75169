"""Responses of the explorer: never stored, never shown in another page, and nothing in them runs."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any

from dragoman.edge.asgi import JSON, Header
from dragoman.errors import StorageError, StorageUncertain
from dragoman.parts.route import HttpResponse
from dragoman.tools.content import encode_json

HARDENED: tuple[Header, ...] = (
    (b"cache-control", b"no-store"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)
DATA: tuple[Header, ...] = (JSON, (b"content-security-policy", b"default-src 'none'"), *HARDENED)


def json_response(value: Any, status: int = 200, *more: Header) -> HttpResponse:
    """A value as JSON, with more headers than all have."""
    return HttpResponse(status, encode_json(value), (*DATA, *more))


def error_response(status: int, message: str, *more: Header) -> HttpResponse:
    """An error, in the one form that all of them have."""
    return json_response({"error": message}, status, *more)


def unusable(what: str, error: StorageError) -> HttpResponse:
    """The answer while something that is stored cannot be used."""
    if isinstance(error, StorageUncertain):
        return error_response(500, "The storage failed, and whether the change was stored is unknown: look again")
    return error_response(503, f"The {what} cannot be used now")


def load_page(path: Path, rules: str, styles: str = "") -> tuple[bytes, tuple[Header, ...]]:
    """A page, and the headers that let its own script and style run, and no others.

    `rules` say what else it may load; `styles` are the hashes of those that documents in its frames have.
    """
    page = path.read_bytes()
    policy = (
        f"default-src 'none'; script-src {_hashes(page, b'script')}; style-src {_hashes(page, b'style')}{styles}; "
        f"{rules}; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    kind = (b"content-type", b"text/html; charset=utf-8")
    return page, (kind, (b"content-security-policy", policy.encode()), *HARDENED)


def _hashes(page: bytes, element: bytes) -> str:
    contents = re.findall(rb"<%b>(.*?)</%b>" % (element, element), page, re.DOTALL)
    return " ".join(f"'sha256-{b64encode(sha256(content).digest()).decode()}'" for content in contents)
