"""Dead letters of actions on the explorer's page, in a real browser."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import Locator, Page, expect

from dragoman.access.local_secret import find_local_secret
from dragoman.clock import SystemClock
from dragoman.gateway.port import SigningKeys
from tests.contract.engines import opened_storages
from tests.support.dead_actions import AUTHOR, CREATE, DeadActions, error
from tests.support.gateway import Signer
from tests.support.pages import DESK, PHONE, Opener, violations
from tests.support.sites import Site, serving

pytestmark = pytest.mark.slow

HOSTILE = "<img src=x onerror='window.pwned=1'>"
ID = "0d2f8d7c-3b1f-4a53-9a0a-1f0c6d1b9a01"
SETTINGS = """
[storage]
data_dir = "{folder}"
"""


async def fill(folder: Path) -> None:
    """A request that failed twice, and two messages that were refused: one is no envelope."""
    async with opened_storages("sqlite", folder, SystemClock()) as (storage,):
        assert await storage.port(SigningKeys).add(Signer("acme").key())
        made = DeadActions(storage, SystemClock())
        await made.fail(request_id=ID, errors=2, context_id=HOSTILE)
        body = msgspec.json.encode({"action": HOSTILE, "password": "hunter2", "text": "x" * 3000})
        await made.refuse(body=body, record=error("UNAUTHORIZED", HOSTILE, attempt=1))
        await made.refuse("Ünïcode", b"\xff\xfe")


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    """The options of a server whose data directory has dead letters."""
    with ThreadPoolExecutor(1) as thread:  # This thread has Playwright's event loop.
        thread.submit(asyncio.run, fill(tmp_path / "data")).result()
    settings = tmp_path / "settings.toml"
    settings.write_text(SETTINGS.format(folder=tmp_path / "data"))
    return ["--gateway", "--allow-execute", "--config", str(settings)]


@pytest.fixture
def site(options: list[str], tmp_path: Path) -> Iterator[Site]:
    with serving("tools_on_show.py", *options) as found:
        yield as_owner(found, tmp_path)


def as_owner(site: Site, folder: Path) -> Site:
    """With the address that the server prints on a terminal: it has the secret of the data directory, too."""
    return site._replace(address=f"{site.address}&local={find_local_secret(folder / 'data')}")


def letters_of(page: Page) -> Locator:
    return page.get_by_role("region", name="Dead letters", exact=True)


def open_actions(page: Page, name: str = "Actions") -> Locator:
    page.get_by_role("button", name=name, exact=True).click()
    expect(page.get_by_role("heading", name=name, exact=True, level=2)).to_be_focused()
    letters = letters_of(page)
    expect(letters.locator("ul.rows > li")).to_have_count(3)
    return letters


def test_letters_are_listed_with_their_reason_and_opened_with_every_error(visit: Opener) -> None:
    page = visit()
    letters = open_actions(page)
    expect(letters).to_contain_text("NOT_FOUND: There is no such document")
    expect(letters).to_contain_text("Ünïcode: unreadable message")
    row = letters.get_by_role("button", name=f"acme: {CREATE} dead")
    expect(row).to_contain_text("dead · 2 attempts")
    row.focus()
    page.keyboard.press("Enter")
    expect(row).to_have_attribute("aria-expanded", "true")
    errors = letters.get_by_role("list", name="Errors").get_by_role("listitem")
    expect(errors).to_have_count(2)
    expect(errors.first).to_contain_text("UNAVAILABLE: The storage does not answer")
    expect(letters.locator("pre")).to_contain_text(ID)
    expect(letters.locator("pre")).to_contain_text(HOSTILE)
    expect(letters).to_contain_text(f"number a1 · request {ID} · from {AUTHOR}")
    row.click()
    expect(letters.locator("pre")).to_be_hidden()


def test_a_refused_message_is_text_without_secrets_and_an_unreadable_one_is_base64(visit: Opener) -> None:
    page = visit()
    letters = open_actions(page)
    letters.get_by_role("button", name=f"acme: {HOSTILE} refused").click()
    expect(letters.locator("pre")).to_contain_text('"password":"[REDACTED]"')
    expect(letters).to_contain_text("sender unknown")
    expect(letters).not_to_contain_text("hunter2")
    letters.get_by_role("button", name="Ünïcode: unreadable message refused").click()
    expect(letters).to_contain_text("As base64:")
    expect(letters.locator("pre").last).to_have_text("//4=")


def test_a_letter_is_redriven_from_the_page_with_the_keyboard(visit: Opener) -> None:
    page = visit()
    expect(page.locator("#detail h2")).to_be_visible()
    page.keyboard.press("a")
    letters = letters_of(page)
    button = letters.get_by_role("button", name=f"Redrive acme: {CREATE}, number a1")
    button.focus()
    page.keyboard.press("Enter")
    expect(letters.locator("ul.rows > li")).to_have_count(2)
    expect(letters.get_by_role("heading")).to_be_focused()
    expect(page.locator("#live")).to_have_text("Redriven, as number a4")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("actions")


def test_without_the_printed_address_there_is_nothing_to_see_of_letters(visit: Opener, site: Site) -> None:
    page = visit(site.explorer)
    expect(page.get_by_role("button", name="health").first).to_be_visible()
    expect(page.get_by_role("button", name="Actions", exact=True)).to_be_hidden()


def test_with_the_secret_alone_a_letter_can_be_read_and_not_redriven(visit: Opener, site: Site) -> None:
    letters = open_actions(visit(re.sub("#token=[^&]*&", "#", site.address)))
    for each in letters.get_by_role("button", name="Redrive").all():
        expect(each).to_be_disabled()
    expect(letters).to_contain_text("open the address that the server printed")


def test_a_server_with_agents_has_both_kinds_in_one_list(visit: Opener, options: list[str], tmp_path: Path) -> None:
    with serving("agents_on_show.py", *options) as both:
        page = visit(as_owner(both, tmp_path).address)
        letters = open_actions(page, "Agents")
        expect(page.get_by_role("region", name="Messages", exact=True)).to_be_visible()
        letters.get_by_role("button", name=f"Redrive acme: {CREATE}, number a1").click()
        expect(letters.locator("ul.rows > li")).to_have_count(2)


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
def test_nothing_about_letters_keeps_people_out_or_is_wider_than_the_screen(visit: Opener, axe: str, look: str) -> None:
    size = PHONE if look == "phone" else DESK
    page = visit(viewport=size, color_scheme="dark" if look == "dark" else "light", bypass_csp=True)
    letters = open_actions(page)
    expect(page.get_by_role("region", name="Messages", exact=True)).to_be_hidden()
    for row in letters.locator("button.row").all():
        row.click()
    expect(letters.locator("pre")).to_have_count(3)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(
        "document.querySelector('#detail').scrollWidth <= document.querySelector('#detail').clientWidth"
    )
    assert violations(page, axe) == {}
