"""What operators do on the command line, beside a server on the same data directory."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.forking import DRAGOMAN, Process, run, start
from tests.support.http_process import HttpProcess
from tests.support.processes import environment
from tests.support.waiting import PATIENCE


class Operator:
    """Somebody at a terminal, and the server that is looked after. Its tools and agents do as files in a folder say."""

    def __init__(self, folder: Path, target: str) -> None:
        self.folder = folder
        self.target = target
        self.settings = {
            "storage.data_dir": folder / "data",
            "aacp.max_attempts": 2,
            "aacp.base_delay_ms": 10,
            "aacp.max_delay_ms": 10,
        }
        self.extra = {"OPERATED_FOLDER": str(folder)}

    def serve(self, *options: str) -> HttpProcess:
        return HttpProcess(self.target, *options, settings=self.settings, extra=self.extra, cwd=self.folder)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return run(self._command(words), **self._options, timeout=PATIENCE)

    @contextmanager
    def begin(self, *words: str, **options: Any) -> Iterator[Process]:
        """A command that is under way; left running at the end of the block, it is killed."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        with start(self._command(words), **self._options, **pipes) as process:
            try:
                yield process
            finally:
                process.kill()

    def answer(self, *words: str) -> Any:
        done = self.run(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def allow(self, name: str) -> None:
        (self.folder / name).touch()

    def _command(self, words: tuple[str, ...]) -> list[str]:
        return [*DRAGOMAN, *words]

    @property
    def _options(self) -> dict[str, Any]:
        return {"cwd": self.folder, "env": environment(self.settings, self.extra), "text": True}

    def state(self, agent: str) -> Any:
        return self.answer("agents", "show", agent)["state"]
