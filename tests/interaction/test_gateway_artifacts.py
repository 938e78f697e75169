"""What is too large for a message travels as an artifact: sent once, linked to for a while, read by key."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from dragoman.calls.places import Holder
from dragoman.calls.stages import check_request
from dragoman.errors import NotFound
from dragoman.gateway import asking
from dragoman.gateway.answers import ActionAnswers
from dragoman.gateway.artifacts import MOST_UPLOADS
from dragoman.gateway.keeping import open_objects
from dragoman.knowledge.actions import Action
from dragoman.storage.port import PurgeClock
from tests.support.gateway import create_args
from tests.support.gateway_artifacts import (
    ARTIFACTS,
    JSON,
    Upload,
    as_json,
    begin_pieces,
    begin_put,
    by_artifact,
    fetch,
    hash_of,
    put,
    put_signed,
    stored,
)
from tests.support.gateway_serving import INTERNAL, TRANSPORTS, internal, open_gateway
from tests.support.purge_clock import let_pass
from tests.support.waiting import until

BODY = "äö\n" * 100_000


def large_args(**fields: Any) -> dict[str, Any]:
    return create_args(content={"mime_type": "text/plain", "body": BODY}, **fields)


# Sending and reading.


@pytest.mark.requirement("MC-ART-01")
@pytest.mark.parametrize("is_durable", [True, False])
async def test_what_was_sent_can_be_read_with_the_link_for_a_quarter_of_an_hour(
    tmp_path: Path, is_durable: bool
) -> None:
    content = BODY.encode()
    async with open_gateway(folder=tmp_path if is_durable else None) as gateway:
        response = await put(gateway, content, "text/markdown; charset=UTF-8")
        assert (response.status, response.json["ok"], response.headers["x-ratelimit-limit"]) == (201, True, "120")
        data = response.json["data"]
        assert data.keys() == {"artifact_uri", "artifact_hash", "expires_at"}
        assert data["artifact_hash"] == hash_of(content)
        assert data["artifact_uri"].startswith(f"http://127.0.0.1{ARTIFACTS}/{hash_of(content)}?")
        read = await fetch(gateway, data["artifact_uri"])
        assert (read.status, read.body) == (200, content)
        gateway.clock.skip(899)
        assert (await fetch(gateway, data["artifact_uri"])).status == 200
        gateway.clock.advance(1)
        assert (await fetch(gateway, data["artifact_uri"])).status == 403


async def test_an_artifact_is_served_as_an_attachment_that_nothing_can_run_in() -> None:
    async with open_gateway() as gateway:
        read = await fetch(gateway, (await stored(gateway, b"{}", JSON))["artifact_uri"])
    assert read.headers == {
        "content-disposition": "attachment",
        "x-content-type-options": "nosniff",
        "cache-control": "private, no-store",
        "content-security-policy": "sandbox; default-src 'none'",
        "referrer-policy": "no-referrer",
        "accept-ranges": "bytes",
        "content-type": "application/json",
        "etag": f'"{hash_of(b"{}")}"',
        "content-length": "2",
    }


@pytest.mark.parametrize(
    ("asked", "status", "body", "range"),
    [
        ("bytes=0-0", 206, b"0", "bytes 0-0/10"),
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=-99", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=5-999", 206, b"56789", "bytes 5-9/10"),
        ("bytes=10-", 416, b"", "bytes */10"),
        ("bytes=-0", 416, b"", "bytes */10"),
        ("bytes=4-2", 200, b"0123456789", None),
        ("bytes=0-1,3-4", 200, b"0123456789", None),
        ("bytes=-", 200, b"0123456789", None),
        ("lines=1-2", 200, b"0123456789", None),
        (f"bytes={'9' * 40}-", 200, b"0123456789", None),
    ],
)
async def test_one_range_of_an_artifact_can_be_asked_for(
    asked: str, status: int, body: bytes, range: str | None
) -> None:
    async with open_gateway() as gateway:
        read = await fetch(gateway, (await stored(gateway, b"0123456789"))["artifact_uri"], range=asked)
    assert (read.status, read.body, read.headers.get("content-range")) == (status, body, range)
    assert read.headers["content-length"] == str(len(body))


async def test_a_range_under_another_condition_is_ignored() -> None:
    async with open_gateway() as gateway:
        uri = (await stored(gateway, b"0123456789"))["artifact_uri"]
        own = await fetch(gateway, uri, range="bytes=0-1", if_range=f'"{hash_of(b"0123456789")}"')
        other = await fetch(gateway, uri, range="bytes=0-1", if_range='"other"')
    assert (own.status, other.status) == (206, 200)


@pytest.mark.requirement("MC-ART-01")
async def test_a_signed_upload_is_kept_if_its_hash_is_the_signed_one(tmp_path: Path) -> None:
    async with open_gateway(folder=tmp_path) as gateway:
        signer = await gateway.signer("agent")
        assert (await put_signed(gateway, signer, b"signed")).status == 201
        token = gateway.token(signer, b"signed", ARTIFACTS, "PUT")
        other = await put(gateway, b"altered", token=token)
        assert (other.status, other.json["error"]["code"]) == (401, "UNAUTHORIZED")
        again = await put(gateway, b"signed", token=token)
        assert again.status == 401  # The nonce was used.
        assert (await put_signed(gateway, signer, b"a", body_sha256="../../x")).status == 401
        assert (await put(gateway, b"a", token=gateway.token(signer, b"a"))).status == 401  # For another address.
    assert files_in(tmp_path) == [hash_of(b"signed")]


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "artifacts").rglob("*") if path.is_file())


def sizes_in(folder: Path) -> list[int]:
    return [path.stat().st_size for path in (folder / "artifacts").rglob("*") if path.is_file()]


@pytest.mark.parametrize(("role", "status"), [("owner", 201), ("editor", 201), ("agent", 201), ("viewer", 403)])
async def test_whoever_may_write_may_send_artifacts(role: str, status: int) -> None:
    async with open_gateway() as gateway:
        assert (await put_signed(gateway, await gateway.signer(role), b"a")).status == status


async def test_a_caller_of_several_tenants_names_one() -> None:
    callers = {INTERNAL: internal("owner", tenants=("acme", "other"))}
    async with open_gateway({"auth": {"callers": callers}}) as gateway:
        unnamed = await put(gateway, b"a")
        assert (unnamed.status, unnamed.json["error"]["details"]["path"]) == (400, "Dragoman-Tenant")
        assert (await put(gateway, b"a", Dragoman_Tenant="third")).status == 403
        named = await put(gateway, b"a", Dragoman_Tenant="other")
    assert (named.status, "tenant=other&" in named.json["data"]["artifact_uri"]) == (201, True)


@pytest.mark.requirement("MC-ART-03", "MC-TEST-06")
@pytest.mark.parametrize(
    ("mime", "content", "status"),
    [
        ("text/html", b"<p>", 400),
        ("application/zip", b"PK", 400),
        (None, b"a", 400),
        ("text/plain; charset=latin-1", b"a", 400),
        ("text/plain", b"PK\x03\x04\x14\x00", 422),
        ("text/plain", "ä".encode("latin-1"), 422),
        ("application/json", b"{", 422),
        ("application/json", b'{"a": "\xff"}', 422),
    ],
)
async def test_a_type_that_is_not_allowed_or_does_not_fit_is_refused(
    tmp_path: Path, mime: str | None, content: bytes, status: int
) -> None:
    async with open_gateway(folder=tmp_path) as gateway:
        response = await put(gateway, content, mime)
    assert (response.status, response.json["ok"], files_in(tmp_path)) == (status, False, [])


async def test_the_types_that_are_allowed_are_a_setting() -> None:
    async with open_gateway({"gateway": {"enabled": True, "mime_types": ["application/pdf"]}}) as gateway:
        assert (await put(gateway, b"%PDF\xff\0", "application/pdf")).status == 201
        assert (await put(gateway, b"a", "text/plain")).status == 400


@pytest.mark.parametrize("is_chunked", [True, False])
async def test_an_artifact_may_be_as_large_as_the_limit_and_not_larger(tmp_path: Path, is_chunked: bool) -> None:
    limit = 300_000
    settings = {"gateway": {"enabled": True, "max_artifact_bytes": limit}, "limits": {"max_request_bytes": 1000}}
    async with open_gateway(settings, tmp_path) as gateway:
        for size, status in ((limit, 201), (limit + 1, 400)):
            content = b"x" * size
            asked = begin_pieces(gateway, None if is_chunked else str(size))
            for start in range(0, size, 65_536):
                asked.feed(content[start : start + 65_536])
            asked.feed(b"", more=False)
            await asked.task
            assert asked.response.status == status
        assert asked.response.json["error"]["details"]["limit"] == limit
    assert files_in(tmp_path) == [hash_of(b"x" * limit)]


@pytest.mark.parametrize("headers", [{"content_length": "67108865"}, {"content_length": "9" * 30}])
async def test_a_body_that_says_it_is_too_large_is_refused_before_it_is_read(headers: dict[str, str]) -> None:
    async with open_gateway() as gateway:
        asked = begin_pieces(gateway, headers["content_length"])
        await asked.task
        assert asked.response.status == 400


# How many at a time.


async def test_so_many_uploads_run_at_a_time_for_a_tenant_and_in_all(tmp_path: Path) -> None:
    callers = {
        f"svc:{name}": internal("owner", tenants=(name,), token=f"token-of-{name}-that-is-long") for name in "abcd"
    }
    async with open_gateway({"auth": {"callers": callers}}, tmp_path) as gateway:

        def begin(name: str) -> Upload:
            asked = begin_pieces(gateway, None, f"token-of-{name}-that-is-long")
            asked.feed(b"a piece of ")
            return asked

        async def is_refused(name: str) -> bool:
            refused = begin(name)
            await refused.task
            return (refused.response.status, refused.response.headers["retry-after"]) == (429, "1")

        slow: list[Upload] = []
        for name, count in (("a", 6), ("b", 1), ("c", 1)):  # Of eight: what leaves a place for others.
            slow.extend(begin(name) for _ in range(count))
            await until(lambda: len(files_in(tmp_path)) == len(slow))
            assert await is_refused(name)
        assert len(slow) == MOST_UPLOADS
        assert await is_refused("d")
        for each in slow[1:]:
            each.leave()
            await each.task
        slow[0].feed(b"an upload", more=False)
        await slow[0].task
        assert slow[0].response.status == 201
        assert files_in(tmp_path) == [hash_of(b"a piece of an upload")]
        last = begin("d")
        last.feed(b"", more=False)
        await last.task
        assert last.response.status == 201


async def test_so_many_downloads_run_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.gateway.artifacts.MOST_DOWNLOADS", 0)
    async with open_gateway() as gateway:
        refused = await fetch(gateway, (await stored(gateway, b"a"))["artifact_uri"])
    assert (refused.status, refused.json["error"]["message"]) == (
        429,
        "All 0 slots for downloads are taken",
    )


async def test_an_upload_that_takes_too_long_leaves_nothing(tmp_path: Path) -> None:
    async with open_gateway(folder=tmp_path) as gateway:
        asked = begin_pieces(gateway, None)
        asked.feed(b"slow")
        await until(lambda: sizes_in(tmp_path) == [4])
        gateway.clock.skip(601)
        asked.feed(b"er")
        await asked.task
        assert (asked.response.status, files_in(tmp_path)) == (400, [])


# Instead of arguments.


@pytest.mark.slow
@pytest.mark.requirement("MC-ART-01", "MC-TEST-06")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_arguments_that_are_too_large_for_a_message_travel_as_an_artifact(transport: str, tmp_path: Path) -> None:
    args = large_args()
    async with open_gateway(folder=tmp_path, transport=transport) as gateway:
        signer = await gateway.signer("owner")
        direct = await gateway.act(signer, "create_document", args)
        assert (direct.status, direct.json["error"]["code"]) == (400, "INVALID_ARGUMENT")
        data = (await put_signed(gateway, signer, as_json(args), JSON)).json["data"]
        done = await gateway.act(signer, "create_document", {}, payload=by_artifact(data))
        assert (done.status, done.json["data"]["revision"]) == (200, 1)
        document = await gateway.documents.get("acme", args["document_id"])
        assert document is not None
        assert document.body == BODY
        assert files_in(tmp_path) == [data["artifact_hash"]]


@pytest.mark.requirement("MC-ART-01", "MC-TEST-06")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_an_expired_link_another_hash_and_another_tenants_link_are_refused(
    transport: str, tmp_path: Path
) -> None:
    async with open_gateway(folder=tmp_path, transport=transport) as gateway:
        signer, other = await gateway.signer("owner"), await gateway.signer("owner", tenant="other")
        data = (await put_signed(gateway, signer, as_json(large_args()), JSON)).json["data"]
        theirs = (await put_signed(gateway, other, as_json(large_args()), JSON)).json["data"]

        async def refused(payload: dict[str, str]) -> tuple[int, str]:
            response = await gateway.act(signer, "create_document", {}, payload=payload)
            return response.status, response.json["error"]["code"]

        assert await refused(by_artifact(data, artifact_hash="0" * 64)) == (400, "INVALID_ARGUMENT")
        assert await refused(by_artifact(theirs)) == (403, "FORBIDDEN")
        assert await refused(by_artifact(data, artifact_hash=theirs["artifact_hash"])) == (400, "INVALID_ARGUMENT")
        gateway.clock.skip(900)
        assert await refused(by_artifact(data)) == (440, "EXPIRED")


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_an_artifact_is_held_to_the_same_schema_as_arguments(transport: str) -> None:
    async with open_gateway(transport=transport) as gateway:
        signer = await gateway.signer("owner")
        for args in ({"more": 1}, [1], large_args(parent_id=5)):
            data = (await put_signed(gateway, signer, as_json(args), JSON)).json["data"]
            response = await gateway.act(signer, "create_document", {}, payload=by_artifact(data))
            assert (response.status, response.json["error"]["code"]) == (422, "UNPROCESSABLE_ENTITY")


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_repeat_with_the_artifact_and_one_with_the_arguments_have_one_effect(transport: str) -> None:
    args, key = create_args(), str(uuid4())
    async with open_gateway(transport=transport) as gateway:
        signer = await gateway.signer("owner")
        data = (await put_signed(gateway, signer, as_json(args), JSON)).json["data"]
        first = await gateway.act(signer, "create_document", {}, payload=by_artifact(data), idempotency_key=key)
        second = await gateway.act(signer, "create_document", args, idempotency_key=key)
        assert (first.status, second.status) == (200, 200)
        assert first.json["data"] == second.json["data"]


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        ({}, "payload.args"),
        ({"args": None}, "payload.args"),
        ({"args": {}, "artifact_uri": "x", "artifact_hash": "0" * 64}, "payload.args"),
        ({"args": {}, "artifact_hash": "0" * 64}, "payload.args"),
        ({"artifact_uri": "x"}, "payload.artifact_hash"),
        ({"artifact_hash": "0" * 64}, "payload.artifact_uri"),
        ({"artifact_uri": "x", "artifact_hash": "0" * 63}, "payload.artifact_hash"),
        ({"artifact_uri": "x", "artifact_hash": "0" * 63 + "g"}, "payload.artifact_hash"),
        ({"artifact_uri": "x", "artifact_hash": "0" * 63 + "\n"}, "payload.artifact_hash"),
        ({"artifact_uri": "x", "artifact_hash": "0" * 64 + "\n"}, "payload.artifact_hash"),
        ({"artifact_uri": 1, "artifact_hash": "0" * 64}, "payload.artifact_uri"),
        ({"artifact_uri": "x" * 5000, "artifact_hash": "0" * 64}, "payload.artifact_uri"),
    ],
)
async def test_a_payload_is_arguments_or_an_artifact(payload: dict[str, Any], path: str) -> None:
    async with open_gateway() as gateway:
        signer = await gateway.signer("owner")
        response = await gateway.act(signer, "create_document", {}, payload={"schema_version": "1.0", **payload})
    assert (response.status, response.json["error"]["details"]["path"]) == (400, path)


async def test_an_artifact_is_there_for_other_processes_and_after_a_restart(tmp_path: Path) -> None:
    async with open_gateway(folder=tmp_path) as first:
        data = await stored(first, b"shared")
        async with open_gateway(folder=tmp_path) as second:
            assert (await fetch(second, data["artifact_uri"])).body == b"shared"
            theirs = await stored(second, b"theirs")
        assert (await fetch(first, theirs["artifact_uri"])).body == b"theirs"
    async with open_gateway(folder=tmp_path) as third:
        assert (await fetch(third, data["artifact_uri"])).body == b"shared"


async def test_uploads_count_against_the_rate(tmp_path: Path) -> None:
    settings = {"gateway": {"enabled": True, "requests_per_minute_per_principal": 2}}
    async with open_gateway(settings, tmp_path) as gateway:
        statuses = [(await put(gateway, b"%d" % number)).status for number in range(3)]
    assert (statuses, len(files_in(tmp_path))) == ([201, 201, 429], 2)


async def test_a_refused_upload_is_in_the_log_and_begins_nothing() -> None:
    async with open_gateway() as gateway:
        asked = begin_put(gateway, b"a", "text/html")
        await asked.task
        refusals = [entry for entry in gateway.log if entry.get("message") == "request refused"]
    assert len(refusals) == 1


@pytest.mark.slow
async def test_a_request_that_is_carried_out_later_finds_its_artifact_after_the_link_and_the_day_are_over(
    tmp_path: Path,
) -> None:
    args = large_args()
    async with open_gateway({"gateway": {"max_attempts": 1}}, tmp_path, transport="later") as gateway:
        signer = await gateway.signer("owner")
        data = (await put_signed(gateway, signer, as_json(args), JSON)).json["data"]
        orphan = {**args, "parent_id": args["document_id"]}
        kept = (await put_signed(gateway, signer, as_json(orphan), JSON)).json["data"]
        failed = await gateway.act(signer, "create_document", {}, payload=by_artifact(kept))
        assert failed.status == 404
        assert (await gateway.act(signer, "create_document", {}, payload=by_artifact(data))).status == 200
        storage = gateway.runtime.facilities.storage
        objects = open_objects(storage, gateway.runtime.config.gateway, gateway.clock).objects
        await let_pass(storage.port(PurgeClock), gateway.clock, 3 * 86_400 - 7_200)
        await objects.sweep()
        with pytest.raises(NotFound):
            await objects.find("acme", data["artifact_hash"])
        assert (
            await objects.arguments(Holder("acme"), kept["artifact_hash"]) == orphan
        )  # For a redrive of the dead letter.


@pytest.mark.requirement("MC-ART-01")
async def test_a_result_that_is_too_large_for_an_answer_is_an_artifact(tmp_path: Path) -> None:
    async with open_gateway(folder=tmp_path) as gateway:
        objects = open_objects(
            gateway.runtime.facilities.storage, gateway.runtime.config.gateway, gateway.clock
        ).objects
        value = {"response": "x" * 5000}
        small = msgspec.json.decode(await ActionAnswers(objects, 10_000, 10_000).word("acme", value, 1, "", {}))
        assert small["data"] == value
        told = msgspec.json.decode(await ActionAnswers(objects, 1_000, 10_000).word("acme", value, 1, "", {}))
        assert told["data"].keys() == {"artifact_uri", "artifact_hash", "expires_at"}
        shown = await gateway.get(told["data"]["artifact_uri"])
        assert (shown.status, msgspec.json.decode(shown.body)) == (200, value)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_arguments_that_are_nested_too_deep_are_refused(transport: str) -> None:
    async with open_gateway(transport=transport) as gateway:
        signer = await gateway.signer("owner")
        for depth in (150, 900):
            content = b'{"a":' * depth + b"1" + b"}" * depth
            data = (await put_signed(gateway, signer, content, JSON)).json["data"]
            refused = await gateway.act(signer, "create_document", {}, payload=by_artifact(data))
            assert (refused.status, refused.json["error"]["code"]) == (422, "UNPROCESSABLE_ENTITY")
            assert "nested" in refused.json["error"]["message"]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_large_arguments_are_encoded_and_hashed_off_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    body, seen = "x" * 1_000_000, list[tuple[int, bool]]()
    form, encode = asking.canonical_form, check_request.encode_arguments

    def noted(size: int) -> None:
        seen.append((size, threading.current_thread() is threading.main_thread()))

    def canonical_form(action: Action, arguments: Any) -> bytes:
        encoded = form(action, arguments)
        noted(len(encoded))
        return encoded

    def encode_arguments(arguments: Any) -> bytes:
        encoded = encode(arguments)
        noted(len(encoded))
        return encoded

    monkeypatch.setattr(asking, "canonical_form", canonical_form)
    monkeypatch.setattr(check_request, "encode_arguments", encode_arguments)
    async with open_gateway(transport=transport) as gateway:
        signer = await gateway.signer("owner")
        args = create_args(content={"mime_type": "text/plain", "body": body})
        data = await stored(gateway, as_json(args), JSON)
        made = await gateway.act(signer, "create_document", {}, payload=by_artifact(data))
        assert made.status == 200, made
    assert [on_loop for size, on_loop in seen if size > len(body)] == [False]
