"""Locks of leaders: freed when their process ends, kept by no child, and never taken through a link."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.adapters.leader_locks import LeaderLocks

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such locks")

LEADER = """
import sys
from pathlib import Path
from dragoman.adapters.leader_locks import LeaderLocks

print(LeaderLocks(Path(sys.argv[1])).take("tidy"), flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_lock_is_free_when_its_process_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LEADER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as leader:
        assert leader.stdout is not None
        assert leader.stdout.readline() == b"True\n"
        locks = LeaderLocks(tmp_path)
        assert not locks.take("tidy")
        leader.kill()
        leader.wait()
    assert locks.take("tidy")
    locks.give_back()


@pytest.mark.slow
def test_a_forked_child_does_not_keep_the_locks_of_a_process_that_gave_them_back(tmp_path: Path) -> None:
    first, second = LeaderLocks(tmp_path), LeaderLocks(tmp_path)
    assert first.take("tidy")
    told, tell = os.pipe()
    ends, end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        os.write(tell, b"!")
        os.read(ends, 1)
        os._exit(0)
    try:
        os.read(told, 1)
        assert not second.take("tidy")
        first.give_back()
        assert second.take("tidy")
    finally:
        second.give_back()
        os.close(end)
        os.waitpid(child, 0)
        for descriptor in (told, tell, ends):
            os.close(descriptor)


def test_a_refused_lock_leaves_no_descriptor_open(tmp_path: Path) -> None:
    first, second = LeaderLocks(tmp_path), LeaderLocks(tmp_path)
    assert first.take("tidy")
    before = os.open(os.devnull, os.O_RDONLY)
    os.close(before)
    for _ in range(5):
        assert not second.take("tidy")
    after = os.open(os.devnull, os.O_RDONLY)
    os.close(after)
    first.give_back()
    assert after == before


def test_a_link_in_the_place_of_a_lock_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").touch()
    (tmp_path / "job-tidy.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        LeaderLocks(tmp_path).take("tidy")
