"""Strangers behind a proxy on the server's own machine, who have its addresses, and the owner of the data directory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dragoman.access.local_secret import PLACE
from tests.support.gateway import Signer, create_args
from tests.support.gateway_process import GatewayProcess, add_keys
from tests.support.http_wire import Wire, modern, modern_call, request
from tests.support.nginx import nginx

pytestmark = pytest.mark.slow

PROXIES = {
    "bare": "",
    "documented": "proxy_http_version 1.1; proxy_set_header Connection ''; "
    "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;",
    "old": "proxy_set_header X-Real-IP $remote_addr;",
    "standard": "proxy_set_header Forwarded for=$remote_addr;",
    "via": "proxy_set_header Via '1.1 nginx';",
}
DOCUMENT = create_args()
DOORS = ("tools", "call", "tree", "page", "letters")


class Site:
    """A gateway that authenticates nobody, and the ports of the proxies in front of it."""

    def __init__(self, server: GatewayProcess, ports: Mapping[str, int], secret: str | None) -> None:
        self.ports = {"direct": server.port, **ports}
        self.secret = secret

    def opened(self, way: str, secret: str | None, **headers: str) -> set[str]:
        """The doors to the owner's documents and letters that are open to a client."""
        return {door for door in DOORS if self._is_open(door, way, secret, headers)}

    def _is_open(self, door: str, way: str, secret: str | None, headers: Mapping[str, str]) -> bool:
        given: dict[str, str | None] = {**headers, "host": f"127.0.0.1:{self.ports['direct']}"}
        if secret is not None:
            given["authorization"] = f"Bearer {secret}"

        def get(path: str) -> Any:
            return self._ask(way, request(None, given, method="GET", path=path))

        match door:
            case "tools":
                listed = self._ask(way, modern("tools/list", {}, given)).message["result"]["tools"]
                return any(tool["name"].startswith("knowledge.") for tool in listed)
            case "call":
                asked = modern_call("knowledge.query_knowledge", given, query="words")
                return self._ask(way, asked).message["result"]["isError"] is False
            case "tree":
                return get("/knowledge/api/children").status == 200
            case "page":
                return get(f"/knowledge/documents/local/{DOCUMENT['document_id']}").status == 200
            case _:
                return get("/explorer/server").json["hasLetters"] is True and get("/explorer/letters").status == 200

    def create(self, secret: str | None) -> None:
        headers = {} if secret is None else {"authorization": f"Bearer {secret}"}
        made = self._ask("direct", modern_call("knowledge.create_document", headers, **DOCUMENT))
        assert made.message["result"]["isError"] is False, made

    def _ask(self, way: str, data: bytes) -> Any:
        with Wire(self.ports[way]) as wire:
            return wire.ask(data)


def printed(server: GatewayProcess) -> bool:
    """Whether a server says where its secret is. What it prints goes to a pipe here, and has no secret."""
    shown = server.output.wait_until(lambda lines: re.search(rb"/knowledge/\n(.*)mcpServers", b"\n".join(lines), re.S))
    return b"dragoman keys local" in shown[1]


def opened(folder: Path, **settings: Any) -> Iterator[Site]:
    add_keys(folder, Signer())
    with (
        GatewayProcess(folder, "--explorer", settings=settings) as server,
        nginx(folder, server.port, PROXIES) as ports,
    ):
        has_secret = printed(server)
        secret = (folder / PLACE).read_text() if has_secret else None
        site = Site(server, ports, secret)
        site.create(secret)
        yield site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    yield from opened(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    yield from opened(tmp_path_factory.mktemp("trusting"), **{"auth.local_owner": "true"})


@pytest.mark.parametrize("way", ["direct", *PROXIES])
def test_an_address_of_this_machine_makes_no_owner(site: Site, way: str) -> None:
    assert site.opened(way, None) == set()
    assert site.opened(way, "x" * 43) == set()


@pytest.mark.parametrize("way", ["direct", *PROXIES])
def test_the_secret_makes_an_owner_unless_a_proxy_says_that_it_has_passed_the_request_on(site: Site, way: str) -> None:
    assert site.secret is not None
    assert site.opened(way, site.secret) == (set(DOORS) if way in ("direct", "bare") else set())


@pytest.mark.parametrize("name", ["X-Forwarded-For", "x-forwarded-proto", "Forwarded", "Via"])
def test_a_header_of_a_proxy_is_believed_from_anybody(site: Site, name: str) -> None:
    assert site.opened("direct", site.secret, **{name: "x"}) == set()


@pytest.mark.parametrize("way", ["direct", *PROXIES])
def test_the_setting_trusts_whoever_reaches_the_address_and_proxies_that_say_nothing(trusting: Site, way: str) -> None:
    assert trusting.secret is None
    assert trusting.opened(way, None) == (set(DOORS) if way in ("direct", "bare") else set())


def test_workers_know_the_same_owner_and_nothing_they_print_into_a_pipe_has_the_secret(tmp_path: Path) -> None:
    add_keys(tmp_path, Signer())
    with GatewayProcess(tmp_path, "--workers", "2") as server:
        assert printed(server)
        secret = (tmp_path / PLACE).read_bytes()
        headers = {"authorization": f"Bearer {secret.decode()}"}
        asked = {each: request(None, headers, method="GET", path=each) for each in ("/version", "/knowledge/api/start")}
        workers: set[int] = set()
        while len(workers) < 2:  # The kernel deals connections out.
            with server.wire() as wire:
                workers.add(wire.ask(asked["/version"]).json["worker"])
                assert wire.ask(asked["/knowledge/api/start"]).json["tenants"] == ["local"]
        assert server.get("/knowledge/api/start").json["tenants"] == []
    assert secret not in b"".join([*server.errors.lines, *server.output.lines])
