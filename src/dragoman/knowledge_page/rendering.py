"""Documents as HTML for a frame of their own, in which nothing runs and nothing is loaded.

1. HTML in a document is text. A link leads to http, https, mailto, a heading of the same document, or a document of the
   same tree; another one is shown without being a link. Pictures are shown by their descriptions.
2. The work is bounded: what is too long, or too costly to parse, is shown as plain text, and not all of it.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import MutableMapping
from functools import cache
from hashlib import sha256
from html import escape
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

import msgspec

from dragoman.knowledge.changing import PAGES
from dragoman.knowledge_page.work import Work

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_core import StateCore
    from markdown_it.token import Token

MOST_MARKDOWN: Final = 131_072
"""Characters of Markdown that are parsed; more are shown as text."""
MOST_LINES: Final = 8_000
"""Lines of them. A parser may look at each line once for each level of nesting."""
MOST_STEPS: Final = 40_000
"""Positions that the parser tries its rules at."""
MOST_SHOWN: Final = 262_144
"""Characters of text that are shown."""
PAGE_MARK: Final = "dragoman-page:"
"""What links within the tree begin with. The page, which knows its own address, puts that in its place."""

_DEEPEST_JSON: Final = 32
_DEEPEST_MARKDOWN: Final = 20
_SCHEMES: Final = re.compile(r"(?:https?://|mailto:)[^\s<>\"'`]+", re.IGNORECASE)
_UUID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_DOCUMENT: Final = re.compile(rf"(?:{PAGES}/(?P<tenant>[^/]+)/)?(?P<id>{_UUID})", re.IGNORECASE)
_HEADING: Final = re.compile(r"#[\w.~%-]+")
_TOLD_APART: Final = {code: f"[U+{code:04X}]" for code in (*range(0x202A, 0x202F), 0)}
"""Characters that turn the order of others around, and one that HTML cannot have."""
_STYLE: Final = """
:root { color-scheme: light dark; } .light { color-scheme: light; } .dark { color-scheme: dark; }
:root { --ink: light-dark(#1c1f23, #e9e7e2); --soft: light-dark(#5a5e66, #a5aab3);
  --line: light-dark(#e3e0d8, #2d3139); --sunk: light-dark(#f6f5f1, #131519); --accent: light-dark(#0b6b63, #56d3c7); }
body { margin: 0; background: light-dark(#ffffff, #1a1d22); color: var(--ink); overflow-wrap: anywhere;
  font: 16px/1.65 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { max-width: 46rem; padding: 1.5rem 2rem 4rem; }
main > :first-child { margin-top: 0; }
h1, h2, h3, h4, h5, h6 { line-height: 1.3; margin: 2em 0 .6em; letter-spacing: -.01em; }
h1 { font-size: 1.65rem; } h2 { font-size: 1.3rem; padding-bottom: .3em; border-bottom: 1px solid var(--line); }
h3 { font-size: 1.1rem; } h4, h5, h6 { font-size: 1rem; }
p, ul, ol, pre, table, blockquote { margin: 0 0 1em; } li > ul, li > ol { margin: 0; } li { margin: .2em 0; }
a { color: var(--accent); text-underline-offset: .15em; }
code, pre { font: .875em/1.6 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
code { background: var(--sunk); border-radius: 4px; padding: .12em .35em; }
pre { background: var(--sunk); border: 1px solid var(--line); border-radius: 9px; padding: .8rem 1rem; overflow: auto;
  white-space: pre-wrap; } pre code { padding: 0; background: none; font-size: 1em; }
blockquote { border-left: 3px solid var(--line); padding-left: 1rem; color: var(--soft); }
table { border-collapse: collapse; display: block; overflow: auto; max-width: 100%; }
th, td { text-align: start; padding: .4em .9em .4em 0; border-bottom: 1px solid var(--line); vertical-align: top; }
hr { border: 0; border-top: 1px solid var(--line); margin: 2em 0; }
.note { background: var(--sunk); border: 1px solid var(--line); border-radius: 9px; padding: .6rem .9rem; }
.note, .off, .image { color: var(--soft); } .off { text-decoration: underline dotted; } .image { font-style: italic; }
.text { background: none; border: 0; padding: 0; }
@media (max-width: 760px) { main { padding: 1.1rem 1rem 3rem; } }
"""
STYLE_HASH: Final = f"'sha256-{b64encode(sha256(_STYLE.encode()).digest()).decode()}'"
_POLICY: Final = f"default-src 'none'; style-src {STYLE_HASH}"
POLICY: Final = f"sandbox; {_POLICY}; frame-ancestors 'self'; base-uri 'none'; form-action 'none'"
"""For whoever opens the address of a rendered document itself. In the frame, the document brings a policy along."""
_FRAME: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="content-security-policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>{style}</style>
<main dir="auto">
{note}{body}
</main>
</html>
"""


class TooCostly(Exception):
    """The parser has taken more steps than it may, or gone deeper."""


def render(tenant: str, title: str, mime_type: str, body: str, work: Work | None = None, *, length: int = 0) -> str:
    """A document of a tenant as a page of HTML. It takes its time: run it in a thread.

    Of a text that has more, `length` characters in all, the body may be the first `MOST_SHOWN`. Raises `Aborted` if
    nobody waits for it any longer.
    """
    shown, note, work = None, "", work or Work(MOST_STEPS)
    if mime_type == "text/markdown":
        shown = _markdown(tenant, title, body, work)
        note = "" if shown is not None else "This document is too long, or too complex, to be laid out. "
    if shown is None:
        text = _indented(body) if mime_type == "application/json" else body
        if (length := max(length, len(text))) > MOST_SHOWN:
            note += f"The first {MOST_SHOWN:,} of {length:,} characters are shown."
        shown = f'<pre class="text">{escape(visible(text[:MOST_SHOWN]))}</pre>'
    note = f'<p class="note">{note.strip()}</p>' if note else ""
    title = escape(visible(title))
    return _FRAME.format(policy=escape(_POLICY), title=title, style=_STYLE, note=note, body=shown)


def visible(text: str) -> str:
    """A text in which characters are named that would show others in another order."""
    return text.translate(_TOLD_APART)


def anchor_of(heading: str) -> str:
    """The id of a heading, by which links within a document find it."""
    kept = re.sub(r"[^\w\s-]", "", heading[:200]).strip().lower()
    return re.sub(r"\s+", "-", kept)


def _indented(body: str) -> str:
    """JSON with a line for each value, unless it is so deeply nested that this would be far longer."""
    depth = deepest = 0
    if len(body) > MOST_MARKDOWN:
        return body
    for character in body:
        depth += (character in "[{") - (character in "]}")
        deepest = max(deepest, depth)
    try:
        return body if deepest > _DEEPEST_JSON else msgspec.json.format(body, indent=2)
    except msgspec.DecodeError:
        return body


def _markdown(tenant: str, title: str, body: str, work: Work) -> str | None:
    """None for what would take too long."""
    if len(body) > MOST_MARKDOWN or body.count("\n") > MOST_LINES:
        return None
    try:
        return str(_parser().render(visible(body), {"tenant": tenant, "title": title, "work": work}))
    except (TooCostly, RecursionError):
        return None


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt  # Most servers never show a document.

    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": _DEEPEST_MARKDOWN}).enable(
        ["table", "strikethrough"]
    )
    parser.validateLink = lambda url: True  # type: ignore[method-assign]  # `_check` decides, and keeps the words.
    parser.block.ruler.before("table", "spend", _spend_block)
    parser.inline.ruler.before("text", "spend", _spend_inline)
    parser.core.ruler.push("check", _check)
    parser.add_render_rule("image", _image)
    return parser


def _spend(env: MutableMapping[str, Any]) -> bool:
    if not env["work"].spend():
        raise TooCostly
    return False


def _spend_block(state: Any, start: int, end: int, silent: bool) -> bool:
    if state.level >= _DEEPEST_MARKDOWN - 2:
        raise TooCostly  # The parser would leave out what is deeper; an item of a list is two levels down.
    return _spend(state.env)


def _spend_inline(state: Any, silent: bool) -> bool:
    return _spend(state.env)


def _check(state: StateCore) -> None:
    """Give headings their ids, and let links lead where they may. A title at the top is shown by the page already."""
    if state.tokens[:1] and state.tokens[0].tag == "h1" and state.tokens[1].content == state.env["title"]:
        del state.tokens[:3]
    for number, token in enumerate(state.tokens):
        if token.type == "heading_open":
            token.attrSet("id", anchor_of(state.tokens[number + 1].content))
        if token.nesting == 1 and token.tag not in ("tr", "thead", "tbody", "table"):
            token.attrSet("dir", "auto")
        tags: list[str] = []
        for child in token.children or ():
            if child.type == "link_open":
                _check_link(child, state.env["tenant"])
                tags.append(child.tag)
            elif child.type == "link_close":
                child.tag = tags.pop()


def _check_link(token: Token, tenant: str) -> None:
    href = str(token.attrs.get("href", ""))
    if _HEADING.fullmatch(href):
        token.attrs = {"href": href}
    elif _SCHEMES.fullmatch(href):
        token.attrs = {"href": href, "target": "_blank", "rel": "noopener noreferrer"}
    elif (found := _DOCUMENT.fullmatch(href)) and found["tenant"] in (None, tenant, quote(tenant, safe="")):
        place = urlencode({"tenant": tenant, "document": found["id"].lower()})
        token.attrs = {"href": f"{PAGE_MARK}#{place}", "target": "_top"}
    else:
        token.tag, token.attrs = "span", {"class": "off", "title": href[:500]}


def _image(renderer: Any, tokens: list[Token], number: int, options: Any, env: Any) -> str:
    return f'<span class="image">[Picture: {escape(tokens[number].content or "without a description")}]</span>'
