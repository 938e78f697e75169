"""Responses of the explorer: never stored, never shown in another page, and nothing in them runs."""

from __future__ import annotations

from typing import Any

from dragoman.edge.asgi import JSON, Header
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


def json_response(value: Any, status: int = 200) -> HttpResponse:
    """A value as JSON."""
    return HttpResponse(status, encode_json(value), DATA)


def error_response(status: int, message: str) -> HttpResponse:
    """An error, in the one form that all of them have."""
    return json_response({"error": message}, status)
