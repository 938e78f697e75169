"""What the explorer answers about dead letters of actions: who sees which, in pages, and who may redrive one."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from dragoman.clock import SystemClock
from dragoman.explorer.action_letters import LARGEST_ENVELOPE, LONGEST_ENVELOPE, MOST_LETTERS
from dragoman.gateway.port import SigningKeys
from dragoman.gateway.requests import ActionRequests, RequestStatus
from dragoman.knowledge.port import Audit, AuditEvent
from tests.contract.engines import opened_storages
from tests.support.dead_actions import AUTHOR, CREATE, DeadActions, error
from tests.support.explorer_page import Answer, Page, eventually, open_explorer
from tests.support.gateway import ACTIONS_PATH, Signer, as_body

HOSTILE = "<img src=x onerror=alert(1)></script>"
ID = "0d2f8d7c-3b1f-4a53-9a0a-1f0c6d1b9a01"


def caller(letter: str, *roles: str, tenants: tuple[str, ...] = ("acme",), **more: Any) -> dict[str, Any]:
    return {"token": letter * 32, "roles": list(roles), "tenants": list(tenants), **more}


AUTH = {
    "callers": {
        "ada": caller("a", "owner"),
        "ben": caller("b", "editor"),
        "cy": caller("c", "owner", tenants=("globex",)),
        "dee": caller("d", "owner", tenants=("acme", "globex")),
        "eve": caller("e", "owner", scopes=["tool:knowledge.create_document", "tool:echo"]),
        "flo": caller("f", "owner", scopes=["tool:knowledge.*"]),
    }
}
ADA, BEN, CY, DEE, EVE, FLO = ({"authorization": f"Bearer {letter * 32}"} for letter in "abcdef")


Fill = Callable[[DeadActions], Awaitable[Any]]


class Desk(NamedTuple):
    page: Page

    async def get(self, path: str, **headers: str) -> Answer:
        return await self.page.get(f"/explorer/{path}", **(self.owner | headers))

    @property
    def owner(self) -> dict[str, str]:
        """What the owner of the data directory brings, where that makes a client the owner."""
        secret = self.page.app.local_secret
        return {} if secret is None else {"authorization": f"Bearer {secret}"}

    async def whole(self, number: int = 1, **headers: str) -> Any:
        return (await self.get(f"letters/{number}", **headers)).json["letter"]

    async def numbers(self, **headers: str) -> list[int]:
        return [each["number"] for each in (await self.get("letters", **headers)).json["letters"]]

    async def redrive(self, number: Any = 1, **headers: str) -> Answer:
        path = f"/explorer/letters/{number}/redrive"
        return await self.page.request("POST", path, b"{}", {**self.page.credentials(), **self.owner, **headers})

    async def events(self) -> list[AuditEvent]:
        found = await self.page.runtime.facilities.storage.port(Audit).page(100)
        return [each for each in found if each.event == "message.redriven"]


@pytest.fixture
def open_desk(tmp_path: Path) -> Callable[..., AbstractAsyncContextManager[Desk]]:
    """Opens a gateway with an explorer. `fill` puts letters into its folder before it starts, and takes nothing."""

    @asynccontextmanager
    async def opened(
        fill: Fill | None = None, auth: Any = None, *, is_near: bool = True, **settings: Any
    ) -> AsyncIterator[Desk]:
        async with opened_storages("sqlite", tmp_path, SystemClock()) as (storage,):
            assert await storage.port(SigningKeys).add(Signer("acme").key())
            if fill is not None:
                await fill(DeadActions(storage, SystemClock()))
        sections: dict[str, Any] = {"gateway": {"enabled": True}, "storage": {"data_dir": str(tmp_path)}}
        if auth is not None:
            sections["auth"] = auth
        async with open_explorer([], sections, **settings) as page:
            page.app.listens_at(is_near=is_near)
            yield Desk(page)

    return opened


OpenDesk = Callable[..., AbstractAsyncContextManager[Desk]]


async def one(made: DeadActions) -> None:
    await made.fail(request_id=ID, errors=2)


async def of_two_tenants(made: DeadActions) -> None:
    """Letters 1 and 2 of acme, 3 and 4 of globex, 5 of acme."""
    for tenant in ("acme", "globex"):
        await made.fail(tenant)
        await made.refuse(tenant)
    await made.fail("acme")


# Letters.


async def test_a_server_without_the_gateway_has_nothing_of_this() -> None:
    async with open_explorer([]) as page:
        assert (await page.get("/explorer/server")).json["hasLetters"] is False
        for path in ("letters", "letters/1"):
            assert (await page.get(f"/explorer/{path}")).status == 404
        assert (await page.request("POST", "/explorer/letters/1/redrive", b"{}", page.credentials())).status == 405


async def test_a_letter_is_listed_with_its_reason_and_shown_with_every_error(open_desk: OpenDesk) -> None:
    async with open_desk(one) as at:
        assert (await at.get("server")).json["hasLetters"] is True
        found = (await at.get("letters")).json
        whole = await at.whole()
    (letter,) = found["letters"]
    times = {name: letter.pop(name) for name in ("acceptedAt", "diedAt")}
    assert all(each.endswith("Z") for each in times.values())
    assert (found["next"], letter) == (
        None,
        {
            "number": 1,
            "tenant": "acme",
            "action": CREATE,
            "author": AUTHOR,
            "requestId": ID,
            "isAccepted": True,
            "attempts": 2,
            "error": {"code": "NOT_FOUND", "message": "There is no such document"},
        },
    )
    assert [(each["code"], each["attempt"]) for each in whole["errors"]] == [("UNAVAILABLE", 1), ("NOT_FOUND", 2)]
    assert whole["isEnvelope"] is True
    assert msgspec.json.decode(whole["text"])["request_id"] == ID


async def test_nothing_secret_of_a_letter_is_shown_and_what_it_says_is_text(open_desk: OpenDesk) -> None:
    async def fill(made: DeadActions) -> None:
        body = msgspec.json.encode({"action": HOSTILE, "password": "hunter2", "nested": [{"token": "hunter2"}]})
        await made.refuse(body=body, record=error("UNAUTHORIZED", HOSTILE, details={"password": "hunter2"}))
        await made.refuse(body=b"\xff\x00" + HOSTILE.encode())

    async with open_desk(fill) as at:
        answers = [await at.get("letters"), await at.get("letters/1"), await at.get("letters/2")]
    for each in answers:
        assert (each.headers["content-type"], each.headers["x-content-type-options"]) == ("application/json", "nosniff")
        assert b"hunter2" not in each.body
        assert b"nobody-may-see" not in each.body
    envelope, other = (each.json["letter"] for each in answers[1:])
    assert (envelope["action"], envelope["author"], envelope["isAccepted"]) == (HOSTILE, None, False)
    assert envelope["errors"][0]["details"] == {"password": "[REDACTED]"}
    assert msgspec.json.decode(envelope["text"])["password"] == "[REDACTED]"
    assert (other["isEnvelope"], b64decode(other["text"])) == (False, b"\xff\x00" + HOSTILE.encode())


@pytest.mark.parametrize(
    ("length", "shown"), [(10, 21), (LONGEST_ENVELOPE, LONGEST_ENVELOPE), (LARGEST_ENVELOPE, None)]
)
async def test_long_envelopes_are_cut_and_longer_ones_are_not_shown(
    open_desk: OpenDesk, length: int, shown: int | None
) -> None:
    async with open_desk(lambda made: made.refuse(body=msgspec.json.encode({"text": "x" * length}))) as at:
        whole = await at.whole()
    assert whole["bodyBytes"] > length
    assert (len(whole["text"]) if "text" in whole else None, whole.get("isCut")) == (
        shown,
        None if shown is None else length == LONGEST_ENVELOPE,
    )


async def test_letters_come_in_pages_the_oldest_first(open_desk: OpenDesk) -> None:
    async def fill(made: DeadActions) -> None:
        for _ in range(MOST_LETTERS + 2):
            await made.refuse()

    async with open_desk(fill) as at:
        first = (await at.get("letters")).json
        second = (await at.get(f"letters?after={first['next']}")).json
        odd = (await at.get("letters?after=-1")).json
    numbers = [each["number"] for page in (first, second) for each in page["letters"]]
    assert (len(first["letters"]), len(second["letters"]), second["next"]) == (MOST_LETTERS, 2, None)
    assert numbers == sorted(set(numbers))
    assert odd == first


@pytest.mark.parametrize("number", ["99", "0", "-1", "x", "", "9" * 400, "1/2", "a1"])
async def test_a_number_that_no_letter_has_leads_nowhere(open_desk: OpenDesk, number: str) -> None:
    async with open_desk(one) as at:
        found = await at.get(f"letters/{number}")
    assert (found.status, found.json) == (404, {"error": "No such dead letter is known, or not any longer"})


async def test_a_bus_that_cannot_be_read_is_said_and_nothing_else(open_desk: OpenDesk) -> None:
    async with open_desk(one) as at:
        await at.page.runtime.facilities.storage.close()
        answers = [await at.get("letters"), await at.get("letters/1"), await at.redrive()]
    assert {(each.status, each.body) for each in answers} == {(503, b'{"error":"The bus cannot be used now"}')}


# Redriving.


async def test_a_letter_that_is_redriven_is_carried_out_and_the_audit_says_by_whom(open_desk: OpenDesk) -> None:
    async with open_desk(one, AUTH) as at:
        done = await at.redrive(**ADA)
        assert (done.status, done.json["letter"]["requestId"]) == (200, ID)
        assert await at.numbers(**ADA) == []
        (event,) = await at.events()
        assert (event.principal, event.tenant, event.subject) == ("ada", "acme", ID)
        requests = at.page.runtime.facilities.storage.port(ActionRequests)
        principal = '["key of acme", "svc:writer"]'
        kept = await eventually(lambda: requests.find({"acme"}, principal, ID), lambda seen: seen.body is not None)
        assert kept.status is RequestStatus.COMPLETED
        assert (await at.redrive(**ADA)).status == 404


async def test_a_letter_that_cannot_be_redriven_stays_with_a_reason(open_desk: OpenDesk) -> None:
    async with open_desk(lambda made: made.fail(acceptance="{}")) as at:
        refused = await at.redrive()
        assert (refused.status, refused.json) == (409, {"error": "Its acceptance cannot be read"})
        assert len(await at.numbers()) == 1


async def test_nothing_is_redriven_without_the_token_or_where_nothing_may_be_run(open_desk: OpenDesk) -> None:
    async with open_desk(one) as at:
        plain = {"content-type": "application/json"}
        answers = [
            await at.page.request("POST", "/explorer/letters/1/redrive", b"{}", plain),
            await at.redrive(**{"x-explorer-token": "wrong"}),
            await at.redrive(**{"content-type": "text/plain"}),
            await at.get("letters/1/redrive"),
        ]
        assert [each.status for each in answers] == [403, 403, 415, 404]
        for path in ("letters", "letters/1", "letters/1/other"):
            sent = await at.page.request("POST", f"/explorer/{path}", b"{}", at.page.credentials())
            assert sent.status == 405
        assert await at.numbers() == [1]


async def test_nothing_is_redriven_where_nothing_may_be_run(open_desk: OpenDesk) -> None:
    async with open_desk(one, allow_execute=False) as at:
        assert (await at.redrive()).status == 403
        assert await at.numbers() == [1]


# Who is asking.


async def test_an_owner_sees_and_redrives_the_letters_of_its_tenants_and_no_others(open_desk: OpenDesk) -> None:
    async with open_desk(of_two_tenants, AUTH) as at:
        mine = await at.numbers(**ADA)
        others = await at.numbers(**CY)
        assert (len(mine), len(others)) == (3, 2)
        assert await at.numbers(**DEE) == sorted(mine + others)
        for number in others:
            assert (await at.get(f"letters/{number}", **ADA)).status == 404
            assert (await at.redrive(number, **ADA)).status == 404
        assert (await at.get(f"letters/{mine[0]}", **ADA)).status == 200
        assert await at.events() == []


@pytest.mark.parametrize("who", [BEN, EVE], ids=["an editor", "an owner whose scopes are not for every action"])
async def test_nobody_else_sees_or_redrives_any(open_desk: OpenDesk, who: dict[str, str]) -> None:
    async with open_desk(of_two_tenants, AUTH) as at:
        assert (await at.get("server", **who)).json["hasLetters"] is False
        answers = [await at.get("letters", **who), await at.get("letters/1", **who), await at.redrive(1, **who)]
        assert [each.status for each in answers] == [404, 404, 404]
        unknown = await at.redrive(99, **who)
        assert (answers[2].body, await at.events()) == (unknown.body, [])


async def test_an_owner_whose_scopes_are_for_all_actions_sees_letters(open_desk: OpenDesk) -> None:
    async with open_desk(one, AUTH) as at:
        assert await at.numbers(**FLO) == [1]


async def test_where_callers_say_who_they_are_nobody_else_is_shown_anything(open_desk: OpenDesk) -> None:
    async with open_desk(one, AUTH) as at:
        answers = [await at.get("letters"), await at.get("letters/1"), await at.redrive()]
        assert [each.status for each in answers] == [401, 401, 401]


async def test_without_authentication_only_the_owner_is_shown_anything(open_desk: OpenDesk) -> None:
    async with open_desk(one) as at:
        told = [await at.get("letters", authorization=said) for said in ("", "Bearer no-secret-0123456789")]
        assert [each.status for each in told] == [404, 404]
        passed_on = await at.get("letters", **{"x-forwarded-for": "192.0.2.1"})
        assert passed_on.status == 404
    async with open_desk(is_near=False) as at:
        assert (await at.get("server")).json["hasLetters"] is False
        answers = [await at.get("letters"), await at.get("letters/1"), await at.redrive()]
        assert [each.status for each in answers] == [404, 404, 404]


async def test_without_authentication_only_the_owner_is_shown_calls_that_name_callers_of_tenants(
    open_desk: OpenDesk,
) -> None:
    async with open_desk() as at:
        signer = Signer("acme", "viewer", sub="svc:secret")
        assert await at.page.runtime.facilities.storage.port(SigningKeys).add(signer.key())
        body = as_body(signer.envelope("knowledge.query_knowledge", {"query": "words"}))
        signed = {"authorization": f"Bearer {signer.token(body, f'http://127.0.0.1:8000{ACTIONS_PATH}')}"}
        sent = await at.page.request("POST", ACTIONS_PATH, body, {"content-type": "application/json", **signed})
        assert sent.status == 200, sent
        found = (await at.page.get("/knowledge/api/search?q=words", **at.owner)).status
        assert found == 200
        await at.page.request("POST", "/explorer/tools/health/call", b"{}", at.page.credentials())
        seen = (await at.get("calls")).json["calls"]
        assert [(each["toolName"], each["caller"]) for each in seen] == [
            ("health", "anonymous"),
            ("knowledge.query_knowledge", "local"),
            ("knowledge.query_knowledge", "svc:secret"),
        ]
        told = await at.page.get("/explorer/calls")
        assert [each["toolName"] for each in told.json["calls"]] == ["health"]
        statuses = [(await at.page.get(f"/explorer/calls/{each['runId']}")).status for each in seen]
        assert statuses == [200, 404, 404]
        assert [(await at.get(f"calls/{each['runId']}")).status for each in seen] == [200, 200, 200]
