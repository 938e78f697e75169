"""The way of a new user: a key, a server, a signed request, files in and out, and a key that is revoked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import ACTIONS_PATH, Signer, as_body, create_args
from tests.support.http_process import HttpProcess
from tests.support.http_wire import Response, modern_call, request
from tests.support.operator import Operator
from tests.support.processes import free_port
from tests.support.served import TOOLS

pytestmark = pytest.mark.slow


class NewUser(Operator):
    """Somebody with a data directory that is not there yet, who knows what the help says."""

    def generate(self, tenant: str, *roles: str) -> dict[str, Any]:
        options = [word for role in roles for word in ("--role", role)]
        made: dict[str, Any] = self.answer("keys", "generate", "--tenant", tenant, *options)
        return made

    def send(self, server: HttpProcess, key: dict[str, Any], action: str, args: dict[str, Any]) -> Response:
        """Sign an envelope with `dragoman token`, and send it as curl does."""
        envelope = Signer(key["tenant"], *key["roles"], sub="me").envelope(action, args)
        body, host = as_body(envelope), f"127.0.0.1:{server.port}"
        (self.folder / "body.json").write_bytes(body)
        url = f"http://{host}{ACTIONS_PATH}"
        signed = self.run("token", "--key", key["file"], "--sub", "me", "--body", "body.json", "--url", url)
        assert signed.returncode == 0, signed.stderr
        headers = {"host": host, "authorization": f"Bearer {signed.stdout.strip()}"}
        return server.ask(request(body, headers, path=ACTIONS_PATH))

    def titles(self, tenant: str) -> list[tuple[int, str]]:
        shown = self.answer("knowledge", "tree", "--tenant", tenant)["documents"]
        return [(each["depth"], each["title"]) for each in shown]


@pytest.fixture
def user(tmp_path: Path) -> NewUser:
    return NewUser(tmp_path, TOOLS)


def test_without_a_key_the_server_says_how_to_make_one(user: NewUser) -> None:
    refused = user.run("serve", "--transport", "streamable-http", "--port", str(free_port()), "--gateway")
    assert (refused.returncode, "dragoman keys generate --tenant NAME --role ROLE" in refused.stderr) == (2, True)


@pytest.mark.requirement("MC-SEC-02", "MC-SEC-04", "MC-TRANS-05")
def test_a_new_user_makes_keys_and_a_tree_and_revokes_a_key(user: NewUser) -> None:
    acme, bell = user.generate("acme", "owner"), user.generate("bell", "editor")
    with user.serve("--gateway") as server:
        folder, leaf = create_args(metadata={"title": "Plans"}), create_args(metadata={"title": "Note"})
        created = user.send(server, acme, "knowledge.create_document", folder)
        assert (created.status, created.json["data"]["revision"]) == (200, 1)
        assert user.send(server, acme, "knowledge.create_document", leaf).status == 200
        move = {"document_id": leaf["document_id"], "new_parent_id": folder["document_id"]}
        assert user.send(server, acme, "knowledge.move_document", move).status == 200
        assert user.send(server, bell, "knowledge.create_document", create_args()).status == 200
        assert user.send(server, bell, "knowledge.delete_document", {"document_id": leaf["document_id"]}).status == 404
        assert (user.titles("acme"), user.titles("bell")) == ([(0, "Plans"), (1, "Note")], [(0, "A document")])

        new = user.answer("keys", "rotate", acme["kid"])
        for key in (acme, new):
            assert user.send(server, key, "knowledge.create_document", create_args()).status == 200
        assert user.run("keys", "revoke", acme["kid"]).returncode == 0
        refused = user.send(server, acme, "knowledge.create_document", create_args())
        assert (refused.status, refused.json["error"]["code"]) == (401, "UNAUTHORIZED")
        assert user.send(server, new, "knowledge.create_document", create_args()).status == 200
    events = user.answer("audit", "list", "--tenant", "acme")["events"]
    assert [each["event"] for each in events] == [
        "document.created",
        "key.revoked",
        "document.created",
        "document.created",
        "key.rotated",
        "document.moved",
        "document.created",
        "document.created",
        "key.generated",
    ]


def test_files_that_are_imported_beside_a_server_are_seen_by_its_clients_and_come_out_again(user: NewUser) -> None:
    (user.folder / "files/guide").mkdir(parents=True)
    (user.folder / "files/guide/start.md").write_text("# Start\n")
    key = user.generate("local", "owner")
    owner = {"authorization": f"Bearer {user.run('keys', 'local').stdout.strip()}"}
    with user.serve("--gateway") as server:
        done = user.run("knowledge", "import", "files")
        assert (done.returncode, done.stdout) == (0, "2 created, 0 updated, 0 unchanged\n")
        guide, start = user.answer("knowledge", "tree")["documents"]
        patch: dict[str, Any] = {
            "patch": {"content": {"body": "# Begin\n"}},
            "update_mask": ["content.body"],
            "last_known_revision": 1,
        }
        changed = server.ask(modern_call("knowledge.update_document", owner, document_id=start["id"], **patch))
        assert json.loads(changed.json["result"]["content"][0]["text"])["revision"] == 2
        patch |= {"last_known_revision": 2, "patch": {"content": {"body": "# Go\n"}}}
        answered = user.send(server, key, "knowledge.update_document", {"document_id": start["id"], **patch})
        assert answered.json["data"]["revision"] == 3
        assert user.run("knowledge", "export", "out").returncode == 0
    assert (user.folder / "out/guide/start.md").read_text() == "# Go\n"
    history = user.answer("knowledge", "history", start["id"])["revisions"]
    assert [(each["revision"], each["principal"]) for each in history][-1] == (1, "operator")
    assert len(history) == 3
    assert json.loads((user.folder / "out/.dragoman-tree.json").read_text())["documents"]["guide"]["id"] == guide["id"]
