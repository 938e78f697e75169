"""Content is what its type says, or is refused, however it is cut into pieces."""

from __future__ import annotations

from collections.abc import AsyncIterator
from io import BytesIO
from zipfile import ZipFile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import InvalidArgument, MalformedEnvelope
from dragoman.gateway.contents import check_whole, checked, mime_type_of
from dragoman.gateway.settings import GatewayConfig

ALLOWED = ("text/plain", "application/json")


async def in_pieces(content: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


async def passed(content: bytes, mime: str, size: int = 1, most_bytes: int = 10**6) -> bytes:
    return b"".join([piece async for piece in checked(in_pieces(content, size), mime, most_bytes)])


def zipped() -> bytes:
    made = BytesIO()
    with ZipFile(made, "w") as archive:
        archive.writestr("a.txt", "a")
    return made.getvalue()


@pytest.mark.requirement("MC-ART-03")
@pytest.mark.parametrize(
    ("header", "mime"),
    [
        (b"text/plain", "text/plain"),
        (b"Text/Plain; charset=UTF-8", "text/plain"),
        (b'application/json ;charset="utf-8"', "application/json"),
    ],
)
def test_an_allowed_type_is_understood(header: bytes, mime: str) -> None:
    assert mime_type_of(header, ALLOWED) == mime


@pytest.mark.requirement("MC-ART-03")
@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"text/html",
        b"text/plain, text/html",
        b"text/*",
        b"application/zip",
        b"text/plain; charset=utf-16",
        b"text/plain; charset=utf-8; charset=latin-1",
        b"text/plain; boundary=x",
        b"text/plain;",
        b"\xff/plain",
    ],
)
def test_any_other_type_is_refused(header: bytes) -> None:
    with pytest.raises(MalformedEnvelope, match="Content-Type"):
        mime_type_of(header, ALLOWED)


@pytest.mark.requirement("MC-ART-03")
@pytest.mark.parametrize(
    "content",
    [
        b"caf\xe9",
        b"\xc3",
        b"\xed\xa0\x80",
        b"\xc0\x80",
        b"a\0b",
        "text".encode("utf-16"),
        zipped(),
        b"\x1f\x8b\x08\x00",
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_text_that_is_none_is_refused(content: bytes, size: int) -> None:
    with pytest.raises(InvalidArgument):
        await passed(content, "text/plain", size)


@given(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0")), st.integers(1, 9))
async def test_text_passes_however_it_is_cut(text: str, size: int) -> None:
    assert await passed(text.encode(), "text/markdown", size) == text.encode()


async def test_one_byte_more_than_allowed_is_refused() -> None:
    assert await passed(b"12345", "text/plain", most_bytes=5) == b"12345"
    with pytest.raises(MalformedEnvelope, match="at most 5 bytes") as refused:
        await passed(b"123456", "text/plain", most_bytes=5)
    assert refused.value.details == {"path": "", "reason": "artifact_too_large", "limit": 5}


@pytest.mark.parametrize("content", [b"{}", b' [1, "\xc3\xa4", null] ', b"1", b'"\\u00e4"', b"[" * 500 + b"]" * 500])
def test_json_is_accepted_whatever_it_holds(content: bytes) -> None:
    check_whole("application/json", memoryview(content))
    check_whole("application/problem+json", memoryview(content))


@pytest.mark.requirement("MC-ART-03")
@pytest.mark.parametrize(
    "content", [b"", b"{", b"{}{}", b"[1,]", b"NaN", b"{'a': 1}", b"\xef\xbb\xbf{}", b"[" * 100_000, zipped()]
)
@pytest.mark.parametrize("mime", ["application/json", "application/problem+json"])
def test_json_that_does_not_parse_is_refused(content: bytes, mime: str) -> None:
    with pytest.raises(InvalidArgument, match="not JSON"):
        check_whole(mime, memoryview(content))


def test_content_of_other_types_is_not_looked_at() -> None:
    check_whole("application/pdf", memoryview(b"{"))


@pytest.mark.parametrize("mime", ["", "text", "text/", "/plain", "Text/plain", "text/plain; charset=utf-8", "text/*"])
def test_the_setting_takes_nothing_that_is_no_type(mime: str) -> None:
    assert [name for name, _ in GatewayConfig(mime_types=(mime,)).conflicts()] == ["mime_types"]


@pytest.mark.requirement("MC-ART-02")
@pytest.mark.parametrize(
    "url",
    [
        "s3://acme-agent-data-uploads-prod",
        "gs://acme-eu-agent-data-large-uploads-dev",
        "s3://acme-agent-data-uploads-prod/artifacts/of-mine",
    ],
)
def test_a_bucket_with_a_name_by_the_rule_is_accepted(url: str) -> None:
    assert [*GatewayConfig(artifact_store=url).conflicts()] == []


@pytest.mark.requirement("MC-ART-02")
@pytest.mark.parametrize(
    "url",
    [
        "acme-agent-data-uploads-prod",
        "s3://acme-uploads-prod",
        "s3://acme-agent-data-prod",
        "s3://-agent-data-uploads-prod",
        "s3://acme-agent-data-uploads-",
        "s3://Acme-agent-data-uploads-prod",
        "s3://acme_agent-data-uploads-prod",
        f"s3://acme-agent-data-{'x' * 60}-prod",
        "https://acme-agent-data-uploads-prod",
        "s3://acme-agent-data-uploads-prod/../other",
        "s3://acme-agent-data-uploads-prod/a?b",
        "s3://key:secret@acme-agent-data-uploads-prod",
        "s3://acme-agent-data-uploads-prod\n",
    ],
)
def test_any_other_bucket_is_refused(url: str) -> None:
    assert [name for name, _ in GatewayConfig(artifact_store=url).conflicts()] == ["artifact_store"]
