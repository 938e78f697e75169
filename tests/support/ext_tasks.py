"""The official TypeScript packages for tasks: the client, and the schemas of every message."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tests.support.node import Node
from tests.support.waiting import PATIENCE

PACKAGE, VERSION = "@modelcontextprotocol/ext-tasks", "0.2.2"
CLIENT = "@modelcontextprotocol/client@2.4.0"
SCRIPTS = Path(__file__).parent / "scripts"


class TasksPackage(NamedTuple):
    """The installed packages."""

    node: Node
    home: Path

    async def run(self, script: str, given: Any) -> Any:
        """What a script prints as JSON when it is given JSON on its standard input."""
        # A script on the command line finds the packages of the working directory.
        process = await asyncio.create_subprocess_exec(
            *(self.node.node, "--input-type=module", "--eval", (SCRIPTS / script).read_text()),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.home,
            env=self.node.environment,
        )
        output, errors = await asyncio.wait_for(process.communicate(msgspec.json.encode(given)), 2 * PATIENCE)
        assert process.returncode == 0, errors.decode()
        return msgspec.json.decode(output)
