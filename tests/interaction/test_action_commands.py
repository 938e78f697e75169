"""`dragoman actions send`, and dead letters of actions, beside a running server and across its end."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.support.gateway import ACTIONS_PATH, create_args
from tests.support.http_process import HttpProcess
from tests.support.operator import Operator
from tests.support.served import TOOLS
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


class Sender(Operator):
    """Somebody with a key of acme, who sends envelopes from files."""

    def make_key(self) -> None:
        made = self.run("keys", "generate", "--tenant", "acme", "--role", "owner", "--out", "key.json")
        assert made.returncode == 0, made.stderr

    def write(self, args: dict[str, Any], **fields: Any) -> None:
        envelope = {
            "principal": {"roles": ["owner"]},
            "action": "knowledge.create_document",
            "action_version": "1.0.0",
            "payload": {"schema_version": "1.0", "args": args},
            **fields,
        }
        (self.folder / "envelope.json").write_text(json.dumps(envelope))

    def words(self, server: HttpProcess, *options: str) -> tuple[str, ...]:
        url = f"http://127.0.0.1:{server.port}{ACTIONS_PATH}"
        return ("actions", "send", "envelope.json", "--key", "key.json", "--url", url, *options)

    def send(self, server: HttpProcess, args: dict[str, Any], *options: str, **fields: Any) -> tuple[int, Any]:
        """The exit code, and what is printed."""
        self.write(args, **fields)
        done = self.run(*self.words(server, *options))
        return done.returncode, json.loads(done.stdout) if done.stdout.startswith("{") else done.stdout

    def titles(self) -> list[str]:
        return [each["title"] for each in self.answer("knowledge", "tree", "--tenant", "acme")["documents"]]

    def dead(self, *options: str) -> list[Any]:
        return [each["number"] for each in self.answer("messages", "dead", *options)["messages"]]


@pytest.fixture
def sender(tmp_path: Path) -> Sender:
    made = Sender(tmp_path, TOOLS)
    made.make_key()
    return made


@pytest.mark.requirement("MC-TRANS-04")
def test_an_envelope_from_a_file_is_carried_out_now_or_later(sender: Sender) -> None:
    with sender.serve("--gateway") as server:
        code, said = sender.send(server, create_args(metadata={"title": "Now"}))
        assert (code, said["ok"], said["data"]["revision"]) == (0, True, 1)
        code, said = sender.send(server, create_args(metadata={"title": "Waited"}), "--async", "--wait", "--sub", "me")
        assert (code, said["data"]["revision"]) == (0, 1)
        code, said = sender.send(server, create_args(metadata={"title": "Later"}), "--async")
        assert (code, said.partition(": ")[0]) == (0, "accepted")
        wait_until(lambda: "Later" in sender.titles())
        code, said = sender.send(server, create_args(parent_id=str(uuid4())))
        assert (code, said["error"]["code"]) == (1, "NOT_FOUND")
        code, said = sender.send(server, create_args(), tenant_id="globex")
        assert (code, said["error"]["code"]) == (1, "FORBIDDEN")
    assert sender.titles() == ["Now", "Waited", "Later"]
    history = sender.answer("audit", "list", "--tenant", "acme")["events"]
    assert any(each["principal"].startswith("me (dk-") for each in history)


@pytest.mark.requirement("MC-TRANS-04")
def test_a_request_that_failed_is_redriven_and_carried_out_by_the_running_server(sender: Sender) -> None:
    parent, child = str(uuid4()), create_args(metadata={"title": "Child"})
    with sender.serve("--gateway") as server:
        code, said = sender.send(server, {**child, "parent_id": parent}, "--async", "--wait", ttl_sec=60)
        assert (code, said["error"]["code"]) == (1, "NOT_FOUND")
        (number,) = sender.dead("--tenant", "acme")
        assert sender.answer("messages", "show", number)["errors"][0]["code"] == "NOT_FOUND"
        assert sender.send(server, create_args(parent, metadata={"title": "Parent"}))[0] == 0
        done = sender.run("messages", "redrive", number)
        assert (done.returncode, done.stdout.startswith(f"action {number} is action a")) == (0, True)
        wait_until(lambda: sender.titles() == ["Parent", "Child"])
        assert sender.dead() == []
    events = [each["event"] for each in sender.answer("audit", "list")["events"]]
    assert events.index("message.redriven") == 1  # The newest is the document.


def test_a_dead_letter_outlives_its_server_and_is_carried_out_by_the_next(sender: Sender) -> None:
    parent, child = str(uuid4()), create_args(metadata={"title": "Child"})
    with sender.serve("--gateway") as server:
        assert sender.send(server, {**child, "parent_id": parent}, "--async", "--wait")[0] == 1
        assert sender.send(server, create_args(parent, metadata={"title": "Parent"}))[0] == 0
        server.signal(signal.SIGKILL)
        server.wait()
    assert len(sender.answer("messages", "redrive", "--kind", "action")["redriven"]) == 1
    assert sender.titles() == ["Parent"]
    with sender.serve("--gateway"):
        wait_until(lambda: sender.titles() == ["Parent", "Child"])
