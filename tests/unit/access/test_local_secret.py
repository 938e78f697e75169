"""The secret of a data directory: one for all processes, and for nobody else."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from dragoman.access.local_secret import PLACE, find_local_secret
from dragoman.access.settings import is_token
from dragoman.errors import ConfigError


def test_the_secret_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    found: list[str] = []
    together = threading.Barrier(4)

    def find() -> None:
        together.wait()
        found.append(find_local_secret(folder))

    threads = [threading.Thread(target=find) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(set(found)) == 1
    assert is_token(found[0])
    assert find_local_secret(folder) == found[0] != find_local_secret(tmp_path / "other")
    assert [*(folder / "keys").iterdir()] == [folder / PLACE], "no draft is left behind"
    modes = [path.stat().st_mode & 0o777 for path in (folder, folder / "keys", folder / PLACE)]
    assert modes == [0o700, 0o700, 0o600]


@pytest.mark.parametrize("spoil", ["readable", "link", "empty", "longer", "folder"])
def test_a_secret_that_may_be_known_to_others_or_is_none_is_refused(tmp_path: Path, spoil: str) -> None:
    path = tmp_path / PLACE
    find_local_secret(tmp_path)
    match spoil:
        case "readable":
            path.chmod(0o640)
        case "link":
            os.rename(path, tmp_path / "elsewhere")
            path.symlink_to(tmp_path / "elsewhere")
        case "empty":
            path.write_bytes(b"")
        case "longer":
            path.write_bytes(b"x" * 44)
        case _:
            path.unlink()
            path.mkdir()
    with pytest.raises(ConfigError, match=f"the secret in {path} cannot be used"):
        find_local_secret(tmp_path)
