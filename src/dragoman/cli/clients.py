"""The clients whose configuration Dragoman knows: where it is kept, and what an entry for a server looks like."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn

from dragoman.files import read_regular_file

_MOST_BYTES = 1 << 26


class EntryScope(StrEnum):
    """Who a client's entry is for."""

    PROJECT = "project"
    USER = "user"


@dataclass(frozen=True)
class ClientProgram:
    """A program that starts MCP servers."""

    id: str
    name: str
    next_step: str
    project: str | None
    """Its file within a project; None when it has none."""
    key: str = "mcpServers"
    """Where its file lists servers."""
    is_typed: bool = False
    """Whether an entry says which transport it is for."""

    def file(self, scope: EntryScope, platform: str = sys.platform) -> Path | None:
        """Where the entries of a scope are kept; None when the client has no such scope, or the user no home."""
        if scope is EntryScope.PROJECT:
            return Path(self.project) if self.project is not None else None
        try:
            return self._user_file(platform)
        except RuntimeError:
            return None

    def _user_file(self, platform: str) -> Path:
        match self.id:
            case "claude-desktop":
                return _application_data(platform) / "Claude" / "claude_desktop_config.json"
            case "claude-code":
                return Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home()) / ".claude.json"
            case "cursor":
                return Path.home() / ".cursor" / "mcp.json"
            case _:
                return _application_data(platform) / "Code" / "User" / "mcp.json"

    def entry(self, command: list[str], env: Mapping[str, str]) -> dict[str, Any]:
        """How the client is told to start a server."""
        typed = {"type": "stdio"} if self.is_typed else {}
        given = {"env": dict(env)} if env else {}
        return {**typed, "command": command[0], "args": command[1:], **given}


CLIENTS = {
    client.id: client
    for client in (
        ClientProgram("claude-desktop", "Claude Desktop", "Quit Claude Desktop and start it again.", project=None),
        ClientProgram(
            "claude-code", "Claude Code", "Start a new session; /mcp lists its servers.", project=".mcp.json"
        ),
        ClientProgram(
            "cursor", "Cursor", "Turn the server on in Cursor's settings, under MCP.", project=".cursor/mcp.json"
        ),
        ClientProgram(
            "vscode",
            "VS Code",
            "Start the server with the command 'MCP: List Servers'.",
            project=".vscode/mcp.json",
            key="servers",
            is_typed=True,
        ),
    )
}


def _application_data(platform: str) -> Path:
    if platform == "win32":
        return Path(os.environ.get("APPDATA") or Path.home() / "AppData" / "Roaming")
    if platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")


def own_command() -> list[str]:
    """How to start this very Dragoman from anywhere: its script where it was started by it, else its interpreter."""
    script = Path(sys.argv[0])
    if script.stem == "dragoman" and os.access(script, os.X_OK) and script.is_file():
        return [str(script.absolute())]
    return [sys.executable, "-P", "-m", "dragoman"]  # Without -P, the working directory would be searched first.


def is_command(command: str) -> bool:
    """Whether a client that is given `command` would find a program."""
    return shutil.which(os.path.expanduser(command)) is not None


def read(path: Path) -> bytes | None:
    """The content of a client's file; None if there is none. Raises `OSError`."""
    return read_regular_file(path, _MOST_BYTES)


def parse(content: bytes) -> dict[str, Any]:
    """What a client's file says, nothing if it is empty. Raises `ValueError` where it could not be written back."""
    text = content.decode("utf-8-sig")
    if not text.strip():
        return {}
    try:
        document = json.loads(
            text, object_pairs_hook=_without_repetition, parse_constant=_refuse_constant, parse_float=_finite
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not plain JSON: {error}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError("it does not hold an object")
    return document


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is in it twice")
    return found


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"the number {text[:20]} could not be written back")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def words_of(entry: Any) -> list[str]:
    """The command line of an entry."""
    if not isinstance(entry, dict):
        return []
    arguments = entry.get("args")
    words = [entry.get("command"), *(arguments if isinstance(arguments, list) else ())]
    return [word for word in words if isinstance(word, str)]


def is_ours(entry: Any) -> bool:
    """Whether an entry starts Dragoman."""
    return any(Path(word).stem == "dragoman" for word in words_of(entry))
