"""Images, sounds and files as content blocks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from dragoman import Audio, BlobResource, EmbeddedResource, Image, TextResource, tool
from dragoman.errors import NotFound, ResultTooLarge
from dragoman.testing import open_server

PNG = b"\x89PNG\r\n\x1a\n rest"
WAV = b"RIFF\x00\x00\x00\x00WAVEfmt "


@pytest.mark.parametrize(
    ("data", "mime_type"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\x00\x00\x00\x00WEBP", "image/webp"),
        (b"unknown", "image/png"),
        (b"", "image/png"),
    ],
)
def test_the_type_of_a_picture_is_found_in_its_first_bytes(data: bytes, mime_type: str) -> None:
    assert Image(data).mime_type == mime_type
    assert Image(data, "image/x-own").mime_type == "image/x-own"


@pytest.mark.parametrize(
    ("data", "mime_type"),
    [
        (WAV, "audio/wav"),
        (b"ID3\x03", "audio/mpeg"),
        (b"OggS", "audio/ogg"),
        (b"fLaC", "audio/flac"),
        (b"", "audio/wav"),
    ],
)
def test_the_type_of_a_sound_is_found_in_its_first_bytes(data: bytes, mime_type: str) -> None:
    assert Audio(data).mime_type == mime_type


def test_a_path_in_place_of_bytes_is_refused_with_the_alternative() -> None:
    with pytest.raises(TypeError, match=r"use from_file\(path\)"):
        Image("chart.png")  # type: ignore[arg-type]
    assert Image(memoryview(PNG)).mime_type == "image/png"  # type: ignore[arg-type]


def test_a_file_has_the_type_of_its_contents_else_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(PNG)
    (tmp_path / "b.SVG").write_bytes(b"<svg/>")
    (tmp_path / "c.m4a").write_bytes(b"sound")
    assert Image.from_file(tmp_path / "a.jpg") == Image(PNG, "image/png")
    assert Image.from_file(str(tmp_path / "b.SVG")) == Image(b"<svg/>", "image/svg+xml")
    assert Audio.from_file(tmp_path / "c.m4a") == Audio(b"sound", "audio/mp4")
    assert Audio.from_file(tmp_path / "a.jpg", mime_type="audio/own").mime_type == "audio/own"


def test_a_file_that_is_no_picture_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("text")
    with pytest.raises(ValueError, match=r"'notes.txt' is not of a known image format; pass mime_type"):
        Image.from_file(tmp_path / "notes.txt")


@pytest.mark.parametrize("kind", [Image, Audio, EmbeddedResource])
def test_a_file_is_not_read_when_it_is_missing_too_large_or_not_a_file(kind: Any, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"^There is no file 'gone.png'$"):
        kind.from_file(tmp_path / "gone.png")
    with pytest.raises(NotFound, match="is not a file"):
        kind.from_file(tmp_path)
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(NotFound, match=r"^'pipe.png' is not a file$"):
        kind.from_file(tmp_path / "pipe.png")
    with (tmp_path / "huge.png").open("wb") as file:
        file.truncate(1 << 40)  # A file with a hole: to read it would take a terabyte.
    with pytest.raises(ResultTooLarge) as refused:
        kind.from_file(tmp_path / "huge.png")
    assert (refused.value.details or {})["actual"] == 1 << 40
    (tmp_path / "three").write_bytes(b"abc")
    with pytest.raises(ResultTooLarge):
        kind.from_file(tmp_path / "three", max_bytes=2)


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="there is no file without a size")
def test_a_file_whose_size_is_not_known_before_is_read_up_to_the_limit() -> None:
    with pytest.raises(ResultTooLarge):
        EmbeddedResource.from_file("/proc/cpuinfo", max_bytes=3)


def test_a_file_is_embedded_as_text_or_as_bytes_without_its_folder(tmp_path: Path) -> None:
    (tmp_path / "a b.csv").write_text("ä,b")
    (tmp_path / "data.bin").write_bytes(b"\xff\x00")
    (tmp_path / "unnamed").write_bytes(b"\xff")
    text = EmbeddedResource.from_file(tmp_path / "a b.csv")
    assert text == EmbeddedResource(TextResource("file:///a%20b.csv", "ä,b", "text/csv"))
    blob = EmbeddedResource.from_file(tmp_path / "data.bin", uri="data://it")
    assert blob == EmbeddedResource(BlobResource("data://it", b"\xff\x00", "application/octet-stream"))
    assert EmbeddedResource.from_file(tmp_path / "unnamed").resource.mime_type == "application/octet-stream"


async def test_a_tool_may_return_a_file_and_a_missing_one_is_an_answer_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "chart.png").write_bytes(PNG)

    @tool
    def draw(name: str) -> Image:
        """Gives a picture."""
        return Image.from_file(tmp_path / name)

    async with open_server([draw]) as server:
        client = await server.client()
        (block,) = (await client.call_tool("draw", {"name": "chart.png"}))["content"]
        assert (block["type"], block["mimeType"]) == ("image", "image/png")
        missing = await client.call_tool("draw", {"name": "gone.png"})
        assert missing["isError"]
        assert "There is no file 'gone.png'" in missing["content"][0]["text"]
        assert str(tmp_path) not in missing["content"][0]["text"]
