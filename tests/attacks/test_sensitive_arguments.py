"""Modules and tools whose exceptions quote sensitive arguments, on real servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import ServerProcess

pytestmark = pytest.mark.slow

SECRET = "hunter2-is-not-for-you"
MODULE = """
from pydantic import BaseModel, Field


class Login(BaseModel):
    user: str
    password: str = Field(json_schema_extra={"x-sensitive": True})


class Enter:
    description = "Log in."
    input_schema = Login
    output_schema = Login

    def execute(self, inputs, context):
        raise RuntimeError(f"{inputs['user']} cannot enter with {inputs['password']}")
"""
TOOL = """
from typing import Annotated

from msgspec import Meta

from dragoman import tool


@tool
def enter(user: str, password: Annotated[str, Meta(extra_json_schema={"x-sensitive": True})]) -> None:
    "Log in."
    raise RuntimeError(f"{user} cannot enter with {password}")
"""


@pytest.mark.parametrize("kind", ["module", "tool"])
def test_the_log_of_a_server_has_no_sensitive_argument_that_an_exception_quotes(kind: str, tmp_path: Path) -> None:
    (tmp_path / "enter.py").write_text(MODULE if kind == "module" else TOOL)
    target = ("--extensions-dir", str(tmp_path)) if kind == "module" else (str(tmp_path / "enter.py"),)
    with ServerProcess(*target) as server:
        server.handshake()
        assert SECRET not in str(server.call("enter", user="ada", password=SECRET))
        server.wait_for_log("tool call completed")
        log = b"".join(server.errors.lines).decode()
    assert "ada cannot enter with [REDACTED]" in log
    assert SECRET not in log
