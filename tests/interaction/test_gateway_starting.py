"""How a gateway is started: what it needs, what it warns about, and what other processes change while it runs."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from dragoman.adapters.sqlite_database import FILE_NAME, SqliteDatabase
from dragoman.adapters.sqlite_gateway import SqliteSigningKeys
from dragoman.app import ServerOptions, create_server
from dragoman.config import Settings, make_config
from dragoman.errors import ConfigError, PartFailed
from dragoman.gateway.migrations import MIGRATIONS
from tests.support.gateway import ACTIONS_PATH, Signer, create_args
from tests.support.gateway_process import CREATE, GatewayProcess, add_keys
from tests.support.gateway_serving import NOBODY, keep_keys, open_gateway
from tests.support.http_wire import request

ENABLED = {"enabled": True}


@pytest.mark.requirement("MC-TRANS-01", "MC-SEC-05")
async def test_a_gateway_that_could_let_nobody_in_does_not_start_and_says_how_to_make_a_key(tmp_path: Path) -> None:
    with pytest.raises((ConfigError, PartFailed), match="set up auth"):
        async with open_gateway(NOBODY):
            pytest.fail("it started")
    old, revoked = Signer(), Signer()
    async with open_gateway(folder=tmp_path) as gateway:
        now = gateway.clock.now().timestamp()
        await gateway.keys.add(old.key(created_at=now - 91 * 86_400))
        await gateway.keys.add(revoked.key(created_at=now, revoked_at=now))
    with pytest.raises((ConfigError, PartFailed), match="dragoman keys generate"):
        async with open_gateway(NOBODY, tmp_path):
            pytest.fail("it started")


@pytest.mark.requirement("MC-TRANS-01", "MC-SEC-05")
async def test_on_loopback_it_authenticates_where_the_endpoint_does_not(tmp_path: Path) -> None:
    signer = Signer()
    await keep_keys(tmp_path, signer)
    async with open_gateway(NOBODY, tmp_path) as gateway:
        envelope = gateway.envelope(signer, CREATE, create_args())
        unsigned = await gateway.driver.ask(request(envelope, path=ACTIONS_PATH))
        assert (unsigned.status, unsigned.json["error"]["code"]) == (401, "UNAUTHORIZED")
        assert (await gateway.get("/mcp/capabilities")).status == 401
        assert (await gateway.post(signer, envelope)).status == 200


@pytest.mark.parametrize(
    "path", ["/mcp/actions", "/mcp/capabilities", "/mcp/openapi.json", "/schemas/mcp", "/schemas/mcp/x", "/knowledge"]
)
def test_an_endpoint_where_the_gateway_answers_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match=r"http\.path"):
        make_config({"gateway": ENABLED, "http": {"path": path}})
    assert make_config({"http": {"path": path}}).http.path == path
    assert make_config({"gateway": ENABLED, "http": {"path": "/mcp/tools"}}).gateway.enabled


@pytest.mark.parametrize(
    "url", ["http://example.com", "https://example.com/", "https://example.com/a", "https://example.com?a", "nonsense"]
)
def test_a_public_url_is_an_address_without_a_path(url: str) -> None:
    with pytest.raises(ConfigError, match=r"gateway\.public_url"):
        make_config({"gateway": {"public_url": url}})


WARNING = "documents, keys, nonces and results end with the process: storage.engine is memory"


async def test_on_the_memory_engine_it_starts_with_a_warning(tmp_path: Path) -> None:
    async with open_gateway() as gateway:
        assert [entry["level"] for entry in gateway.log if entry["message"] == WARNING] == ["warn"]
    async with open_gateway(folder=tmp_path) as gateway:
        assert not [entry for entry in gateway.log if entry["message"] == WARNING]


async def test_on_the_memory_engine_no_secret_is_made_where_a_data_directory_would_be(tmp_path: Path) -> None:
    storage = {"engine": "memory", "data_dir": str(tmp_path / "data")}
    runtime = create_server(ServerOptions(config=make_config({"gateway": ENABLED, "storage": storage})))
    app = runtime.http()
    app.listens_at(is_near=True)
    assert app.local_secret is None
    with pytest.raises((ConfigError, PartFailed), match="keys would end with the process"):
        await app.start()
    await app.stop(0.1)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    "setting",
    [
        "[gateway]\nenabled = true",
        '[gateway]\naudience = "mine"',
        '[gateway]\npublic_url = "https://example.com"',
        '[gateway]\ntenant_claim = "sub"',
        "[gateway]\nrequests_per_minute_per_tenant = 601",
        "[knowledge]\nmax_concurrent = 11",
        '[auth.callers.me]\ntoken = "0123456789abcdef"\ntenants = ["acme"]',
    ],
)
def test_a_file_that_is_only_found_cannot_open_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "dragoman.toml"
    file.write_text(setting)
    with pytest.raises(ConfigError, match="only found"):
        Settings.load(environ={})
    Settings.load(file, environ={})


# Other processes.


async def change_keys(folder: Path, kid: str) -> None:
    """Revoke a key, as a command beside a running server does."""
    database = SqliteDatabase(folder / FILE_NAME, MIGRATIONS)
    assert await SqliteSigningKeys(database).revoke(kid, time.time())
    await database.close()


@pytest.mark.slow
@pytest.mark.requirement("MC-SEC-04", "MC-SEC-05")
def test_a_key_that_another_process_adds_or_revokes_counts_at_once(tmp_path: Path) -> None:
    first, second = Signer(), Signer()
    add_keys(tmp_path, first)

    def statuses() -> list[int]:
        found: list[Any] = [server.act(each, CREATE, create_args()).status for each in (first, second)]
        return found

    with GatewayProcess(tmp_path, "--workers", "2") as server:
        assert statuses() == [200, 401]
        add_keys(tmp_path, second)
        assert statuses() == [200, 200]
        asyncio.run(change_keys(tmp_path, first.kid))
        assert [statuses() for _ in range(8)] == [[401, 200]] * 8  # Whichever worker is met.


@pytest.mark.slow
@pytest.mark.requirement("MC-TRANS-03")
def test_the_limits_hold_for_all_workers_together(tmp_path: Path) -> None:
    limit = 24
    signer = Signer()
    add_keys(tmp_path, signer)
    rate = {"gateway.requests_per_minute_per_principal": limit}
    with GatewayProcess(tmp_path, "--workers", "2", settings=rate) as server:
        began = time.time() // 60
        accepted = [server.act(signer, CREATE, create_args()).status for _ in range(3 * limit)].count(200)
        minutes = time.time() // 60 - began + 1  # One, but for a run that sees a minute end.
    # What a worker holds and nobody asks it for is little.
    assert limit - 6 <= accepted <= minutes * limit
