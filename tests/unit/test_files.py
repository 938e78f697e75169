"""Files that are created as new ones, and links that are not followed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dragoman.files import create_file, open_or_create_file, read_regular_file, refuse_links


@pytest.mark.parametrize("leads_to", ["there", "gone"])
def test_a_file_is_never_created_through_a_link(tmp_path: Path, leads_to: str) -> None:
    (tmp_path / "there").write_text("before")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / leads_to)
    with pytest.raises(FileExistsError):
        create_file(link)
    with pytest.raises(OSError, match="symbolic links"):
        open_or_create_file(link)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "there"]
    assert (tmp_path / "there").read_text() == "before"


@pytest.mark.parametrize("create", [create_file, open_or_create_file])
def test_a_new_file_is_for_its_user_alone(tmp_path: Path, create: type) -> None:
    path = tmp_path / "new"
    os.close(create(path))
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_processes_share_is_opened_by_each_of_them(tmp_path: Path) -> None:
    for _ in range(2):
        descriptor = open_or_create_file(tmp_path / "shared")
        assert os.get_inheritable(descriptor) is False
        os.close(descriptor)


def test_a_link_anywhere_in_a_path_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "linked").symlink_to("real")
    refuse_links(Path("real/new/file"), tmp_path)
    for path in ("linked", "linked/new", "linked/../real"):
        with pytest.raises(OSError, match="linked is a link"):
            refuse_links(Path(path), tmp_path)


def test_only_regular_files_of_a_reasonable_size_are_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert read_regular_file(path, 5) is None
    assert read_regular_file(path / "below", 5) is None
    path.write_bytes(b"12345")
    assert read_regular_file(path, 5) == b"12345"
    assert read_regular_file(path / "below", 5) is None
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_regular_file(path, 4)
    os.mkfifo(tmp_path / "pipe")
    for endless in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(OSError, match="not a regular file"):
            read_regular_file(endless, 5)
