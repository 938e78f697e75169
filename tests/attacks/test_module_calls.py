"""Modules that raise, exit or answer with secrets, on real servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.answers import text_in
from tests.support.http_process import HttpProcess
from tests.support.http_wire import message, modern, modern_call, request
from tests.support.processes import ServerProcess

pytestmark = pytest.mark.slow

SECRET = "hunter2-is-not-for-you"
SHOWN = {"user": {"name": "ada", "pin": "***REDACTED***"}, "codes": ["***REDACTED***"]}
MODULES = {
    "secrets": """
from typing import Annotated

from apcore import ModuleAnnotations
from pydantic import BaseModel, Field

Secret = Annotated[str, Field(json_schema_extra={"x-sensitive": True})]
OUTPUT = {"user": {"name": "ada", "pin": "%(secret)s"}, "codes": ["%(secret)s"]}


class Nothing(BaseModel):
    pass


class User(BaseModel):
    name: str
    pin: Secret


class Output(BaseModel):
    user: User
    codes: list[Secret]


class Answers:
    description = "Answers with secrets."
    annotations = ModuleAnnotations(streaming=True)
    input_schema = Nothing
    output_schema = Output

    def execute(self, inputs, context):
        return OUTPUT

    async def stream(self, inputs, context):
        for name, value in OUTPUT.items():
            yield {name: value}
""",
    "exits": """
import sys

from pydantic import BaseModel, Field


class Login(BaseModel):
    password: str = Field(json_schema_extra={"x-sensitive": True})


class Exits:
    description = "Exits."
    input_schema = Login
    output_schema = Login

    async def execute(self, inputs, context):
        sys.exit(f"cannot log in with {inputs['password']}")
""",
    "speechless": """
from apcore.errors import InvalidInputError
from pydantic import BaseModel


class Nothing(BaseModel):
    pass


class Speechless(InvalidInputError):
    def __init__(self):
        super().__init__("wrong")
        self.details = 7
        self.message = self

    def __str__(self):
        raise ValueError


class Raises:
    description = "Raises what cannot be said."
    input_schema = Nothing
    output_schema = Nothing

    async def execute(self, inputs, context):
        raise Speechless
""",
}


@pytest.fixture
def modules(tmp_path: Path) -> tuple[str, str]:
    for name, source in MODULES.items():
        (tmp_path / f"{name}.py").write_text(source.replace("%(secret)s", SECRET))
    return "--extensions-dir", str(tmp_path)


def log_of(server: ServerProcess) -> str:
    return b"".join(server.errors.lines).decode()


@pytest.mark.requirement("NFR-SEC-003", "FR-EXEC-007")
def test_over_stdio_no_secret_of_a_result_is_sent_and_every_exception_is_an_answer(modules: tuple[str, str]) -> None:
    with ServerProcess(*modules) as server:
        server.handshake()
        answered = server.call("secrets")
        assert (json.loads(answered["content"][0]["text"]), answered["structuredContent"]) == (SHOWN, SHOWN)
        for name in ("exits", "speechless"):
            failed = server.call(name, **({"password": SECRET} if name == "exits" else {}))
            assert failed["isError"] is True
            assert "Internal error occurred" in failed["content"][0]["text"]
        assert server.call("secrets")["isError"] is False
        assert SECRET not in log_of(server)


@pytest.mark.requirement("NFR-SEC-003", "FR-STREAM-001")
def test_over_http_no_secret_of_a_result_is_sent_in_either_era_in_a_stream_or_to_the_explorer(
    modules: tuple[str, str],
) -> None:
    asks_for_progress: dict[str, Any] = {"name": "secrets", "arguments": {}, "_meta": {"progressToken": "t"}}
    with HttpProcess(None, *modules, "--explorer", "--allow-execute") as server:
        assert text_in(server.ask(modern_call("secrets"))) == SHOWN
        session = server.open()
        assert text_in(session.call("secrets")) == SHOWN
        for streamed in (
            session.post(message("tools/call", asks_for_progress, 2)),
            server.ask(modern("tools/call", asks_for_progress, meta={"progressToken": "t"})),
        ):
            progress = [json.loads(each["params"]["message"]) for each in streamed.messages if "params" in each]
            assert progress == [{name: value} for name, value in SHOWN.items()]
            assert SECRET not in streamed.body.decode()
        opened = server.output.wait_until(lambda lines: next((each for each in lines if b"#token=" in each), None))
        token = opened.decode().partition("#token=")[2].split()[0]
        called = request({}, {"x-explorer-token": token}, path="/explorer/tools/secrets/call")
        assert server.ask(called).json == {"result": SHOWN}
        assert SECRET not in log_of(server)
