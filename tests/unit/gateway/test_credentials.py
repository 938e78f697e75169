"""Who sent a request to the gateway: internal callers, external ones, and nobody."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.access.authenticator import Authenticator
from dragoman.access.callers import Caller
from dragoman.errors import NotAuthentic, Unauthenticated, VerifierUnavailable
from dragoman.gateway.credentials import Credential, Credentials
from dragoman.gateway.exchanges import Exchanges
from dragoman.gateway.port import Quotas, SigningKeys
from dragoman.gateway.rates import GatewayRates
from dragoman.gateway.settings import GatewayConfig
from dragoman.ids import RandomIds
from dragoman.slo.meter import ActionMeter
from dragoman.storage.port import Storage
from dragoman.telemetry.log import StructuredLogger
from dragoman.testing import ManualClock
from tests.contract.engines import opened_storages
from tests.support.gateway import ACTIONS_PATH, Signer
from tests.support.route_requests import request_to

DAY = 86_400
TOKEN = "0123456789abcdef"
HOST = "example.org:8000"


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[Storage]:
    async with opened_storages("memory", tmp_path) as (storage,):
        yield storage


class Static:
    """A verifier that knows one token."""

    async def verify(self, token: str) -> Caller:
        if token == "unavailable-issuer":
            raise VerifierUnavailable("nobody home")
        if token != TOKEN:
            raise Unauthenticated("The token is not known here")
        return Caller("svc:in", frozenset(("codex", "admin")), tenants=frozenset(("acme",)))


class Gate:
    """Credentials, and what they need."""

    def __init__(self, storage: Storage, *, internal: bool = True, public_url: str | None = None) -> None:
        self.clock = ManualClock()
        self.keys = storage.port(SigningKeys)
        self.log: list[Any] = []
        authenticator = Authenticator((Static(),), self.clock) if internal else None
        logger = StructuredLogger(self.log.append, self.clock)
        self.credentials = Credentials(self.keys, authenticator, self.clock, logger, "dragoman")
        rates, settings = GatewayRates(storage.port(Quotas), self.clock), GatewayConfig(public_url=public_url)
        self.exchanges = Exchanges(self.credentials, rates, settings, RandomIds(), logger, 1000, ActionMeter())

    @property
    def now(self) -> float:
        return self.clock.now().timestamp()

    async def signer(self, *roles: str, days: float = 0, revoked: bool = False) -> Signer:
        """One whose key is known, and so many days old."""
        signer = Signer("acme", *roles)
        await self.keys.add(signer.key(self.now - days * DAY, self.now if revoked else None))
        return signer

    def token(
        self, signer: Signer, url: str = f"http://{HOST}{ACTIONS_PATH}", method: str = "POST", **fields: Any
    ) -> str:
        times = {"iat": int(self.now), "exp": int(self.now) + 60}
        return signer.token(b"", url, method, **{**times, **fields})

    async def identify(self, token: str, **scope: Any) -> Credential:
        headers = {b"authorization": f"Bearer {token}".encode("latin-1"), b"host": HOST.encode()}
        return await self.identify_by(headers, **scope)

    async def identify_by(self, headers: dict[bytes, bytes], **scope: Any) -> Credential:
        exchange = self.exchanges.open_with(headers)
        await self.exchanges.identify(request_to(ACTIONS_PATH, "POST", headers=headers, **scope), exchange, 1000)
        assert exchange.credential is not None
        return exchange.credential

    async def refusal(self, token: str, **scope: Any) -> str:
        with pytest.raises(NotAuthentic) as refused:
            await self.identify(token, **scope)
        assert refused.value.details == {"reason": "unauthenticated"}
        return refused.value.message


@pytest.mark.requirement("MC-SEC-01")
async def test_an_internal_caller_is_whom_the_authenticator_knows(storage: Storage) -> None:
    gate = Gate(storage)
    found = await gate.identify(TOKEN)
    assert (found.caller.name, set(found.caller.tenants), set(found.roles)) == ("svc:in", {"acme"}, {"editor"})
    assert (found.kid, found.claims) == (None, None)
    await gate.credentials.spend(found)
    await gate.credentials.spend(found)
    assert await gate.refusal("another-token-0123") == "The token is not known here"
    with pytest.raises(VerifierUnavailable):
        await gate.identify("unavailable-issuer")


@pytest.mark.requirement("MC-SEC-02")
async def test_an_external_caller_has_the_tenant_and_at_most_the_roles_of_its_key(storage: Storage) -> None:
    gate = Gate(storage, internal=False)
    signer = await gate.signer("codex", "viewer", "admin")
    found = await gate.identify(gate.token(signer, sub="svc:anybody"))
    assert (found.caller.name, set(found.caller.tenants)) == ("svc:anybody", {"acme"})
    assert found.roles == {"editor", "viewer"}
    assert found.kid == signer.kid
    assert found.caller.principal != "svc:anybody"  # Nobody of that name without a key.


@pytest.mark.requirement("MC-SEC-05")
@pytest.mark.parametrize("header", [b"", b"Basic YTpi", b"Bearer", TOKEN.encode(), b"Bearer " + b"x" * 16_385])
async def test_without_a_bearer_token_nobody_is_known(storage: Storage, header: bytes) -> None:
    gate = Gate(storage)
    with pytest.raises(NotAuthentic):
        await gate.identify_by({b"authorization": header})
    with pytest.raises(NotAuthentic):
        await gate.identify_by({})


@pytest.mark.requirement("MC-SEC-02")
async def test_a_key_that_is_not_known_lets_nobody_in(storage: Storage) -> None:
    for internal in (True, False):
        gate = Gate(storage, internal=internal)
        stranger = Signer("acme")
        assert "known here" in await gate.refusal(gate.token(stranger))


@pytest.mark.requirement("MC-SEC-02")
async def test_a_key_signs_for_itself_only(storage: Storage) -> None:
    gate = Gate(storage)
    signer, other = await gate.signer(), Signer("acme")
    other.kid = signer.kid
    assert await gate.refusal(gate.token(other)) == "The token's signature is wrong"


@pytest.mark.requirement("MC-SEC-04")
async def test_a_key_is_warned_about_once_when_it_is_old_and_refused_when_it_is_too_old(storage: Storage) -> None:
    gate = Gate(storage)
    signer = await gate.signer(days=75)
    await gate.identify(gate.token(signer))
    assert gate.log == []
    gate.clock.advance(DAY)
    for _ in range(3):
        await gate.identify(gate.token(signer))
    (entry,) = gate.log
    assert (entry["level"], entry["kid"], entry["ageDays"]) == ("warn", signer.kid, 76)
    gate.clock.advance(14 * DAY)
    await gate.identify(gate.token(signer))
    gate.clock.advance(1)
    assert await gate.refusal(gate.token(signer)) == "The key is older than 90 days"


@pytest.mark.requirement("MC-SEC-04")
async def test_a_revoked_key_is_refused_at_once_and_others_are_not(storage: Storage) -> None:
    gate = Gate(storage)
    first, second = await gate.signer(), await gate.signer()
    known = await gate.identify(gate.token(first))
    await gate.keys.revoke(first.kid, gate.now)
    with pytest.raises(NotAuthentic):
        await gate.credentials.spend(known)
    assert await gate.refusal(gate.token(first)) == "The key has been revoked"
    await gate.credentials.spend(await gate.identify(gate.token(second)))


@pytest.mark.requirement("MC-SEC-02")
async def test_only_the_holder_of_a_key_hears_what_has_become_of_it(storage: Storage) -> None:
    gate = Gate(storage)
    signer, stranger = await gate.signer(revoked=True), Signer("acme")
    stranger.kid = signer.kid
    assert await gate.refusal(gate.token(stranger)) == "The token's signature is wrong"
    assert await gate.refusal(gate.token(signer)) == "The key has been revoked"


@pytest.mark.requirement("MC-SEC-02")
async def test_a_nonce_is_good_once_for_as_long_as_its_token_lives(storage: Storage) -> None:
    gate = Gate(storage)
    signer = await gate.signer()
    token = gate.token(signer)
    found = await gate.identify(token)
    await gate.credentials.spend(found)
    again = await gate.identify(token)
    with pytest.raises(NotAuthentic, match="nonce was used"):
        await gate.credentials.spend(again)
    late = await gate.identify(gate.token(signer))
    gate.clock.advance(60)
    for each in (again, late):  # The body took its time.
        with pytest.raises(NotAuthentic, match="has expired"):
            await gate.credentials.spend(each)
    assert await gate.refusal(token) == "The token has expired"


@pytest.mark.requirement("MC-SEC-02")
async def test_a_token_names_the_address_that_the_client_used(storage: Storage) -> None:
    gate = Gate(storage)
    signer = await gate.signer()
    assert (await gate.identify(gate.token(signer))).kid == signer.kid
    other = "The token was signed for another address"
    for url in (f"http://{HOST}/mcp/capabilities", f"https://{HOST}{ACTIONS_PATH}", f"http://localhost{ACTIONS_PATH}"):
        assert await gate.refusal(gate.token(signer, url)) == other
    assert await gate.refusal(gate.token(signer, method="GET")) == "The token was signed for another method"
    await gate.identify(gate.token(signer, f"https://{HOST}{ACTIONS_PATH}"), scheme="https")
    await gate.identify(gate.token(signer, f"http://{HOST}/below{ACTIONS_PATH}"), root_path="/below")


@pytest.mark.requirement("MC-SEC-02")
async def test_a_public_address_counts_instead_of_the_host(storage: Storage) -> None:
    gate = Gate(storage, public_url="https://public.example")
    signer = await gate.signer()
    await gate.identify(gate.token(signer, f"https://public.example{ACTIONS_PATH}"))
    assert await gate.refusal(gate.token(signer)) == "The token was signed for another address"


@pytest.mark.slow
async def test_no_more_than_a_thousand_old_keys_are_remembered(storage: Storage) -> None:
    gate = Gate(storage)
    signer = await gate.signer(days=80)
    await gate.identify(gate.token(signer))
    for number in range(1000):
        signer.kid = f"k{number}"
        await gate.keys.add(signer.key(gate.now - 80 * DAY))
        await gate.identify(gate.token(signer))
    assert len(gate.log) == 1001
    await gate.identify(gate.token(signer))
    assert len(gate.log) == 1001
