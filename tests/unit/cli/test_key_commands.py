"""`dragoman keys`, `dragoman token` and `dragoman audit`: who may sign, what is signed, and what is noted of it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import signal
import stat
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import typer
from typer.testing import CliRunner, Result

from dragoman.cli.commands import app
from dragoman.cli.storage_access import OpenStorage, with_storage
from dragoman.errors import Unauthenticated
from dragoman.gateway.port import SigningKey, SigningKeys
from dragoman.gateway.signatures import SignedClaims, check_age, verify
from dragoman.knowledge.port import Audit, AuditEvent
from tests.support.gateway import Signer

T = TypeVar("T")
runner = CliRunner()
URL = "http://127.0.0.1:8000/mcp/actions"
DAY = 86_400.0
HOSTILE = "\x1b]0;gone\x07 \x1b[2J \u202egnp.exe \r\n"


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory that is not there yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAGOMAN_STORAGE__DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def dragoman(*words: str, given: bytes | None = None) -> Result:
    return runner.invoke(app, words, input=given)


def answer(*words: str) -> Any:
    """What a command that goes well prints as JSON."""
    result = dragoman(*words, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def stored(work: Callable[[OpenStorage], Awaitable[T]]) -> T:
    return with_storage(None, work)


def kept(kid: str) -> SigningKey:
    """A key as the server finds it."""
    found = stored(lambda each: each.storage.port(SigningKeys).find(kid))
    assert found is not None
    return found


def keep(signer: Signer, *, age_days: float = 0.0, revoked_at: float | None = None) -> str:
    """Store a key that was made some days ago."""
    key = signer.key(time.time() - age_days * DAY, revoked_at)
    assert stored(lambda each: each.storage.port(SigningKeys).add(key))
    return key.kid


def make(*words: str) -> Any:
    return answer("keys", "generate", "--tenant", "acme", "--role", "owner", *words)


def test_the_private_half_of_a_new_key_is_in_one_file_that_only_its_owner_can_read(data: Path) -> None:
    result = dragoman("keys", "generate", "--tenant", "acme", "--role", "viewer", "--role", "editor")
    assert result.exit_code == 0, result.stderr
    (path,) = data.glob("keys/*.json")
    written = json.loads(path.read_text())
    assert re.fullmatch(r"dk-[0-9a-f]{16}", written["kid"])
    assert (path.stem, written["tenant"], written["kty"], written["crv"]) == (written["kid"], "acme", "OKP", "Ed25519")
    modes = [stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent, data)]
    assert modes == [0o600, 0o700, 0o700]
    assert written["d"] not in result.output
    assert not any(written["d"].encode() in each.read_bytes() for each in data.iterdir() if each.is_file())
    key = kept(written["kid"])
    assert (key.public, key.tenant, key.roles, key.revoked_at) == (written["x"], "acme", ("editor", "viewer"), None)


@pytest.mark.slow
def test_a_private_half_is_written_where_it_is_wanted_and_to_a_new_file_alone(tmp_path: Path) -> None:
    place = tmp_path / "mine.json"
    assert make("--out", str(place))["file"] == str(place)
    before = place.read_text()
    (tmp_path / "link.json").symlink_to(tmp_path / "elsewhere.json")
    for taken in ("mine.json", "link.json"):
        result = dragoman("keys", "generate", "--tenant", "acme", "--role", "owner", "--out", taken)
        assert (result.exit_code, "is there already" in result.stderr) == (1, True)
    refused = dragoman("keys", "generate", "--tenant", "acme", "--role", "owner", "--out", "-")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert place.read_text() == before
    assert not (tmp_path / "elsewhere.json").exists()
    assert len(answer("keys", "list")["keys"]) == 1


def test_a_folder_of_keys_that_is_a_link_is_refused(data: Path, tmp_path: Path) -> None:
    data.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (data / "keys").symlink_to(tmp_path / "elsewhere")
    result = dragoman("keys", "generate", "--tenant", "acme", "--role", "owner")
    assert (result.exit_code, "is a link" in result.stderr) == (1, True)
    assert not [*(tmp_path / "elsewhere").iterdir()]


def test_a_key_that_could_not_be_stored_leaves_no_file(data: Path) -> None:
    data.mkdir()
    (data / "dragoman.db").write_bytes(b"This is no database, but long enough to look like one." * 100)
    result = dragoman("keys", "generate", "--tenant", "acme", "--role", "owner")
    assert (result.exit_code, "the database cannot be used" in result.stderr) == (1, True)
    assert not [*data.glob("keys/*")]


@pytest.mark.requirement("MC-RBAC-01", "MC-RBAC-03")
def test_former_names_of_roles_are_stored_as_what_they_mean_and_others_are_refused(data: Path) -> None:
    words = ("keys", "generate", "--tenant", "acme")
    result = dragoman(*words, "--role", "cursor", "--role", "codex", "--role", "editor", "--json")
    assert kept(json.loads(result.stdout)["kid"]).roles == ("agent", "editor")
    assert result.stderr.splitlines() == [
        "cursor is another name of agent, which the key gets",
        "codex is another name of editor, which the key gets",
    ]
    refused = dragoman(*words, "--role", "owner", "--role", f"admin{HOSTILE}")
    assert (refused.exit_code, "\x1b" in refused.output) == (2, False)
    assert "There are agent, editor, owner, viewer" in refused.stderr
    assert len([*data.glob("keys/*")]) == 1


@pytest.mark.parametrize("tenant", ["", "t" * 129, "two\nlines", "\udce9"])
def test_a_tenant_that_no_envelope_can_name_gets_no_key(tenant: str, data: Path) -> None:
    result = dragoman("keys", "generate", "--tenant", tenant, "--role", "owner")
    assert (result.exit_code, data.exists()) == (2, False)


@pytest.mark.requirement("MC-SEC-04")
def test_the_list_tells_new_keys_from_old_refused_and_revoked_ones() -> None:
    ages = {"new": 0.5, "just": 74.5, "old": 75.5, "last": 89.5, "refused": 90.5, "gone": 1.0}
    kids = {
        name: keep(Signer(kid=f"dk-{name}"), age_days=age, revoked_at=time.time() if name == "gone" else None)
        for name, age in ages.items()
    }
    listed = {each["kid"]: each for each in answer("keys", "list")["keys"]}
    statuses = {name: listed[kid]["status"] for name, kid in kids.items()}
    assert statuses == {
        "new": "valid",
        "just": "valid",
        "old": "old",
        "last": "old",
        "refused": "refused",
        "gone": "revoked",
    }
    shown = dragoman("keys", "list")
    assert [line.split()[0] for line in shown.stdout.splitlines()[1:]] == sorted(
        kids.values(), key=lambda kid: -ages[kid[3:]]
    )
    assert [line.split()[1] for line in shown.stderr.splitlines()] == ["dk-last", "dk-old"]
    assert "refused: older than 90 days" in shown.stdout
    with pytest.raises(Unauthenticated):  # What the list calls refused is what the gateway refuses.
        check_age(kept("dk-refused"), time.time())
    check_age(kept("dk-last"), time.time())


@pytest.mark.slow
@pytest.mark.requirement("MC-SEC-04")
def test_after_a_rotation_both_keys_are_valid_until_the_old_one_is_revoked() -> None:
    old = answer("keys", "generate", "--tenant", "acme", "--role", "agent", "--role", "viewer")
    result = dragoman("keys", "rotate", old["kid"])
    assert (result.exit_code, f"dragoman keys revoke {old['kid']}" in result.stdout) == (0, True)
    (new,) = (each for each in answer("keys", "list")["keys"] if each["kid"] != old["kid"])
    assert (new["tenant"], new["roles"]) == (old["tenant"], old["roles"])
    assert kept(new["kid"]).public != kept(old["kid"]).public
    third = answer("keys", "rotate", new["kid"])
    lines = [kept(each["kid"]).line for each in (old, new, third)]
    assert lines == [old["kid"]] * 3, "its callers stay the same"
    assert dragoman("keys", "revoke", third["kid"]).exit_code == 0
    assert [each["status"] for each in answer("keys", "list")["keys"]] == ["valid", "valid", "revoked"]
    assert dragoman("keys", "revoke", old["kid"]).stdout == f"{old['kid']} is revoked\n"
    assert [each["status"] for each in answer("keys", "list")["keys"]] == ["revoked", "valid", "revoked"]
    again = [dragoman("keys", "revoke", old["kid"]), dragoman("keys", "rotate", old["kid"])]
    assert [each.exit_code for each in again] == [1, 1]
    assert again[0].stderr == f"dragoman: {old['kid']} was revoked before\n"


@pytest.mark.parametrize("command", ["rotate", "revoke"])
def test_a_key_that_is_not_there_is_named_as_such(command: str) -> None:
    result = dragoman("keys", command, f"dk-none{HOSTILE}")
    assert (result.exit_code, "there is no key dk-none" in result.stderr, "\x1b" in result.stderr) == (1, True, False)


@pytest.mark.slow
def test_every_change_of_keys_is_in_the_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "grace")
    first = make()["kid"]
    second = answer("keys", "rotate", first)["kid"]
    answer("keys", "revoke", first)
    dragoman("keys", "revoke", first)
    events = answer("audit", "list")["events"]
    told = [(each["event"], each["subject"], each["tenant"], each["principal"], each["details"]) for each in events]
    assert told == [
        ("key.revoked", first, "acme", "grace", {}),
        ("key.rotated", second, "acme", "grace", {"roles": ["owner"], "from": first}),
        ("key.generated", first, "acme", "grace", {"roles": ["owner"]}),
    ]


@pytest.mark.slow
def test_the_audit_is_listed_page_by_page_and_by_tenant() -> None:
    async def note_all(each: OpenStorage) -> None:
        for number in range(5):
            tenant, details = ("acme", "bell")[number % 2], {"said": HOSTILE}
            event = AuditEvent(tenant=tenant, event=f"e{number}", principal=HOSTILE, at=float(number), details=details)
            await each.storage.port(Audit).note(event)

    stored(note_all)
    page = answer("audit", "list", "--limit", "2")
    assert ([each["event"] for each in page["events"]], page["before"]) == (["e4", "e3"], 4)
    page = answer("audit", "list", "--limit", "2", "--before", "4")
    assert ([each["event"] for each in page["events"]], page["before"]) == (["e2", "e1"], 2)
    assert [each["event"] for each in answer("audit", "list", "--tenant", "bell")["events"]] == ["e3", "e1"]
    shown = dragoman("audit", "list", "--limit", "4")
    assert (len(shown.stdout.splitlines()), shown.stderr) == (5, "there are more: --before 2\n")
    assert not {"\x1b", "\x07", "\u202e", "\r"} & set(shown.stdout)


def test_a_token_is_signed_for_one_method_address_and_body(tmp_path: Path) -> None:
    made = make()
    (tmp_path / "body.json").write_bytes(b'{"a": "\xc3\xa9"}\n')
    said = dragoman("token", "--key", made["file"], "--sub", "svc:me", "--body", "body.json", "--ttl", "30")
    assert (said.exit_code, said.stderr) == (0, "")
    claims = verify(said.stdout.strip(), kept(made["kid"]), "dragoman", time.time())
    claims.check_request("POST", URL)
    claims.check_body((tmp_path / "body.json").read_bytes())
    assert (claims.sub, claims.exp - claims.iat) == ("svc:me", 30)


def _claims(*words: str, given: bytes | None = None) -> SignedClaims:
    made = make()
    said = dragoman("token", "--key", made["file"], "--sub", "me", *words, given=given)
    assert said.exit_code == 0, said.stderr
    return verify(said.stdout.strip(), kept(made["kid"]), "dragoman", time.time())


@pytest.mark.slow
def test_a_token_for_what_stdin_holds_or_for_no_body() -> None:
    assert _claims("--body", "-", given=b"\x00\xff").body_sha256 == hashlib.sha256(b"\x00\xff").hexdigest()
    claims = _claims("--method", "get", "--url", "http://127.0.0.1:9/mcp/capabilities")
    claims.check_request("GET", "http://127.0.0.1:9/mcp/capabilities")
    claims.check_body(b"")


@pytest.mark.slow
def test_no_two_tokens_have_the_same_nonce() -> None:
    key = make()["file"]
    tokens = {dragoman("token", "--key", key, "--sub", "me", "--method", "GET").stdout for _ in range(3)}
    assert len(tokens) == 3


@pytest.mark.parametrize(
    "words",
    [
        ("--url", "127.0.0.1:8000/mcp/actions"),
        ("--url", "http://127.0.0.1:8000"),
        ("--url", f"{URL}?a=1"),
        ("--url", f"{URL}#"),
        ("--url", "http://[::1/mcp"),
        ("--method", "PO ST"),
        ("--sub", ""),
        ("--sub", "a\nb"),
        ("--ttl", "601"),
        ("--ttl", "0"),
        ("--body", "missing.json"),
        ("--key", "missing.json"),
        ("--key", "/dev/null"),
    ],
)
def test_what_no_request_can_have_is_not_signed(words: tuple[str, str]) -> None:
    options = {"--key": make()["file"], "--sub": "me", **dict([words])}
    result = dragoman("token", *(each for option in options.items() for each in option))
    assert (result.exit_code, result.stdout) == (2, "")


@pytest.mark.parametrize("change", [{"d": "short"}, {"crv": "X25519"}, {"d": 7}, {"kty": "RSA"}])
def test_a_file_without_a_usable_key_is_refused_without_saying_what_is_in_it(change: Any, tmp_path: Path) -> None:
    path = Path(make()["file"])
    written = json.loads(path.read_text())
    path.write_text(json.dumps({**written, **change}))
    result = dragoman("token", "--key", str(path), "--sub", "me")
    assert (result.exit_code, result.stdout, written["d"] in result.output) == (2, "", False)


@pytest.mark.skipif(sys.platform == "win32", reason="files have no such modes")
def test_who_signs_with_a_key_that_others_can_read_is_warned() -> None:
    path = make()["file"]
    os.chmod(path, 0o644)
    result = dragoman("token", "--key", path, "--sub", "me", "--method", "GET")
    assert (result.exit_code, "others than the owner can read" in result.stderr) == (0, True)


@pytest.mark.parametrize("words", ["keys list", "keys local", "audit list", "knowledge tree"])
def test_there_is_nothing_to_work_on_if_everything_is_in_the_servers_memory(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAGOMAN_STORAGE__ENGINE", "memory")
    result = dragoman(*words.split())
    assert (result.exit_code, "storage.engine is memory" in result.stderr) == (2, True)


def test_an_interrupted_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    async def be_interrupted(_: OpenStorage) -> None:
        signal.raise_signal(signal.SIGINT)
        await asyncio.Event().wait()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(typer.Exit) as ended:
            stored(be_interrupted)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (ended.value.exit_code, capsys.readouterr().err) == (130, "dragoman: interrupted\n")


def test_the_secret_of_the_data_directory_is_printed_and_stays_the_same(data: Path) -> None:
    first, second = dragoman("keys", "local"), dragoman("keys", "local")
    assert (first.exit_code, first.stdout) == (0, f"{(data / 'keys' / 'local').read_text()}\n")
    assert second.stdout == first.stdout
    (data / "keys" / "local").chmod(0o644)
    refused = dragoman("keys", "local")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "others than its owner can read it" in refused.stderr
