"""The page of a document: its text, under a policy that lets nothing in it run."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from html import escape
from itertools import count
from typing import Final

from dragoman.access.callers import Caller
from dragoman.errors import StorageError, ToolError
from dragoman.gateway.credentials import verified_part
from dragoman.knowledge.changing import PAGES
from dragoman.knowledge.port import Document, Documents
from dragoman.knowledge.standing import has_tenant, roles_of, tenant_of
from dragoman.parts.route import HttpRequest, HttpResponse
from dragoman.parts.streaming import StreamedResponse

_HEADERS: Final = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-security-policy", b"sandbox; default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)
_LONGEST_LINE: Final = 4_096
"""Characters of a title, or of tags, that are shown: those of earlier versions have no limit."""
_BEFORE: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }}
body {{ max-width: 48rem; margin: 2rem auto; padding: 0 1rem }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere }}
p {{ opacity: .75 }}
</style>
<h1>{title}</h1>
<p>{about}</p>
<pre>"""
_AFTER: Final = b"</pre>\n</html>\n"


async def document_page(
    request: HttpRequest,
    caller: Caller,
    documents: Documents,
    headers: tuple[tuple[bytes, bytes], ...] = (),
    kid: str | None = None,
) -> HttpResponse | StreamedResponse:
    """The page that a document's `web_uri` leads to, for callers of its tenant that have a role there.

    Its text is read, and escaped, piece by piece as the client reads it. `headers` are sent with it. `kid`
    is the key that the caller has signed with.
    """
    # Decoded already. A tenant's name may have a slash in it.
    tenant, _, id = request.path.removeprefix(f"{PAGES}/").rpartition("/")
    headers, key = (*_HEADERS, *headers), verified_part(caller, kid)
    try:
        if not (has_tenant(caller) and roles_of(caller)):
            return _notice(404, headers, "Not found", "There is no such document.")
        found = await documents.outline(tenant_of(caller, tenant), id.lower(), key=key)
    except ToolError:
        found = None
    except StorageError:
        return _notice(503, headers, "Not available", "The document cannot be read at the moment.")
    if found is None or not found.document.is_human_readable:
        return _notice(404, headers, "Not found", "There is no such document.")
    return StreamedResponse(200, partial(_page_of, found.document, documents, key), headers)


async def _page_of(document: Document, documents: Documents, key: str) -> AsyncGenerator[bytes, None]:
    about = f"Revision {document.revision}" + (f" · {', '.join(document.tags)}" if document.tags else "")
    head = _begin(document.title, about)
    for at in count():
        piece = await documents.piece(document.tenant, document.id, document.revision, at, key=key)
        yield head + escape(piece).encode(errors="replace")
        if not piece:
            break
        head = b""
    yield _AFTER


def _notice(status: int, headers: tuple[tuple[bytes, bytes], ...], title: str, text: str) -> HttpResponse:
    return HttpResponse(status, _begin(title, "") + escape(text).encode() + _AFTER, headers)


def _begin(title: str, about: str) -> bytes:
    title, about = (escape(each[:_LONGEST_LINE]) for each in (title, about))
    return _BEFORE.format(title=title, about=about).encode(errors="replace")
