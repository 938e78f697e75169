"""The page of a document: its text, under a policy that lets nothing in it run."""

from __future__ import annotations

from html import escape
from typing import Final

from dragoman.access.callers import Caller
from dragoman.errors import StorageError, ToolError
from dragoman.knowledge.changing import PAGES
from dragoman.knowledge.port import Documents
from dragoman.knowledge.standing import has_tenant, roles_of, tenant_of
from dragoman.parts.route import HttpRequest, HttpResponse

_HEADERS: Final = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-security-policy", b"sandbox; default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)
_PAGE: Final = """<!doctype html>
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
<pre>{body}</pre>
</html>
"""


async def document_page(request: HttpRequest, caller: Caller, documents: Documents) -> HttpResponse:
    """The page that a document's `web_uri` leads to, for callers of its tenant that have a role there."""
    # Decoded already. A tenant's name may have a slash in it.
    tenant, _, id = request.path.removeprefix(f"{PAGES}/").rpartition("/")
    try:
        if not (has_tenant(caller) and roles_of(caller)):
            return _page(404, "Not found", "", "There is no such document.")
        found = await documents.get(tenant_of(caller, tenant), id.lower())
    except ToolError:
        found = None
    except StorageError:
        return _page(503, "Not available", "", "The document cannot be read at the moment.")
    if found is None or not found.is_human_readable:
        return _page(404, "Not found", "", "There is no such document.")
    about = f"Revision {found.revision}" + (f" · {', '.join(found.tags)}" if found.tags else "")
    return _page(200, found.title, about, found.body)


def _page(status: int, title: str, about: str, body: str) -> HttpResponse:
    text = _PAGE.format(title=escape(title), about=escape(about), body=escape(body))
    return HttpResponse(status, text.encode(errors="replace"), _HEADERS)
