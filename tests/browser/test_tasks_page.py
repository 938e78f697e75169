"""Tasks on the explorer's page, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.support.pages import DESK, PHONE, Opener, choose, violations
from tests.support.served.tasks_on_show import HOSTILE
from tests.support.sites import Site, serving

pytestmark = pytest.mark.slow

SETTINGS = """
[storage]
data_dir = "{folder}"
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    settings = tmp_path / "settings.toml"
    settings.write_text(SETTINGS.format(folder=tmp_path / "data"))
    with serving("tasks_on_show.py", "--allow-execute", "--config", str(settings)) as found:
        yield found


def tasks(page: Page) -> Locator:
    """One for each task, the newest first."""
    return page.get_by_role("table").locator("> tbody")


def start(page: Page, tool: str, **arguments: str) -> Locator:
    """Run a tool as a task from its form; the page then shows the task, opened."""
    choose(page, tool)
    for name, value in arguments.items():
        field = page.get_by_label(name, exact=True)
        if field.evaluate("field => field.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)
    page.get_by_role("button", name="Run as a task", exact=True).click()
    expect(page.get_by_role("heading", name="Tasks", exact=True, level=2)).to_be_visible()
    row = row_of(tasks(page).first, tool)
    expect(row).to_have_attribute("aria-expanded", "true")
    expect(row).to_be_focused()
    return tasks(page).first


def row_of(task: Locator, tool: str) -> Locator:
    return task.locator("button.row", has_text=tool)


def go_on(page: Page, name: str) -> None:
    """Let a task that builds `name` end."""
    page.evaluate("(name) => post('tools/go_on/call', { name })", name)


def test_a_task_is_started_from_a_tools_form_and_its_result_is_shown_when_it_ends(visit: Opener) -> None:
    page = visit()
    task = start(page, "build", name="a ship", password="hunter2")
    expect(task.get_by_role("progressbar", name="Progress of build")).to_have_attribute("aria-valuenow", "30")
    expect(task).to_contain_text("working")
    expect(task).to_contain_text("step 3 of a ship")
    task.get_by_text("Arguments", exact=True).click()
    expect(task).to_contain_text('password: "[REDACTED]"')
    go_on(page, "a ship")
    expect(task).to_contain_text("completed")
    expect(task.get_by_role("progressbar")).to_be_hidden()
    expect(task.get_by_role("table")).to_contain_text(HOSTILE)
    expect(task.get_by_role("button", name="Cancel the task")).to_be_hidden()
    expect(task).to_contain_text("1 attempt")
    task.get_by_role("button", name="JSON").click()
    expect(task).to_contain_text('"resultType": "complete"')
    assert page.evaluate("location.hash") == "#tasks"
    page.reload()
    expect(tasks(page)).to_have_count(1)
    expect(tasks(page).first).to_contain_text("completed")


def test_questions_of_a_task_are_forms_and_each_is_answered_by_itself(visit: Opener) -> None:
    page = visit(tool="book")
    expect(page.get_by_role("button", name="Run", exact=True)).to_have_count(0)  # It runs as a task, or not at all.
    task = start(page, "book")
    questions = task.get_by_role("form", name="Question")
    expect(questions).to_have_count(2)
    expect(task).to_contain_text("input required")
    expect(questions.first).to_contain_text(HOSTILE)
    where = questions.first
    where.get_by_label("city").fill("Oslo")
    where.get_by_label("nights").fill("3")
    where.get_by_label("by").select_option("ship")
    expect(page.locator("#calls li").first).to_be_visible()  # The page has looked again, and kept what was typed.
    expect(where.get_by_label("city")).to_have_value("Oslo")
    where.get_by_role("button", name="Answer").click()
    expect(questions).to_have_count(1)
    sure = questions.first.get_by_label("value")
    expect(sure).to_be_focused()
    sure.check()
    questions.first.get_by_role("button", name="Answer").click()
    expect(task).to_contain_text("completed")
    expect(task).to_contain_text("3 nights in Oslo, by ship")
    expect(row_of(task, "book")).to_be_focused()


def test_a_question_can_be_declined(visit: Opener) -> None:
    page = visit()
    task = start(page, "book")
    questions = task.get_by_role("form", name="Question")
    expect(questions).to_have_count(2)
    questions.first.get_by_role("button", name="Decline").click()
    expect(questions).to_have_count(1)
    questions.first.get_by_role("button", name="Decline").click()
    expect(task).to_contain_text("nothing was booked")


def test_a_task_is_cancelled_from_the_page(visit: Opener) -> None:
    page = visit()
    task = start(page, "build", name="a bridge")
    expect(task).to_contain_text("step 3")
    task.get_by_role("button", name="Cancel the task").click()
    expect(row_of(task, "build")).to_be_focused()
    expect(task).to_contain_text("cancelled")
    expect(task.get_by_role("button", name="Cancel the task")).to_be_hidden()


@pytest.mark.parametrize(
    ("how", "status", "code", "said"),
    [("tool", "completed", "INVALID_ARGUMENT", HOSTILE), ("protocol", "failed", "1234", "it broke")],
)
def test_an_error_of_a_task_is_shown_as_one(visit: Opener, how: str, status: str, code: str, said: str) -> None:
    page = visit()
    task = start(page, "refuse", how=how)
    expect(task).to_contain_text(status)
    expect(task.get_by_role("heading", name="Error")).to_be_visible()
    expect(task.locator(".wrong")).to_contain_text(code)
    expect(task.locator(".wrong")).to_contain_text(said)


def test_arguments_that_do_not_fit_are_marked_and_no_task_is_made(visit: Opener) -> None:
    page = visit(tool="build")
    page.get_by_role("button", name="Run as a task", exact=True).click()
    expect(page.get_by_role("region", name="Result")).to_contain_text("Input validation failed")
    expect(page.get_by_label("name", exact=True)).to_be_focused()
    expect(page.get_by_label("name", exact=True)).to_have_attribute("aria-invalid", "true")
    page.keyboard.press("Escape")
    page.keyboard.press("k")
    expect(page.locator("#detail")).to_contain_text("There are none.")
    expect(tasks(page)).to_have_count(0)


def test_without_the_printed_address_tasks_can_be_read_and_not_changed(visit: Opener, site: Site) -> None:
    start(visit(), "book")
    other = visit(site.explorer)
    other.get_by_role("button", name="Tasks", exact=True).click()
    row_of(tasks(other).first, "book").click()
    expect(other.get_by_role("button", name="Answer")).to_have_count(2)
    for name in ("Answer", "Decline", "Cancel the task"):
        for button in other.get_by_role("button", name=name).all():
            expect(button).to_be_disabled()
    expect(tasks(other).first).to_contain_text("open the address that the server printed")
    choose(other, "build")
    expect(other.get_by_role("button", name="Run as a task")).to_be_disabled()


def test_older_tasks_are_fetched(visit: Opener) -> None:
    page = visit()
    page.evaluate(
        """async () => {
            const made = { tool: "refuse", arguments: { how: "tool" } };
            for (let number = 0; number < 51; number++) await post("tasks", made);
        }"""
    )
    page.get_by_role("button", name="Tasks", exact=True).click()
    expect(tasks(page)).to_have_count(50)
    page.get_by_role("button", name="Older tasks").click()
    expect(tasks(page)).to_have_count(51)
    expect(page.get_by_role("button", name="Older tasks")).to_be_hidden()


def test_tasks_are_reached_answered_and_left_with_the_keyboard(visit: Opener) -> None:
    page = visit(tool="book")
    page.keyboard.press("Control+Enter")
    row = row_of(tasks(page).first, "book")
    expect(row).to_be_focused()
    expect(page.get_by_role("button", name="Tasks", exact=True)).to_have_attribute("aria-current", "true")
    questions = page.get_by_role("form", name="Question")
    expect(questions).to_have_count(2)
    expect(row).to_be_focused()  # A question does not take the focus from whoever is elsewhere.
    page.keyboard.press("Tab")
    expect(questions.first.get_by_label("city")).to_be_focused()
    page.keyboard.type("Rome")
    page.keyboard.press("Tab")
    page.keyboard.type("2")
    page.keyboard.press("Enter")
    expect(questions).to_have_count(1)
    page.keyboard.press("Space")
    page.keyboard.press("Enter")
    expect(tasks(page).first).to_contain_text("2 nights in Rome")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("tasks")
    page.keyboard.press("Escape")
    expect(row).to_be_focused()
    page.keyboard.press("Enter")
    expect(row).to_have_attribute("aria-expanded", "false")
    choose(page, "build")
    expect(page.get_by_role("button", name="Tasks", exact=True)).not_to_have_attribute("aria-current", "true")


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
def test_nothing_about_tasks_keeps_people_out_or_is_wider_than_the_screen(visit: Opener, axe: str, look: str) -> None:
    size = PHONE if look == "phone" else DESK
    page = visit(viewport=size, color_scheme="dark" if look == "dark" else "light", bypass_csp=True)
    done = "x" * 200
    for tool, arguments in (("build", {"name": done}), ("build", {"name": "a tower"}), ("refuse", {"how": "protocol"})):
        start(page, tool, **arguments)
    go_on(page, done)
    start(page, "book")
    expect(page.get_by_role("form", name="Question")).to_have_count(2)
    expect(tasks(page).nth(3)).to_contain_text("completed")
    expect(tasks(page).nth(2).get_by_role("progressbar")).to_have_attribute("aria-valuenow", "30")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(
        "document.querySelector('#detail').scrollWidth <= document.querySelector('#detail').clientWidth"
    )
    assert violations(page, axe) == {}


def test_a_phone_has_a_tab_for_tasks_and_goes_back_to_the_tool(visit: Opener) -> None:
    page = visit(viewport=PHONE)
    start(page, "book")
    expect(page.locator("#tools")).to_be_hidden()
    expect(page.get_by_role("button", name="Tasks", exact=True)).to_have_attribute("aria-current", "true")
    page.get_by_role("button", name="Try", exact=True).click()
    expect(page.locator("#detail h2")).to_have_text("book")


def test_a_server_without_task_support_shows_nothing_of_tasks(visit: Opener) -> None:
    with serving("tools_on_show.py", "--allow-execute") as plain:
        page = visit(plain.address)
        expect(page.locator("#list li").first).to_be_visible()
        expect(page.get_by_role("button", name="Run", exact=True)).to_be_visible()
        expect(page.get_by_role("button", name="Run as a task")).to_have_count(0)
        expect(page.get_by_role("button", name="Tasks", exact=True)).to_have_count(0)
        page.keyboard.press("k")
        expect(page.locator("#detail h2")).not_to_have_text("Tasks")
