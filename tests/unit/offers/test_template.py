"""URI templates: what they take, and what they make of a URI."""

from __future__ import annotations

import pytest

from dragoman.offers.template import LONGEST_URI, UriTemplate


@pytest.mark.parametrize(
    ("template", "uri", "values"),
    [
        ("config://app", "config://app", {}),
        ("note://{owner}/{id}", "note://ada/7", {"owner": "ada", "id": "7"}),
        ("note://{owner}/{id}", "note://a%20b/%C3%A9%2F", {"owner": "a b", "id": "é/"}),
        ("note://{owner}/{id}", "note://ünï/7", {"owner": "ünï", "id": "7"}),
        ("db://{table}/rows/{row}", "db://rows/rows/rows", {"table": "rows", "row": "rows"}),
        ("file:///{+path}", "file:///a/b/c.txt", {"path": "a/b/c.txt"}),
        ("file:///{+path}/raw", "file:///a/raw/raw", {"path": "a/raw"}),
        ("file:///{+path}?v={version}", "file:///a/b?v=2", {"path": "a/b", "version": "2"}),
        ("img:{name}.{ext}", "img:a.tar.gz", {"name": "a", "ext": "tar.gz"}),
        ("x:[{a}]", "x:[1]", {"a": "1"}),
        ("x:{a}^{b}-{c}", "x:1^2-3", {"a": "1", "b": "2", "c": "3"}),
    ],
)
def test_a_uri_that_fits_gives_its_values_decoded(template: str, uri: str, values: dict[str, str]) -> None:
    assert UriTemplate(template).values_in(uri) == values


@pytest.mark.parametrize(
    ("template", "uri"),
    [
        ("config://app", "config://app/"),
        ("config://app", "CONFIG://app"),
        ("note://{owner}/{id}", "note://ada"),
        ("note://{owner}/{id}", "note:///7"),
        ("note://{owner}/{id}", "note://ada/7/8"),
        ("note://{owner}/{id}", "note://ada/7?x"),
        ("note://{owner}/{id}", "note://ada/7#x"),
        ("note://{owner}/{id}", "note://ada/%FF"),
        ("note://{owner}/{id}", "xnote://ada/7"),
        ("file:///{+path}", "file:///"),
        ("x:a.c", "x:abc"),
        ("x:{a}-b", "x:1-2-b"),
        ("note://{owner}/{id}", ""),
    ],
)
def test_a_uri_that_does_not_fit_gives_nothing(template: str, uri: str) -> None:
    assert UriTemplate(template).values_in(uri) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "scheme"),
        ("no-scheme", "scheme"),
        ("://x", "scheme"),
        ("1x:y", "scheme"),
        ("x:", "scheme"),
        ("x:a b", "scheme"),
        ("x:a\n", "scheme"),
        ("x:" + "a" * LONGEST_URI, "at most"),
        ("x:{", "written"),
        ("x:}", "written"),
        ("x:{}", "written"),
        ("x:{a", "written"),
        ("x:{1a}", "written"),
        ("x:{a,b}", "written"),
        ("x:{?a}", "written"),
        ("x:{a*}", "written"),
        ("x:{{a}}", "written"),
        ("x:{a}/{a}", "twice"),
        ("x:{a}{b}", "between"),
        ("x:{+a}/{+b}", "only one"),
        ("{scheme}:x", "scheme"),
    ],
)
def test_what_cannot_be_a_template_is_refused_with_a_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        UriTemplate(text)


def test_the_longest_uri_is_read_and_a_longer_one_is_not() -> None:
    template = UriTemplate("x:{a}")
    assert template.values_in("x:" + "a" * (LONGEST_URI - 2)) is not None
    assert template.values_in("x:" + "a" * (LONGEST_URI - 1)) is None
