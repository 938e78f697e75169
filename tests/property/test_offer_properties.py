"""URI templates under any values: what was put into a URI comes out of it."""

from __future__ import annotations

from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from dragoman.offers.template import UriTemplate

VALUES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=50)


@given(VALUES, VALUES, VALUES)
def test_what_a_client_puts_into_a_uri_comes_out_of_it(owner: str, path: str, version: str) -> None:
    template = UriTemplate("note://{owner}/{+path}?v={version}")
    uri = f"note://{quote(owner, safe='')}/{quote(path, safe='/')}?v={quote(version, safe='')}"
    assert template.values_in(uri) == {"owner": owner, "path": path, "version": version}


@given(st.text(max_size=100))
def test_no_text_is_too_odd_to_be_a_template_or_refused(text: str) -> None:
    try:
        template = UriTemplate(f"x:{text}")
    except ValueError:
        return
    values = template.values_in(f"x:{text}")
    assert values == {} if not template.names else values is None or set(values) == set(template.names)
