"""Paths, methods, headers and bodies that are not what they seem, against a gateway in a process of its own."""

from __future__ import annotations

import gzip
import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from tests.support.gateway import ACTIONS_PATH, Signer, as_body, create_args
from tests.support.gateway_process import CREATE, DELETE, MOVE, UPDATE, GatewayProcess, add_keys, code_of
from tests.support.http_wire import Response, request

pytestmark = pytest.mark.slow

ACME = Signer("acme")
ROUTE_LIMIT = (1 << 20) + 65_536
ACTION_LIMIT = 131_072


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("gateway")
    add_keys(folder, ACME)
    with GatewayProcess(folder) as server:
        yield server


def a_body(**fields: Any) -> bytes:
    return as_body(ACME.envelope(CREATE, create_args(), **fields))


def posted(server: GatewayProcess, path: str, htu: str | None = None, **headers: str) -> Response:
    """The answer to a POST to `path`, signed for the address `htu`; without one, for the gateway's own."""
    body = a_body()
    return server.post(body, ACME.token(body, htu or server.url()), headers, path)


# Where a request goes.

ELSEWHERE = {
    "/mcp/actions/": 404,
    "//mcp/actions": 404,
    "/mcp//actions": 404,
    "/mcp/./actions": 404,
    "/x/../mcp/actions": 404,
    "/mcp/%2e/actions": 404,
    "/mcp/%2561ctions": 404,
    "/MCP/actions": 404,
    "/mcp/Actions": 404,
    "/mcp/actions;v=1": 404,
    "/mcp/actions%00": 404,
    "/mcp/actions%20": 404,
    "/mcp/actions%0d%0a": 404,
    "/mcp/actions.json": 404,
    "/mcp/\u00e0ctions": 400,
    "/mcp\\actions": 404,
    "/mcp/capabilities": 405,
    "/schemas/mcp/../../mcp/actions": 405,
    "http://gateway.example/mcp/actions": 400,
    "http://127.0.0.1:1/mcp/actions": 400,
    "mcp/actions": 400,
    "*": 400,
}


@pytest.mark.parametrize("path", ELSEWHERE)
def test_no_other_spelling_of_the_path_is_the_gateway(server: GatewayProcess, path: str) -> None:
    before = server.rows()
    for htu in (server.url(), server.url(path)):
        assert posted(server, path, htu).status == ELSEWHERE[path]
    assert server.rows() == before


@pytest.mark.parametrize("path", ["/mcp/%61ctions", "/mcp%2Factions", "/mcp/actions?x=1", "/mcp/actions?"])
def test_a_token_names_the_path_as_it_is_understood_without_its_query(server: GatewayProcess, path: str) -> None:
    assert posted(server, path, server.url(path)).status == 401
    assert posted(server, path).status == 200


def test_an_absolute_target_has_to_be_the_host(server: GatewayProcess) -> None:
    assert posted(server, server.url()).status == 200


ADDRESSES: dict[str, Callable[[str], str]] = {
    "https": lambda url: url.replace("http:", "https:"),
    "capitals in the scheme": lambda url: url.replace("http:", "HTTP:"),
    "another name of the host": lambda url: url.replace("127.0.0.1", "localhost"),
    "no port": lambda url: f"http://127.0.0.1{ACTIONS_PATH}",
    "a port of zeros": lambda url: url.replace("127.0.0.1:", "127.0.0.1:0"),
    "a user": lambda url: url.replace("//", "//user@"),
    "the host as a user": lambda url: url.replace("//", "//gateway.example@"),
    "the host as a beginning": lambda url: url.replace(ACTIONS_PATH, f".gateway.example{ACTIONS_PATH}"),
    "a slash at the end": lambda url: f"{url}/",
    "a doubled slash": lambda url: url.replace("/mcp", "//mcp"),
    "a query": lambda url: f"{url}?x=1",
    "an empty query": lambda url: f"{url}?",
    "a fragment": lambda url: f"{url}#x",
    "capitals in the path": lambda url: url.replace("actions", "Actions"),
    "an encoded path": lambda url: url.replace("actions", "%61ctions"),
    "dots in the path": lambda url: url.replace("/actions", "/./actions"),
    "a path only": lambda url: ACTIONS_PATH,
    "a space": lambda url: f"{url} ",
    "a line's end": lambda url: f"{url}\n",
    "NUL": lambda url: f"{url}\0",
    "full-width letters": lambda url: url.replace("mcp", "\uff4dcp"),
    "3,000 characters": lambda url: url + "/" * 3000,
}


@pytest.mark.parametrize("case", ADDRESSES)
def test_a_token_for_another_address_is_refused(server: GatewayProcess, case: str) -> None:
    answered = posted(server, ACTIONS_PATH, ADDRESSES[case](server.url()))
    assert (answered.status, code_of(answered)) == (401, "UNAUTHORIZED")


@pytest.mark.parametrize("htm", ["post", "Post", "POST ", "GET", "PUT", "POST\0", "POSTPOST", "*"])
def test_a_token_for_another_method_is_refused(server: GatewayProcess, htm: str) -> None:
    answered = server.submit(ACME, a_body(), htm=htm)
    assert (answered.status, code_of(answered)) == (401, "UNAUTHORIZED")


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "HEAD", "TRACE", "post", "QUERY"])
def test_actions_are_posted_and_nothing_else(server: GatewayProcess, method: str) -> None:
    body = a_body()
    token = ACME.token(body, server.url(), method)
    headers = {"host": server.host, "authorization": f"Bearer {token}", "x-http-method-override": "POST"}
    data = request(body, headers, method=method, path=ACTIONS_PATH)
    before = server.rows()
    assert server.ask(data, is_head=method == "HEAD").status in (400, 405, 501)
    assert server.rows() == before


IGNORED = {
    "X-HTTP-Method-Override": "DELETE",
    "X-Original-URL": "/mcp/capabilities",
    "X-Rewrite-URL": "/mcp/capabilities",
    "X-Forwarded-Host": "gateway.example",
    "X-Forwarded-Prefix": "/elsewhere",
    "X-Forwarded-For": "10.0.0.1",
    "Forwarded": "host=gateway.example;proto=https",
    "X-Tenant-Id": "beta",
    "X-Roles": "owner",
    "DPoP": "eyJ",
    "Cookie": "token=1",
}


@pytest.mark.parametrize("name", IGNORED)
def test_headers_that_steer_other_servers_change_nothing(server: GatewayProcess, name: str) -> None:
    assert posted(server, ACTIONS_PATH, **{name: IGNORED[name]}).status == 200
    if name == "X-Forwarded-Host":
        assert (
            posted(server, ACTIONS_PATH, f"http://gateway.example{ACTIONS_PATH}", **{name: IGNORED[name]}).status == 401
        )


def test_another_host_is_not_let_in_whatever_was_signed(server: GatewayProcess) -> None:
    for host, status in (("gateway.example", 421), ("127.0.0.1:1@gateway.example", 421), ("", 421)):
        answered = posted(server, ACTIONS_PATH, f"http://{host}{ACTIONS_PATH}", host=host)
        assert answered.status in (status, 400)


def test_with_a_public_url_the_host_header_decides_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("public")
    add_keys(folder, ACME)
    with GatewayProcess(folder, settings={"gateway.public_url": "https://gateway.example"}) as server:
        public = f"https://gateway.example{ACTIONS_PATH}"
        assert posted(server, ACTIONS_PATH, public).status == 200
        for host in (server.host, "10.1.2.3", "localhost"):
            assert posted(server, ACTIONS_PATH, f"http://{host}{ACTIONS_PATH}", host=host).status == 401


# Headers.


@pytest.mark.parametrize(
    ("extra", "statuses"),
    [
        ([("authorization", "Bearer x"), ("authorization", "Bearer y")], {400}),
        ([("content-type", "application/json"), ("content-type", "text/plain")], {400}),
        ([("content-type", "application/json"), ("content-type", "application/json")], {400}),
        ([("content-length", "10"), ("content-length", "11")], {400}),
        ([("host", "127.0.0.1"), ("host", "localhost")], {400}),
        ([("idempotency-key", "a"), ("idempotency-key", "a")], {400}),
        ([("idempotency-key", "a"), ("Idempotency-Key", "b")], {400}),
        ([("idempotency-key", "")], {400}),
        ([("idempotency-key", "k" * 257)], {400}),
        ([("idempotency-key", "a\tb")], {400}),
        ([("idempotency-key", "\xff")], {400}),
        ([("idempotency-key", "\xe2\x80\x8b")], {400}),
        ([("content-type", "text/plain")], {400}),
        ([("content-type", "application/json-patch+json")], {400}),
        ([("content-type", "")], {400}),
        ([("content-length", "-1")], {400}),
        ([("content-length", "+5")], {400}),
        ([("content-length", "9" * 30)], {400}),
        ([("transfer-encoding", "gzip")], {400, 501}),
        ([("transfer-encoding", "chunked")], {400}),
    ],
)
def test_headers_that_could_be_read_in_two_ways_are_refused(
    server: GatewayProcess, extra: list[tuple[str, str]], statuses: set[int]
) -> None:
    body = a_body()
    before = server.rows()
    answered = server.post(body, ACME.token(body, server.url()), extra)
    assert answered.status in statuses
    assert {**server.rows(), "signing_nonce": 0} == {**before, "signing_nonce": 0}


def test_header_and_field_of_the_idempotency_key_have_to_agree(server: GatewayProcess) -> None:
    body = a_body(idempotency_key="one")
    for key, status in (("two", 400), ("One", 400), ("one", 200)):
        assert server.submit(ACME, body, {"idempotency-key": key}).status == status


def test_a_body_in_chunks_is_the_same_body(server: GatewayProcess) -> None:
    for cut in (1, 100, 10**6):
        body = a_body()
        chunks = [body[start : start + cut] for start in range(0, len(body), cut)]
        framed = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in chunks) + b"0\r\n\r\n"
        head = {"content-length": None, "transfer-encoding": "chunked", "content-type": "application/json"}
        fields = {"host": server.host, "authorization": f"Bearer {ACME.token(body, server.url())}", **head}
        assert server.ask(request(b"", fields, path=ACTIONS_PATH) + framed).status == 200


# Sizes.


@pytest.mark.requirement("MC-ERR-01")
@pytest.mark.parametrize("in_chunks", [False, True])
def test_a_body_at_the_limit_of_the_route_passes_and_one_byte_more_is_400(
    server: GatewayProcess, in_chunks: bool
) -> None:
    for size, status in ((ROUTE_LIMIT, 200), (ROUTE_LIMIT + 1, 400)):
        body = a_body()
        body += b" " * (size - len(body))
        before = server.rows()
        if in_chunks:
            head = {"content-length": None, "transfer-encoding": "chunked", "content-type": "application/json"}
            fields = {"host": server.host, "authorization": f"Bearer {ACME.token(body, server.url())}", **head}
            data = request(b"", fields, path=ACTIONS_PATH) + b"%x\r\n%b\r\n0\r\n\r\n" % (size, body)
        else:
            data = server.data_of(body, ACME.token(body, server.url()))
        answered = server.ask(data)
        assert answered.status == status
        if status == 400:
            assert code_of(answered) == "INVALID_ARGUMENT"
            assert server.rows() == before


def args_of(size: int) -> dict[str, Any]:
    """Arguments of so many bytes."""
    args = create_args()
    args["content"]["body"] += "b" * (size - len(msgspec.json.encode(args)))
    assert len(msgspec.json.encode(args)) == size
    return args


@pytest.mark.parametrize("action", [CREATE, UPDATE])
def test_arguments_at_the_limit_of_the_action_pass_and_one_byte_more_is_400(
    server: GatewayProcess, action: str
) -> None:
    for size, status in ((ACTION_LIMIT, 200), (ACTION_LIMIT + 1, 400)):
        args = args_of(size)
        if action == UPDATE:
            id = server.create(ACME)
            args = {"document_id": id, "patch": {"content": {"body": ""}}, "update_mask": ["content.body"]}
            args["patch"]["content"]["body"] = "b" * (size - len(msgspec.json.encode(args)))
            assert len(msgspec.json.encode(args)) == size
        answered = server.act(ACME, action, args)
        assert answered.status == status, answered
        if status == 400:
            assert code_of(answered) == "INVALID_ARGUMENT"


@pytest.mark.parametrize("spaces", [0, 100_000])
def test_what_is_written_around_the_arguments_does_not_count_against_them(server: GatewayProcess, spaces: int) -> None:
    body = as_body(ACME.envelope(CREATE, args_of(ACTION_LIMIT))).replace(b'"args": {', b'"args": {' + b" " * spaces)
    assert server.submit(ACME, body).status == 200


# What is in the body.

BODIES: dict[str, Callable[[bytes], bytes]] = {
    "a BOM": lambda body: b"\xef\xbb\xbf" + body,
    "UTF-16": lambda body: body.decode().encode("utf-16"),
    "UTF-16 without a BOM": lambda body: body.decode().encode("utf-16-le"),
    "UTF-32": lambda body: body.decode().encode("utf-32"),
    "UTF-7": lambda body: body.replace(b"{", b"+AHs-"),
    "invalid UTF-8": lambda body: body.replace(b"Some text", b"\xff\xfe"),
    "an overlong slash": lambda body: body.replace(b"Some text", b"\xc0\xaf"),
    "a surrogate in UTF-8": lambda body: body.replace(b"Some text", b"\xed\xa0\x80"),
    "half a surrogate pair": lambda body: body.replace(b"Some text", rb"\ud800"),
    "the other half": lambda body: body.replace(b"Some text", rb"\udc00 \ud800"),
    "a bare NUL": lambda body: body.replace(b"Some text", b"\0"),
    "gzip": gzip.compress,
    "nothing": lambda body: b"",
    "null": lambda body: b"null",
    "a list": lambda body: b"[" + body + b"]",
    "a text": lambda body: json.dumps(body.decode()).encode(),
    "two of them": lambda body: body + body,
    "more behind it": lambda body: body + b"x",
    "a comment": lambda body: body[:-1] + b"/* */}",
    "a comma at the end": lambda body: body[:-1] + b",}",
    "single quotes": lambda body: body.replace(b'"', b"'"),
    "NaN": lambda body: body.replace(b"300", b"NaN"),
    "Infinity": lambda body: body.replace(b"300", b"Infinity"),
    "deep lists": lambda body: body.replace(b'"Some text"', b"[" * 400_000 + b"]" * 400_000),
    "deep objects": lambda body: body.replace(b'"Some text"', b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "a number of 5,000 digits": lambda body: body.replace(b"300", b"9" * 5000),
    "ttl_sec a float": lambda body: body.replace(b"300", b"300.0"),
    "ttl_sec a text": lambda body: body.replace(b"300", b'"300"'),
    "ttl_sec true": lambda body: body.replace(b"300", b"true"),
    "ttl_sec 0": lambda body: body.replace(b"300", b"0"),
    "ttl_sec -0": lambda body: body.replace(b"300", b"-0"),
    "ttl_sec 86401": lambda body: body.replace(b"300", b"86401"),
    "a member more": lambda body: b'{"__proto__": {"roles": ["owner"]},' + body[1:],
    "the members of a principal more": lambda body: body.replace(b'"sub"', b'"tenant_id": "beta", "sub"'),
    "a role of no name": lambda body: body.replace(b'["owner"]', b'["admin"]'),
    "a role in capitals": lambda body: body.replace(b'["owner"]', b'["OWNER"]'),
    "a role with a space": lambda body: body.replace(b'["owner"]', b'["owner "]'),
    "a role in Cyrillic": lambda body: body.replace(b'["owner"]', '["\u043ewner"]'.encode()),
    "roles a text": lambda body: body.replace(b'["owner"]', b'"owner"'),
    "roles an object": lambda body: body.replace(b'["owner"]', b'{"owner": true}'),
    "1,000 roles": lambda body: body.replace(b'["owner"]', json.dumps(["owner"] * 1000).encode()),
    "another action": lambda body: body.replace(CREATE.encode(), b"knowledge.drop_documents"),
    "an action that is a tool": lambda body: body.replace(CREATE.encode(), b"health"),
    "an action in capitals": lambda body: body.replace(CREATE.encode(), CREATE.upper().encode()),
    "an action that is a path": lambda body: body.replace(CREATE.encode(), b"../../etc/passwd"),
    "a version of letters": lambda body: body.replace(b'"1.0.0"', b'"1.0.0\\n"'),
    "a later version": lambda body: body.replace(b'"1.0.0"', b'"1.0.1"'),
    "envelope 2.3": lambda body: body.replace(b'"2.2"', b'"2.3"'),
    "envelope 2.2 as a number": lambda body: body.replace(b'"2.2"', b"2.2"),
    "schema 2": lambda body: body.replace(b'"1.0"', b'"2.0"'),
    "args a list": lambda body: body.replace(b'"args": {', b'"args": [{').replace(b"}}}", b"}}]}"),
}


@pytest.mark.parametrize("case", BODIES)
def test_a_body_that_is_no_envelope_is_400_and_has_no_effect(server: GatewayProcess, case: str) -> None:
    original = a_body()
    body = BODIES[case](original)
    assert body != original
    before = server.rows()
    answered = server.submit(ACME, body, {"content-encoding": "gzip"} if case == "gzip" else {})
    assert (answered.status, code_of(answered)) == (400, "INVALID_ARGUMENT"), answered
    after = server.rows()
    assert {**after, "signing_nonce": 0, "gateway_quota": 0} == {**before, "signing_nonce": 0, "gateway_quota": 0}


FIELDS: dict[str, dict[str, Any]] = {
    **{f"{name} with a line's end": {name: "\n"} for name in ("request_id", "correlation_id", "trace_id")},
    "request_id in braces": {"request_id": "{" + str(uuid.uuid4()) + "}"},
    "request_id as a URN": {"request_id": f"urn:uuid:{uuid.uuid4()}"},
    "request_id without hyphens": {"request_id": uuid.uuid4().hex},
    "request_id of other digits": {"request_id": str(uuid.UUID(int=0)).replace("0", "\u0660")},
    "trace_id of zeros": {"trace_id": f"00-{'0' * 32}-{'0' * 16}-01"},
    "trace_id of another version": {"trace_id": f"ff-{'1' * 32}-{'1' * 16}-01"},
    **{
        f"timestamp {each!r}": {"timestamp": each}
        for each in (
            "", "now", "2026-01-31", "2026-01-31T12:00:00", "2026-01-31T12:00:00+01:00", "9999-12-31T23:59:59Z",
            "2026-02-30T00:00:00Z", "2026-01-31T25:00:00Z", "1" * 5000,
        )
    },
    "idempotency_key empty": {"idempotency_key": ""},
    "idempotency_key with NUL": {"idempotency_key": "a\0"},
    "idempotency_key that turns around": {"idempotency_key": "a\u202eb"},
    "idempotency_key too long": {"idempotency_key": "k" * 257},
    "seq negative": {"seq": -1},
    "seq beyond what JSON can say": {"seq": 2**53 + 1},
    "seq of 300 digits": {"seq": 10**300},
    "seq true": {"seq": True},
    "context_id with a line's end": {"context_id": "a\n"},
    "context_id too long": {"context_id": "c" * 257},
    "101 resource_links": {"resource_links": [{}] * 101},
}  # fmt: skip


@pytest.mark.parametrize("case", FIELDS)
def test_a_field_of_another_form_is_400(server: GatewayProcess, case: str) -> None:
    envelope = ACME.envelope(CREATE, create_args())
    for name, value in FIELDS[case].items():
        envelope[name] = envelope[name] + value if value == "\n" else value
    before = server.rows()
    answered = server.submit(ACME, as_body(envelope))
    assert (answered.status, code_of(answered)) == (400, "INVALID_ARGUMENT"), answered
    assert server.rows()["document"] == before["document"]


def test_of_members_that_are_there_twice_the_last_counts_for_every_check(server: GatewayProcess) -> None:
    body = a_body()
    twice = {
        b'"tenant_id": "beta"': 403,
        b'"principal": {"sub": "svc:other", "roles": ["owner"]}': 403,
        b'"principal": {"sub": "svc:writer", "roles": []}': 403,
        b'"timestamp": "2020-01-01T00:00:00Z"': 440,
        b'"ttl_sec": 0': 400,
    }
    for member, status in twice.items():
        assert server.submit(ACME, body[:-1] + b", " + member + b"}").status == status
        if status != 400:
            assert server.submit(ACME, b"{" + member + b", " + body[1:]).status == 200


ARGUMENTS: dict[str, tuple[str, dict[str, Any], int]] = {
    "an id in braces": (CREATE, {"document_id": "{" + str(uuid.uuid4()) + "}"}, 422),
    "an id without hyphens": (CREATE, {"document_id": uuid.uuid4().hex}, 422),
    "an id with a line's end": (CREATE, {"document_id": f"{uuid.uuid4()}\n"}, 422),
    "an id of other digits": (CREATE, {"document_id": str(uuid.UUID(int=0)).replace("0", "\u0660")}, 422),
    "an id with NUL": (CREATE, {"document_id": "\0" * 36}, 422),
    "an id that is a number": (CREATE, {"document_id": 10**40}, 422),
    "an id that is a list": (CREATE, {"document_id": []}, 422),
    "the root as an id": (CREATE, {"document_id": "root"}, 422),
    "a parent of SQL": (CREATE, {"parent_id": "root' OR '1'='1"}, 404),
    "a parent in capitals": (CREATE, {"parent_id": "ROOT"}, 404),
    "a parent that is empty": (CREATE, {"parent_id": ""}, 404),
    "a parent with NUL": (CREATE, {"parent_id": "root\0"}, 404),
    "created after the end of time": (CREATE, {"created_at": "9999-12-31T23:59:59.999999Z"}, 422),
    "created before its beginning": (CREATE, {"created_at": "0001-01-01T00:00:00+23:59"}, 422),
    "deleted after the end of time": (DELETE, {"delete_at": "9999-12-31T23:59:59.999999Z"}, 422),
    "deleted at no time": (DELETE, {"delete_at": "tomorrow"}, 422),
    "an unknown path": (UPDATE, {"patch": {}, "update_mask": ["tenant"]}, 422),
    "a path of Python": (UPDATE, {"patch": {}, "update_mask": ["__class__"]}, 422),
    "another tenant in the patch": (UPDATE, {"patch": {"tenant": "beta"}, "update_mask": []}, 200),  # Without effect.
    "another tenant in the mask": (UPDATE, {"patch": {"tenant": "beta"}, "update_mask": ["tenant"]}, 422),
    "a revision of 40 digits": (UPDATE, {"patch": {}, "update_mask": [], "last_known_revision": 10**40}, 409),
    "a revision of a float": (UPDATE, {"patch": {}, "update_mask": [], "last_known_revision": 1.5}, 422),
    "a mask of many paths": (UPDATE, {"patch": {}, "update_mask": ["metadata.title"] * 5000}, 200),
    "an ordering of 40 digits": (MOVE, {"new_parent_id": "root", "position": {"ordering": 10**40}}, 200),
    "itself as a parent": (MOVE, {"new_parent_id": "itself"}, 422),
    "no sibling": (MOVE, {"new_parent_id": "root", "position": {"before": "root"}}, 422),
    "roles in the arguments": (MOVE, {"new_parent_id": "root", "roles": ["owner"]}, 200),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_arguments_that_are_odd_are_told_apart_without_a_failure(server: GatewayProcess, case: str) -> None:
    action, given, status = ARGUMENTS[case]
    id = server.create(ACME)
    args = {**create_args(), **given} if action == CREATE else {"document_id": id, **given}
    if args.get("new_parent_id") == "itself":
        args["new_parent_id"] = id.upper()
    answered = server.act(ACME, action, args)
    assert answered.status == status, answered
    if status != 200:
        code_of(answered)


def test_a_server_that_was_sent_all_of_it_is_well(server: GatewayProcess) -> None:
    server.check_health()
    assert server.act(ACME, CREATE, create_args()).status == 200
