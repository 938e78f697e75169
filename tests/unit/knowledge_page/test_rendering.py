"""Documents as HTML: nothing in them runs, nothing is loaded, and none of them takes long."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.knowledge_page import rendering
from dragoman.knowledge_page.rendering import MOST_MARKDOWN, MOST_SHOWN, PAGE_MARK, anchor_of, render, visible

ID = "6d1a2f5e-0c55-4a2b-9a57-3f0a8a3c1d01"
MARKDOWN, TEXT, JSON = "text/markdown", "text/plain", "application/json"
ELEMENTS = re.compile(
    "html|meta|title|style|main|p|pre|code|span|a|em|strong|s|h[1-6]|[uo]l|li|blockquote|t[rhd]|[hb]r"
)
TABLES = {"table", "thead", "tbody"}
ATTRIBUTES = re.compile("lang|charset|http-equiv|content|name|dir|class|title|href|target|rel|id")
COSTLY = {
    "brackets": "[" * MOST_MARKDOWN,
    "pictures": "![" * (MOST_MARKDOWN // 2),
    "emphasis": "*a_ " * (MOST_MARKDOWN // 4),
    "links": "[[a](" * (MOST_MARKDOWN // 5),
    "cells": "|" + "a|" * 300 + "\n|" + "-|" * 300 + "\n" + "|\n" * (MOST_MARKDOWN // 3),
    "quotes": ">" * 20 + "a\n" + "b\n" * (MOST_MARKDOWN // 3),
}


class Elements(HTMLParser):
    """The elements of a page, and their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def shown(body: str, mime_type: str = MARKDOWN, title: str = "A title") -> str:
    """What stands in the page."""
    page = render("acme", title, mime_type, body)
    check(page)
    found = re.search(r'<main dir="auto">\n(.*)\n</main>', page, re.DOTALL)
    assert found is not None
    return found[1].strip()


def check(page: str) -> None:
    """Nothing in a page can run, load anything, or lead where it must not."""
    for tag, attributes in Elements(page).found:
        assert ELEMENTS.fullmatch(tag) or tag in TABLES, tag
        assert all(map(ATTRIBUTES.fullmatch, attributes)), attributes
        href = attributes.get("href")
        assert href is None or re.match(rf"https?://|mailto:|#|{PAGE_MARK}#", href, re.IGNORECASE), href


@pytest.mark.parametrize("mime_type", [MARKDOWN, TEXT, JSON])
def test_html_in_a_document_is_text(mime_type: str) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(1)></pre></main><style>*{display:none}</style><!--"
    text = shown(evil, mime_type)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "<script" not in text
    assert "<img" not in text
    assert "<style" not in text


def test_a_title_cannot_leave_its_place() -> None:
    page = render("acme", "</title><script>alert(1)</script>", MARKDOWN, "text")
    check(page)
    assert "<title>&lt;/title&gt;&lt;script&gt;alert(1)&lt;/script&gt;</title>" in page


@pytest.mark.parametrize(
    "target",
    [
        "javascript:alert(1)",
        "JaVaScRiPt:alert(1)",
        "java&#9;script:alert(1)",
        "&#x6A;avascript:alert(1)",
        "data:text/html,<script>alert(1)</script>",
        "vbscript:x",
        "file:///etc/passwd",
        "blob:http://x/y",
        "//evil.example/",
        "/explorer/",
        "setup.md",
        "../up",
        "http:evil",
        "dragoman-page:#x",
        f"/knowledge/documents/other/{ID}",
        f"/knowledge/documents/acme/{ID}/more",
    ],
)
def test_a_link_that_leads_elsewhere_is_shown_and_is_none(target: str) -> None:
    text = shown(f"[words](<{target}>)")
    assert "words" in text
    assert "<a" not in text
    text = shown(f"<{target}> and [words]\n\n[words]: <{target}>")
    assert "<a" not in text


def test_links_to_the_web_and_to_addresses_open_elsewhere() -> None:
    for target in ("https://example.org/a?b=c&d", "HTTP://example.org", "mailto:ada@example.org"):
        found = [attributes for tag, attributes in Elements(shown(f"[a](<{target}>)")).found if tag == "a"]
        assert found == [{"href": target, "target": "_blank", "rel": "noopener noreferrer"}]


def test_links_to_documents_of_the_tree_lead_to_the_page() -> None:
    own = {"href": f"{PAGE_MARK}#tenant=acme&document={ID}", "target": "_top"}
    for target in (ID, ID.upper(), f"/knowledge/documents/acme/{ID}"):
        assert Elements(shown(f"[a]({target})")).found == [("p", {"dir": "auto"}), ("a", own)]
    page = render("a/ü", "", MARKDOWN, f"[a](/knowledge/documents/a%2F%C3%BC/{ID})")
    assert f'href="{PAGE_MARK}#tenant=a%2F%C3%BC&amp;document={ID}"' in page


def test_links_to_headings_find_them() -> None:
    text = shown("# Set it up!\n\n[there](#set-it-up)")
    assert 'id="set-it-up"' in text
    assert '<a href="#set-it-up">there</a>' in text
    assert anchor_of(" Größe & Farbe  (2) ") == "größe-farbe-2"


def test_pictures_are_described_and_not_loaded() -> None:
    text = shown("![a <b> cat](https://evil.example/x.png) ![](x)")
    assert "[Picture: a &lt;b&gt; cat]" in text
    assert "[Picture: without a description]" in text
    assert "evil" not in text


def test_a_title_that_begins_the_text_is_not_shown_twice() -> None:
    assert shown("# A title\n\nwords") == '<p dir="auto">words</p>'
    assert "<h1" in shown("# Another title\n\nwords")
    assert "<h1" in shown("words\n\n# A title")


def test_markdown_is_laid_out() -> None:
    text = shown("## H\n\n- *a*\n- `b`\n\n> ~~c~~\n\n|x|y|\n|-|-|\n|1|2|\n\n```py\n<d>\n```")
    for each in (
        "<h2",
        "<li",
        "<em>a</em>",
        "<code>b</code>",
        "<s>c</s>",
        "<td",
        '<code class="language-py">&lt;d&gt;',
    ):
        assert each in text


def test_plain_text_stays_as_it_is_and_json_gets_lines() -> None:
    assert shown("# a\n  *b*", TEXT) == '<pre class="text"># a\n  *b*</pre>'
    assert shown('{"a":[1,"<"]}', JSON) == (
        '<pre class="text">{\n  &quot;a&quot;: [\n    1,\n    &quot;&lt;&quot;\n  ]\n}</pre>'
    )
    deep = "[" * 500 + "]" * 500
    assert shown(deep, JSON) == f'<pre class="text">{deep}</pre>'


@pytest.mark.parametrize("mime_type", [MARKDOWN, TEXT, JSON])
def test_characters_that_turn_others_around_are_named(mime_type: str) -> None:
    text = shown("a\N{RIGHT-TO-LEFT OVERRIDE}gnp.exe\0", mime_type)
    assert "a[U+202E]gnp.exe[U+0000]" in text
    hebrew = "שלום \N{RIGHT-TO-LEFT ISOLATE}א\N{POP DIRECTIONAL ISOLATE}"
    assert visible(hebrew) == hebrew


# The work is bounded.


@pytest.mark.parametrize("mime_type", [MARKDOWN, TEXT, JSON])
def test_a_megabyte_on_one_line_is_cut_and_the_reader_is_told(mime_type: str) -> None:
    text = shown("a" * 1_048_576, mime_type)
    assert len(text) < MOST_SHOWN + 500
    assert f"The first {MOST_SHOWN:,} of 1,048,576 characters are shown." in text


@pytest.mark.slow
@pytest.mark.parametrize("kind", COSTLY)
def test_markdown_that_costs_too_much_is_shown_as_text(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    spend = rendering._spend

    def count(env: Any) -> bool:
        counted.append(1)
        return spend(env)

    monkeypatch.setattr(rendering, "_spend", count)
    text = shown(COSTLY[kind])
    assert "too complex" in text
    assert '<pre class="text">' in text
    assert len(counted) <= rendering.MOST_STEPS + 1


def test_deep_nesting_does_not_end_the_parser() -> None:
    nested = (
        "> " * 5000 + "end",
        "- " * 5000 + "end",
        "*" * 5000 + "end" + "*" * 5000,
        "[" * 5000 + "end" + "](b)" * 5000,
    )
    for body in nested:
        assert "end" in shown(body)  # Nothing of it is left out.


@given(
    st.lists(st.sampled_from([*"ab[]()<>!*_`#|-:\n \"'&\\", "javascript:", "http://", "&#x", "<script>"])).map("".join)
)
def test_nothing_that_is_written_becomes_more_than_it_may(body: str) -> None:
    check(render("acme", body, MARKDOWN, body))
