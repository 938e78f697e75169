"""Artifacts in a bucket: a store of the same library in memory takes its place, and links are signed offline.

No bucket of a cloud can be reached from here. The forms of the links are those that the clouds document.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from obstore.store import MemoryStore

from dragoman.adapters.buckets import examine_bucket, find_bucket
from dragoman.adapters.obstore_objects import ObstoreLinks, ObstoreObjects, open_bucket
from dragoman.calls.places import Holder
from dragoman.errors import ConfigError, Expired, MalformedEnvelope, NotFound, StorageUnavailable, Unauthorized
from dragoman.gateway.keeping import ArtifactBucket, open_objects
from dragoman.gateway.links import LINK_SECONDS, ArtifactLink, SignedLinks
from dragoman.gateway.objects import LinkKeys, object_key
from dragoman.gateway.settings import GatewayConfig
from dragoman.storage.port import PurgeClock
from dragoman.testing import ManualClock
from tests.contract.engines import memory
from tests.support.purge_clock import PromptStorage

NAME = "acme-agent-data-uploads-prod"
CONTENT = b'{"a": "' + b"x" * 600_000 + b'"}'
HASH = sha256(CONTENT).hexdigest()
KEY = object_key("acme", HASH)
HOSTS = {"s3": "s3.eu-central-1.amazonaws.com", "gs": "storage.googleapis.com"}


async def pieces(content: bytes = CONTENT) -> AsyncIterator[bytes]:
    for start in range(0, len(content), 100_000):
        yield content[start : start + 100_000]


@pytest.fixture
def store(tmp_path: Path) -> ObstoreObjects:
    return ObstoreObjects(MemoryStore(), tmp_path)


async def content_of(store: ObstoreObjects, start: int = 0, end: int | None = None) -> bytes:
    return b"".join([piece async for piece in store.read(KEY, start, end)])


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_an_object_is_in_the_bucket_when_it_is_committed_and_no_file_is_left(
    store: ObstoreObjects, tmp_path: Path
) -> None:
    draft = await store.write(pieces())
    assert (draft.sha256, draft.size, await store.size(KEY)) == (HASH, len(CONTENT), None)
    await draft.commit(KEY)
    draft.discard()
    assert (await store.size(KEY), await content_of(store), files_in(tmp_path)) == (len(CONTENT), CONTENT, [])


@pytest.mark.parametrize(("start", "end"), [(0, 1), (5, 5), (0, None), (7, 300_000), (600_000, None)])
async def test_any_part_of_an_object_can_be_read(store: ObstoreObjects, start: int, end: int | None) -> None:
    await (await store.write(pieces())).commit(KEY)
    assert await content_of(store, start, end) == CONTENT[start:end]


async def test_a_deleted_object_is_gone_and_can_be_deleted_again(store: ObstoreObjects) -> None:
    await (await store.write(pieces())).commit(KEY)
    await store.delete(KEY)
    await store.delete(KEY)
    assert await store.size(KEY) is None
    with pytest.raises(StorageUnavailable):
        await content_of(store)


async def test_what_is_no_key_leads_nowhere(store: ObstoreObjects) -> None:
    draft = await store.write(pieces())
    for key in ("../x", HASH, f"{KEY}/"):
        with pytest.raises(ValueError, match="is no key"):
            await draft.commit(key)
        for asked in (store.size(key), store.delete(key), anext(store.read(key))):
            with pytest.raises(ValueError, match="is no key"):
                await asked
    draft.discard()


async def test_drafts_that_were_left_behind_are_swept_and_nothing_is_listed(
    store: ObstoreObjects, tmp_path: Path
) -> None:
    await (await store.write(pieces())).commit(KEY)
    await store.write(pieces())
    assert len(files_in(tmp_path)) == 2
    assert await store.sweep(10.0**10, 10.0**10) == []
    assert (files_in(tmp_path), await content_of(store)) == ([], CONTENT)


async def test_arguments_are_kept_in_a_bucket_and_their_rows_in_the_storage(tmp_path: Path) -> None:
    clock = ManualClock()
    storage = PromptStorage(memory(tmp_path, clock=clock), clock)
    links = SignedLinks(storage.port(LinkKeys), clock, storage.port(PurgeClock))
    kept = open_objects(storage, GatewayConfig(), clock, ArtifactBucket(ObstoreObjects(MemoryStore(), tmp_path), links))
    await kept.objects.keep("acme", "application/json", pieces())
    assert kept.links is None
    assert await kept.objects.arguments(Holder("acme"), HASH) == json.loads(CONTENT)
    clock.advance(86_400)
    assert await kept.objects.sweep() == {"deleted": 1, "nameless": 0}
    with pytest.raises(NotFound):
        await kept.objects.arguments(Holder("acme"), HASH)
    await storage.close()


# Links.


def service_account() -> str:
    private = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return json.dumps(
        {
            "type": "service_account",
            "project_id": "made-up",
            "private_key_id": "made-up",
            "private_key": private.decode(),
            "client_email": "dragoman@made-up.iam.gserviceaccount.com",
            "client_id": "1",
            "token_uri": "https://oauth2.googleapis.com/token",
        }
    )


@pytest.fixture(params=["s3", "gs"])
def scheme(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAMADEUP")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "made-up")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", service_account())
    return str(request.param)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime.now(UTC))  # The library signs for the machine's own time.


@pytest.fixture
def links(scheme: str, clock: ManualClock) -> ObstoreLinks:
    return ObstoreLinks(open_bucket(f"{scheme}://{NAME}/of/mine"), clock)


LINK = ArtifactLink("acme", HASH, "text/plain", 0)


@pytest.mark.slow
@pytest.mark.requirement("MC-ART-01", "MC-ART-02")
async def test_a_link_has_the_form_that_the_cloud_documents(links: ObstoreLinks, scheme: str) -> None:
    uri = await links.make(LINK, "ignored")
    parts, query = urlsplit(uri), parse_qs(urlsplit(uri).query, strict_parsing=True)
    assert (parts.scheme, parts.netloc, parts.path) == ("https", HOSTS[scheme], f"/{NAME}/of/mine/{KEY}")
    vendor, algorithm = ("Amz", "AWS4-HMAC-SHA256") if scheme == "s3" else ("Goog", "GOOG4-RSA-SHA256")
    names = ("Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature")
    assert query.keys() == {f"X-{vendor}-{name}" for name in names}
    values = {name: query[f"X-{vendor}-{name}"][0] for name in names}
    assert (values["Algorithm"], values["Expires"], values["SignedHeaders"]) == (algorithm, "900", "host")
    assert re.fullmatch(r"\d{8}T\d{6}Z", values["Date"])
    ending = "eu-central-1/s3/aws4_request" if scheme == "s3" else "auto/storage/goog4_request"
    assert values["Credential"].endswith(f"/{values['Date'][:8]}/{ending}")
    assert re.fullmatch(r"[0-9a-f]{64}" if scheme == "s3" else r"[0-9a-f]{512}", values["Signature"])


@pytest.mark.requirement("MC-ART-01")
async def test_a_link_of_the_tenants_own_object_is_read_before_it_expires(
    links: ObstoreLinks, clock: ManualClock
) -> None:
    uri = await links.make(LINK, "")
    assert await links.read(uri, "acme") == HASH
    clock.advance(LINK_SECONDS + 1)
    with pytest.raises(Expired):
        await links.read(uri, "acme")


@pytest.mark.requirement("MC-ART-01")
async def test_a_link_to_anything_else_is_refused(links: ObstoreLinks, scheme: str) -> None:
    uri = await links.make(LINK, "")
    with pytest.raises(Unauthorized):
        await links.read(uri, "other")
    alterations = [
        ("https://", "http://"),
        (HOSTS[scheme], "evil.example"),
        (HOSTS[scheme], f"{HOSTS[scheme]}@evil.example"),
        (HOSTS[scheme], f"{HOSTS[scheme]}:8443"),
        (NAME, NAME.replace("acme", "evil")),
        ("/of/mine", "/of/others"),
        ("/of/mine", "/of/../of/mine"),
        ("/of/mine", "/of%2Fmine"),
        (KEY[:32], "0" * 32),
        ("-Expires=900", "-Expires=901"),
        ("-Expires=900", "-Expires=-1"),
        ("-Expires=900", "-Expires=x"),
        ("-Expires=900", "-Expires=900&X-More=1"),
        ("-Date=2", "-Date=9"),
        ("-Date=", "-Moment="),
        (HASH, HASH.upper()),
        (HASH, f"{HASH}/"),
        ("-Signature=", "-Signature=1&X-Amz-Date="),
    ]
    for old, new in alterations:
        assert old in uri, old
        with pytest.raises((Unauthorized, MalformedEnvelope)):
            await links.read(uri.replace(old, new), "acme")
    for other in (
        "",
        "https://[",
        f"/mcp/artifacts/{HASH}?a=b",
        f"{uri}#x",
        f"{uri}&{'a' * 5000}=1",
        uri.partition("?")[0],
    ):
        with pytest.raises((Unauthorized, MalformedEnvelope)):
            await links.read(other, "acme")


async def test_a_link_from_the_future_is_refused(scheme: str, clock: ManualClock) -> None:
    links = ObstoreLinks(open_bucket(f"{scheme}://{NAME}"), ManualClock(clock.now() - timedelta(minutes=5)))
    with pytest.raises(Unauthorized):
        await links.read(await links.make(LINK, ""), "acme")


# The setting.


def test_without_the_setting_there_is_no_bucket(tmp_path: Path, clock: ManualClock) -> None:
    assert find_bucket(GatewayConfig(), tmp_path, clock) is None


def test_the_setting_names_the_bucket(tmp_path: Path, clock: ManualClock, scheme: str) -> None:
    found = find_bucket(GatewayConfig(artifact_store=f"{scheme}://{NAME}"), tmp_path, clock)
    assert found is not None
    assert isinstance(found.store, ObstoreObjects)
    assert isinstance(found.links, ObstoreLinks)


def test_credentials_that_cannot_be_used_are_a_problem_of_the_setting(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", "no key, but a secret")
    with pytest.raises(ConfigError, match=r"gateway\.artifact_store: cannot be used") as refused:
        find_bucket(GatewayConfig(artifact_store=f"gs://{NAME}"), tmp_path, clock)
    assert "secret" not in str(refused.value)


# What `dragoman doctor` finds out.


class Cloud(BaseHTTPRequestHandler):
    """As much of S3 as the doctor asks for. It knows by the signature who is asking."""

    may_list: ClassVar[frozenset[str]] = frozenset()
    seen: ClassVar[list[str]] = []

    def do_HEAD(self) -> None:
        self.seen.append(f"HEAD {self.path}")
        self._answer(404)

    def do_GET(self) -> None:
        self.seen.append(f"GET {self.path}")
        asking = "own" if "Authorization" in self.headers else "anybody"
        self._answer(200 if asking in self.may_list else 403)

    def _answer(self, status: int) -> None:
        listed = f"<ListBucketResult><Name>{NAME}</Name><KeyCount>0</KeyCount></ListBucketResult>".encode()
        body = listed if status == 200 else b"<Error><Code>AccessDenied</Code></Error>"
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Not to stderr."""


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Cloud]]:
    class Own(Cloud):
        seen: ClassVar[list[str]] = []

    with ThreadingHTTPServer(("127.0.0.1", 0), Own) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        environ = {
            "AWS_ACCESS_KEY_ID": "AKIAMADEUP",
            "AWS_SECRET_ACCESS_KEY": "made-up",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
            "AWS_ALLOW_HTTP": "true",
        }
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        yield Own
        server.shutdown()


def verdicts() -> list[tuple[str, str]]:
    found = examine_bucket(GatewayConfig(artifact_store=f"s3://{NAME}"), os.environ)
    return [(each.verdict, each.message) for each in found]


UNCHECKED = ("warning", f"s3://{NAME}: uniform access and public listing were not checked")


@pytest.mark.requirement("MC-ART-02")
@pytest.mark.parametrize(
    ("may_list", "found"),
    [
        ((), ("ok", f"s3://{NAME} cannot be listed")),
        (("own",), ("warning", f"the server's own credentials can list s3://{NAME}")),
        (("own", "anybody"), ("problem", f"anybody can list s3://{NAME}")),
    ],
)
def test_a_bucket_that_can_be_listed_is_found(
    cloud: type[Cloud], may_list: tuple[str, ...], found: tuple[str, str]
) -> None:
    cloud.may_list = frozenset(may_list)
    assert verdicts() == [("ok", f"s3://{NAME} can be reached"), found, UNCHECKED]
    assert {each.partition(" ")[0] for each in cloud.seen} == {"HEAD", "GET"}


def test_a_bucket_that_cannot_be_reached_is_a_problem(monkeypatch: pytest.MonkeyPatch, cloud: type[Cloud]) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    (problem, _) = verdicts()
    assert (problem[0], problem[1].partition(":")[0]) == ("problem", "s3")


@pytest.mark.requirement("MC-ART-02")
@pytest.mark.parametrize("url", [f"s3://{NAME}", f"gs://{NAME}"])
def test_without_credentials_nothing_is_checked_and_that_is_said(url: str) -> None:
    (finding,) = examine_bucket(GatewayConfig(artifact_store=url), {})
    assert (finding.verdict, "nothing about the bucket was checked" in finding.message) == ("warning", True)


def test_without_a_bucket_there_is_nothing_to_check() -> None:
    assert [*examine_bucket(GatewayConfig(), {})] == []
