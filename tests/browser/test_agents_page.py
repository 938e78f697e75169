"""Agents on the explorer's page, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.support.pages import DESK, PHONE, Opener, violations
from tests.support.served.agents_on_show import HOSTILE
from tests.support.sites import Site, serving

pytestmark = pytest.mark.slow

SETTINGS = """
[storage]
data_dir = "{folder}"

[aacp]
max_attempts = 2
base_delay_ms = 1
max_delay_ms = 10
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    settings = tmp_path / "settings.toml"
    settings.write_text(SETTINGS.format(folder=tmp_path / "data"))
    with serving("agents_on_show.py", "--allow-execute", "--config", str(settings)) as found:
        yield found


def send(page: Page, target: str, payload: dict[str, Any], kind: str = "work") -> None:
    """Have the page's own server hand an agent a request."""
    told = {"targetAgentId": target, "message": {"type": kind, "payload": payload}}
    status = page.evaluate(
        """async (told) => (await fetch("tools/agent%2FsendRequest/call", {
            method: "POST", body: JSON.stringify(told),
            headers: { "content-type": "application/json", "x-explorer-token": token },
        })).status""",
        told,
    )
    assert status == 200


def section(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=name, exact=True)


def open_agents(page: Page) -> None:
    page.get_by_role("button", name="Agents", exact=True).click()
    expect(page.get_by_role("heading", name="Agents", exact=True, level=2)).to_be_focused()
    expect(section(page, "Agents").get_by_role("listitem")).to_have_count(2)


def test_agents_are_listed_with_their_state_and_what_waits_for_them(visit: Opener) -> None:
    page = visit()
    open_agents(page)
    first = section(page, "Agents").get_by_role("listitem").first
    expect(first).to_contain_text("back")
    expect(first).to_contain_text("idle")
    expect(first).to_contain_text("0 messages wait · mailbox 0 of 1,000 · 0 restarts")
    expect(section(page, "Dead letters")).to_contain_text("There are none.")
    assert page.evaluate("location.hash") == "#agents"
    page.reload()
    expect(section(page, "Agents").get_by_role("listitem")).to_have_count(2)


def test_the_messages_of_a_request_are_a_timeline_and_what_they_say_is_text(visit: Opener) -> None:
    page = visit()
    open_agents(page)
    send(page, "front", {"text": HOSTILE})
    row = section(page, "Messages").get_by_role("button", name="front: work")
    expect(row).to_contain_text("completed")
    row.click()
    expect(row).to_have_attribute("aria-expanded", "true")
    steps = page.get_by_role("list", name="Timeline").get_by_role("listitem")
    expect(steps).to_have_count(3)
    expect(page.get_by_role("list", name="Timeline")).to_contain_text("front → back: pass on, completed")
    for step in steps.all():
        step.get_by_text("Payload and ids").click()
        expect(step.locator("pre")).to_contain_text("<img src=x onerror='window.pwned=1'>")
    row.click()
    expect(steps).to_have_count(0)


def test_a_dead_letter_is_redriven_from_the_page_and_the_work_ends(visit: Opener) -> None:
    page = visit()
    open_agents(page)
    send(page, "front", {"fails": True})
    letters = section(page, "Dead letters")
    expect(letters).to_contain_text("front → back: pass on")
    expect(letters).to_contain_text(HOSTILE)
    button = letters.get_by_role("button", name="Redrive front → back")
    button.click()
    expect(letters.get_by_role("button", name="number 4")).to_be_visible()  # It failed again, under a new number.
    send(page, "back", {}, "mend")
    letters.get_by_role("button", name="number 4").focus()
    page.keyboard.press("Enter")
    expect(letters).to_contain_text("There are none.")
    expect(letters.get_by_role("heading")).to_be_focused()
    expect(section(page, "Messages").get_by_role("button", name="front → back: pass on")).to_contain_text("completed")


def test_without_the_printed_address_a_dead_letter_can_be_read_and_not_redriven(visit: Opener, site: Site) -> None:
    page = visit()
    send(page, "front", {"fails": True})
    other = visit(site.explorer)
    open_agents(other)
    expect(section(other, "Dead letters").get_by_role("button", name="Redrive")).to_be_disabled()
    expect(section(other, "Dead letters")).to_contain_text("open the address that the server printed")


def test_messages_are_chosen_by_agent_and_status_and_older_ones_are_fetched(visit: Opener) -> None:
    page = visit()
    open_agents(page)
    send(page, "front", {"copies": 60})
    rows = section(page, "Messages").locator("button.row")
    expect(rows).to_have_count(50)
    section(page, "Messages").get_by_role("button", name="Older messages").click()
    expect(rows).to_have_count(61)
    expect(section(page, "Messages").get_by_role("button", name="Older messages")).to_be_hidden()
    page.get_by_label("Messages to").select_option("front")
    expect(rows).to_have_count(1)
    page.get_by_label("Messages that are").select_option("dead")
    expect(rows).to_have_count(0)
    expect(section(page, "Messages")).to_contain_text("There are none.")


def test_agents_are_reached_and_left_with_the_keyboard(visit: Opener) -> None:
    page = visit()
    expect(page.locator("#detail h2")).to_have_text("agent/getState")
    page.keyboard.press("a")
    expect(page.get_by_role("heading", name="Agents", exact=True, level=2)).to_be_focused()
    expect(page.get_by_role("button", name="Agents", exact=True)).to_have_attribute("aria-current", "true")
    send(page, "front", {})
    row = section(page, "Messages").get_by_role("button", name="front: work")
    row.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("list", name="Timeline").get_by_role("listitem")).to_have_count(3)
    expect(row).to_be_focused()  # Also after the page has looked again.
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("agents")
    page.keyboard.press("Escape")
    page.locator("#list button").first.click()
    expect(page.locator("#detail h2")).to_have_text("agent/getState")
    expect(page.get_by_role("button", name="Agents", exact=True)).not_to_have_attribute("aria-current", "true")


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
def test_nothing_about_agents_keeps_people_out_or_is_wider_than_the_screen(visit: Opener, axe: str, look: str) -> None:
    size = PHONE if look == "phone" else DESK
    page = visit(viewport=size, color_scheme="dark" if look == "dark" else "light", bypass_csp=True)
    open_agents(page)
    send(page, "front", {"fails": True, "text": "x" * 3000})
    expect(section(page, "Dead letters").get_by_role("button", name="Redrive")).to_be_visible()
    section(page, "Messages").get_by_role("button", name="front: work").click()
    steps = page.get_by_role("list", name="Timeline").get_by_role("listitem")
    expect(steps).to_have_count(3)
    steps.first.get_by_text("Payload and ids").click()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(
        "document.querySelector('#detail').scrollWidth <= document.querySelector('#detail').clientWidth"
    )
    assert violations(page, axe) == {}


def test_a_phone_has_a_tab_for_agents_and_goes_back_to_the_tool(visit: Opener) -> None:
    page = visit(viewport=PHONE)
    page.locator("#list button").first.click()
    open_agents(page)
    expect(page.locator("#tools")).to_be_hidden()
    page.get_by_role("button", name="Try", exact=True).click()
    expect(page.locator("#detail h2")).to_have_text("agent/getState")


def test_a_server_without_agents_shows_nothing_of_them(visit: Opener) -> None:
    with serving("tools_on_show.py") as plain:
        page = visit(plain.address)
        expect(page.locator("#list li").first).to_be_visible()
        expect(page.get_by_role("button", name="Agents", exact=True)).to_have_count(0)
        page.keyboard.press("a")
        expect(page.locator("#detail h2")).not_to_have_text("Agents")
