"""A sealed state opens for what it was made for, and for nothing else, whatever is changed about it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.access.seal import BrokenSeal, Seal

KEY = "a secret of at least 32 characters"
SEAL = Seal(KEY, "server")
NOW = 1_700_000_000.0
bound = st.tuples(st.text(), st.text(), st.text(), st.text())


@given(content=st.binary(), bound_to=bound, ahead=st.floats(0.01, 1e9))
def test_what_is_sealed_can_be_opened_until_it_expires(content: bytes, bound_to: tuple[str, ...], ahead: float) -> None:
    sealed = SEAL.close(content, bound_to, NOW + ahead)
    assert SEAL.open(sealed, bound_to, NOW) == content
    assert Seal(KEY, "server").open(sealed, bound_to, NOW) == content
    assert sealed.isascii()
    with pytest.raises(BrokenSeal):
        SEAL.open(sealed, bound_to, NOW + ahead)


@given(content=st.binary(max_size=40), data=st.data())
def test_no_character_can_be_changed(content: bytes, data: st.DataObject) -> None:
    sealed = SEAL.close(content, ("ada",), NOW + 1)
    place = data.draw(st.integers(0, len(sealed) - 1))
    other = data.draw(st.characters().filter(lambda character: character != sealed[place]))
    with pytest.raises(BrokenSeal):
        SEAL.open(sealed[:place] + other + sealed[place + 1 :], ("ada",), NOW)


@pytest.mark.slow
@given(content=st.binary(max_size=40), data=st.data())
def test_nothing_can_be_added_or_left_out(content: bytes, data: st.DataObject) -> None:
    sealed = SEAL.close(content, ("ada",), NOW + 1)
    changed = data.draw(
        st.one_of(
            st.text(min_size=1).map(lambda more: sealed + more),
            st.text(min_size=1).map(lambda more: more + sealed),
            st.integers(0, len(sealed) - 1).map(lambda most: sealed[:most]),
        )
    )
    with pytest.raises(BrokenSeal):
        SEAL.open(changed, ("ada",), NOW)


@given(bound_to=bound, other=bound)
def test_it_opens_for_nobody_and_nothing_else(bound_to: tuple[str, ...], other: tuple[str, ...]) -> None:
    sealed = SEAL.close(b"content", bound_to, NOW + 1)
    for elsewhere in (other, bound_to[1:], (*bound_to, ""), ("".join(bound_to),)):
        if elsewhere != bound_to:
            with pytest.raises(BrokenSeal):
                SEAL.open(sealed, elsewhere, NOW)


@given(key=st.none() | st.text(min_size=32), audience=st.text())
def test_it_opens_with_no_other_key_and_at_no_other_server(key: str | None, audience: str) -> None:
    sealed = SEAL.close(b"content", ("ada",), NOW + 1)
    if (key, audience) != (KEY, "server"):
        with pytest.raises(BrokenSeal):
            Seal(key, audience).open(sealed, ("ada",), NOW)


@given(text=st.text())
def test_nothing_that_was_not_sealed_opens(text: str) -> None:
    with pytest.raises(BrokenSeal):
        SEAL.open(text, (), NOW)
