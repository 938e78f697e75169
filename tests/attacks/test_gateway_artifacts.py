"""Artifacts that are not what they seem, links that were altered, and uploads that never end."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import closing
from io import BytesIO
from pathlib import Path
from urllib.parse import quote, urlsplit
from zipfile import ZipFile

import pytest

from dragoman.gateway.objects import object_key
from tests.support.gateway import Signer, as_body, create_args
from tests.support.gateway_artifacts import ARTIFACTS, JSON, TEXT, as_json, begin_pieces, hash_of
from tests.support.gateway_process import CREATE, GatewayProcess, add_keys, code_of
from tests.support.gateway_serving import open_gateway
from tests.support.http_wire import Response, request
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

ACME, OTHER = Signer("acme"), Signer("other")
LARGEST = 67_108_864


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gateway")
    add_keys(folder, ACME, OTHER)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[GatewayProcess]:
    with GatewayProcess(folder) as server:
        yield server


def send(
    server: GatewayProcess,
    content: bytes,
    mime: str = TEXT,
    signer: Signer = ACME,
    path: str = ARTIFACTS,
    **fields: str,
) -> Response:
    token = signer.token(content, server.url(path), "PUT")
    headers = {"host": server.host, "authorization": f"Bearer {token}", "content-type": mime, **fields}
    return server.ask(request(content, headers, method="PUT", path=path))


def stored(server: GatewayProcess, content: bytes, mime: str = TEXT, signer: Signer = ACME) -> dict[str, str]:
    answered = send(server, content, mime, signer)
    assert answered.status == 201, answered
    data: dict[str, str] = answered.json["data"]
    return data


def follow(server: GatewayProcess, target: str, method: str = "GET", **headers: str) -> Response:
    parts = urlsplit(target)
    target = target[len(f"{parts.scheme}://{parts.netloc}") :] if parts.netloc else target
    return server.ask(
        request(None, {"host": server.host, **headers}, method=method, path=target), is_head=method == "HEAD"
    )


def act(server: GatewayProcess, uri: str, hash: str, signer: Signer = ACME) -> Response:
    payload = {"schema_version": "1.0", "artifact_uri": uri, "artifact_hash": hash}
    body = as_body(signer.envelope(CREATE, {}, payload=payload))
    return server.submit(signer, body)


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "artifacts").rglob("*") if path.is_file())


def fields_of(uri: str) -> dict[str, str]:
    return dict(field.split("=") for field in urlsplit(uri).query.split("&"))


# Links.


def test_a_link_that_is_altered_in_any_part_opens_nothing(server: GatewayProcess) -> None:
    content = as_json(create_args())
    uri, hash = (stored(server, content, JSON)[name] for name in ("artifact_uri", "artifact_hash"))
    others = stored(server, b"other", signer=OTHER)["artifact_uri"]
    own, theirs = fields_of(uri), fields_of(others)
    later = str(int(own["expires"]) + 1)
    kid = own["key"]
    changes: list[dict[str, str]] = [
        {"tenant": "other"}, {"tenant": "ACME"}, {"tenant": "acme%00"}, {"tenant": ""},
        {"type": quote("text/html", safe="")}, {"type": ""}, {"type": "%2e%2e%2f"},
        {"expires": later}, {"expires": "99999999999"}, {"expires": f"0{own['expires']}"}, {"expires": "-1"},
        {"expires": f"{own['expires']}.0"}, {"expires": "1e10"},
        {"key": kid[::-1]}, {"key": "0" * 16}, {"key": "../../x"}, {"key": kid.upper()},
        {"signature": theirs["signature"]}, {"signature": ""}, {"signature": "A" * 43},
        {"signature": own["signature"][:-1]}, {"signature": own["signature"] + "="},
        {"signature": own["signature"].swapcase()},
    ]  # fmt: skip
    tried = [
        "&".join(f"{name}={value}" for name, value in (own | change).items())
        for change in changes
        if own | change != own
    ]
    query = urlsplit(uri).query
    tried += ["", "&", query + "&", query + "&x=1", "x=1&" + query, query.replace("&", ";"), query.upper(), query * 2]
    for each in tried:
        altered = f"{ARTIFACTS}/{hash}?{each}"
        answered = follow(server, altered)
        assert (answered.status, code_of(answered)) == (403, "FORBIDDEN"), each
        assert act(server, altered, hash).status in (400, 403), each
    assert act(server, uri, hash).status == 200


@pytest.mark.parametrize(
    "place",
    [
        "../dragoman.db",
        "..%2f..%2fdragoman.db",
        "%2e%2e/%2e%2e/etc/passwd",
        "0" * 64,
        "0" * 63 + "%00",
        "/etc/passwd",
        f"{object_key('acme', '0' * 64)}",
        "",
        "*",
    ],
)
def test_a_path_in_the_place_of_a_hash_leads_nowhere(server: GatewayProcess, place: str) -> None:
    uri = stored(server, b"some text")["artifact_uri"]
    answered = follow(server, f"{ARTIFACTS}/{place}?{urlsplit(uri).query}")
    assert (answered.status, code_of(answered)) == (403, "FORBIDDEN")
    assert act(server, f"{ARTIFACTS}/{place}?{urlsplit(uri).query}", "0" * 64).status in (400, 403)


def test_there_is_no_list_of_artifacts(server: GatewayProcess) -> None:
    stored(server, b"some text")
    assert follow(server, ARTIFACTS).status == 405
    for path in (f"{ARTIFACTS}/", f"{ARTIFACTS}/?prefix=", f"{ARTIFACTS}/{object_key('acme', '0' * 64)[:32]}"):
        assert follow(server, path).status == 403


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "get", "TRACE"])
def test_a_link_is_for_get_and_nothing_else(server: GatewayProcess, folder: Path, method: str) -> None:
    data = stored(server, b"only to be read")
    assert follow(server, data["artifact_uri"], method).status in (400, 404, 405, 501)
    assert follow(server, data["artifact_uri"], X_HTTP_Method_Override="DELETE").body == b"only to be read"


def test_another_tenants_artifact_does_not_exist(server: GatewayProcess) -> None:
    content = as_json(create_args())
    theirs = stored(server, content, JSON, OTHER)
    never = theirs["artifact_uri"].replace(theirs["artifact_hash"], "0" * 64)
    answers = [
        act(server, uri, hash) for uri, hash in ((theirs["artifact_uri"], theirs["artifact_hash"]), (never, "0" * 64))
    ]
    assert [(each.status, each.json["error"]["message"]) for each in answers] == [
        (403, answers[0].json["error"]["message"])
    ] * 2
    own = stored(server, content, JSON)
    mixed = own["artifact_uri"].replace("tenant=acme", "tenant=other")
    assert act(server, mixed, own["artifact_hash"], OTHER).status == 403


def test_the_server_never_fetches_an_address_of_a_callers(server: GatewayProcess) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        listener.settimeout(0.01)
        place = f"127.0.0.1:{listener.getsockname()[1]}"
        content = as_json(create_args())
        data = stored(server, content, JSON)
        path = data["artifact_uri"].partition(server.host)[2]
        tried = [f"http://{place}/", f"http://{place}{path}", f"http://{server.host}@{place}{path}", f"//{place}{path}"]
        tried += [
            f"http://{place}/{data['artifact_hash']}",
            f"ftp://{place}/x",
            f"http://{place}\\@{server.host}{path}",
        ]
        for uri in tried:
            act(server, uri, data["artifact_hash"])
        with pytest.raises(TimeoutError):
            listener.accept()


# Uploads.


def zipped() -> bytes:
    made = BytesIO()
    with ZipFile(made, "w") as archive:
        archive.writestr("a.txt", "a" * 1000)
    return made.getvalue()


@pytest.mark.parametrize("mime", [TEXT, "text/markdown", JSON])
@pytest.mark.parametrize(
    "content", [zipped(), b"%PDF-1.7\n\xe2\xe3\xcf\xd3", b"\x7fELF\0", b"\xff\xfe<\0s\0", b"\x1f\x8b\x08", b"MZ\x90\0"]
)
def test_a_program_or_an_archive_is_no_text(server: GatewayProcess, folder: Path, mime: str, content: bytes) -> None:
    before = files_in(folder)
    answered = send(server, content, mime)
    assert (answered.status, code_of(answered), files_in(folder)) == (422, "UNPROCESSABLE_ENTITY", before)


@pytest.mark.parametrize(
    "content", [b"[" * 5_000_000, b'{"a":' * 1_000_000, b'"' + b"\\" * 5_000_000, b"1" * 5_000_000 + b"x"]
)
def test_json_that_is_costly_to_refuse_is_refused(server: GatewayProcess, content: bytes) -> None:
    assert send(server, content, JSON).status == 422
    server.check_health()


def test_arguments_of_many_small_values_are_refused_before_they_take_memory(server: GatewayProcess) -> None:
    data = stored(server, b'{"a":[%s[]]}' % (b"[]," * 5_000_000), JSON)
    before = peak(server.pid)
    answered = act(server, data["artifact_uri"], data["artifact_hash"])
    assert (answered.status, code_of(answered)) == (422, "UNPROCESSABLE_ENTITY")
    assert peak(server.pid) - before < 200 << 20


@pytest.mark.parametrize(
    "headers",
    [
        {"content-encoding": "gzip"},
        {"x-filename": "../../etc/passwd"},
        {"content-disposition": "inline; filename=../../x"},
        {"dragoman-tenant": "other"},
        {"dragoman-tenant": "../acme"},
        {"content-range": "bytes 0-3/100"},
    ],
)
def test_headers_do_not_lead_an_upload_elsewhere(server: GatewayProcess, folder: Path, headers: dict[str, str]) -> None:
    answered = send(server, b"text", **headers)
    if "dragoman-tenant" in headers:
        assert (answered.status, code_of(answered)) == (403, "FORBIDDEN")
        return
    assert answered.status == 201
    read = follow(server, answered.json["data"]["artifact_uri"])
    assert (read.body, read.headers["content-disposition"]) == (b"text", "attachment")
    assert "content-encoding" not in read.headers


def peak(pid: int) -> int:
    """The most memory that a process has had, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) << 10


@pytest.mark.requirement("MC-ART-01")
def test_the_largest_artifact_is_never_whole_in_memory(tmp_path: Path) -> None:
    add_keys(tmp_path, ACME)
    content = b"x" * LARGEST
    with GatewayProcess(tmp_path) as server:
        stored(server, b"warm")
        before = peak(server.pid)
        data = stored(server, content)
        read = follow(server, data["artifact_uri"])
        assert hash_of(read.body) == data["artifact_hash"] == hash_of(content)
        assert peak(server.pid) - before < LARGEST // 2
        more = send(server, content + b"x")
        assert (more.status, code_of(more)) == (400, "INVALID_ARGUMENT")
    assert files_in(tmp_path) == sorted((hash_of(content), hash_of(b"warm")))


async def test_ten_thousand_uploads_that_never_end_leave_nothing(tmp_path: Path) -> None:
    many = {"requests_per_minute_per_tenant": 10**6, "requests_per_minute_per_principal": 10**6}
    async with open_gateway({"gateway": {"enabled": True, **many}}, tmp_path) as gateway:
        descriptors = None
        for _ in range(2500):
            uploads = [begin_pieces(gateway) for _ in range(4)]
            for each in uploads:
                each.feed(b"a piece")
                each.leave()
            for each in uploads:
                await each.task
            descriptors = descriptors or len(os.listdir("/proc/self/fd"))
        assert len(os.listdir("/proc/self/fd")) < descriptors + 50  # Connections to the database, and no more.
        assert files_in(tmp_path) == []
        last = begin_pieces(gateway)
        last.feed(b"whole", more=False)
        await last.task
        assert last.response.status == 201
    assert files_in(tmp_path) == [hash_of(b"whole")]


def test_clients_that_leave_within_the_body_leave_nothing_and_free_their_places(
    server: GatewayProcess, folder: Path
) -> None:
    before = files_in(folder)
    for number in range(20):
        content = b"%d" % number * 100_000
        token = ACME.token(content, server.url(ARTIFACTS), "PUT")
        headers = {"host": server.host, "authorization": f"Bearer {token}", "content-type": TEXT}
        with server.wire() as wire:
            wire.send(request(content, headers, method="PUT", path=ARTIFACTS)[:-50_000])
            wire.wait_until_read()
    data = stored(server, b"the next one")
    assert follow(server, data["artifact_uri"]).body == b"the next one"
    wait_until(lambda: files_in(folder) == sorted((*before, data["artifact_hash"])))


# The disk.


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs prlimit")
def test_a_disk_that_takes_no_more_leaves_nothing_half(tmp_path: Path) -> None:
    add_keys(tmp_path, ACME)
    content = b"x" * 10_000_000
    with GatewayProcess(tmp_path) as server:
        stored(server, b"first")
        limits = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (8_000_000, limits[1]))
        answered = send(server, content)
        assert (answered.status, code_of(answered)) == (503, "UNAVAILABLE")
        assert files_in(tmp_path) == [hash_of(b"first")]
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, limits)
        assert follow(server, stored(server, content)["artifact_uri"]).body == content


@pytest.mark.parametrize("level", ["file", "tenant"])
def test_a_link_in_the_store_is_not_followed(server: GatewayProcess, folder: Path, tmp_path: Path, level: str) -> None:
    content = b"kept at level " + level.encode()
    data = stored(server, content)
    place = folder / "artifacts/objects" / object_key("acme", data["artifact_hash"])
    secret = tmp_path / "secret"
    if level == "file":
        secret.write_bytes(b"s" * len(content))
        moved = place
    else:
        moved = place.parent
    moved.rename(tmp_path / "moved")
    moved.symlink_to(secret if level == "file" else tmp_path / "moved")
    try:
        answered = follow(server, data["artifact_uri"])
        assert (answered.status, code_of(answered)) == (503, "UNAVAILABLE")
        assert b"sss" not in answered.body
    finally:
        moved.unlink()
        (tmp_path / "moved").rename(moved)
    assert follow(server, data["artifact_uri"]).body == content


def test_a_file_that_was_cut_is_not_served(server: GatewayProcess, folder: Path) -> None:
    data = stored(server, b"to be cut short")
    place = folder / "artifacts/objects" / object_key("acme", data["artifact_hash"])
    place.write_bytes(b"to be")
    answered = follow(server, data["artifact_uri"])
    assert (answered.status, code_of(answered)) == (503, "UNAVAILABLE")
    stored(server, b"to be cut short")
    assert follow(server, data["artifact_uri"]).body == b"to be cut short"
