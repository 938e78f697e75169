"""The explorer's page in a browser: what the tests of it share."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import Page, expect

from tests.support.waiting import PATIENCE

PHONE = {"width": 360, "height": 740}
DESK = {"width": 1280, "height": 800}
expect.set_options(timeout=1000 * PATIENCE)

Opener = Callable[..., Page]


def choose(page: Page, name: str) -> None:
    """Open a tool."""
    if page.locator("#tabs").is_visible():
        page.get_by_role("button", name="Tools", exact=True).click()
    page.locator("#list button").filter(has=page.get_by_text(name, exact=True)).or_(
        page.locator("#list button", has_text=re.compile(f"^{re.escape(name)}"))
    ).first.click()
    expect(page.locator("#detail h2")).to_have_text(name)


def violations(page: Page, axe: str) -> dict[str, list[str]]:
    """What axe-core finds that keeps people out, by rule."""
    page.evaluate(axe)
    found = page.evaluate("axe.run({resultTypes: ['violations']})")
    return {each["id"]: [node["html"][:150] for node in each["nodes"]] for each in found["violations"]}
