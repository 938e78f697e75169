"""The page to read documents with, in a real browser."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import pytest
from playwright.sync_api import FrameLocator, Page, Route, expect

from dragoman.access.local_secret import find_local_secret
from dragoman.adapters.sqlite_database import FILE_NAME, SqliteDatabase
from dragoman.adapters.sqlite_documents import SqliteDocuments
from dragoman.clock import SystemClock
from dragoman.gateway.migrations import MIGRATIONS as GATEWAY
from dragoman.knowledge.migrations import MIGRATIONS as KNOWLEDGE
from dragoman.knowledge.port import UpdateDocument
from tests.support.document_entries import Tree
from tests.support.gateway import Signer
from tests.support.gateway_process import GatewayProcess, add_keys
from tests.support.model_server import model_on_a_thread
from tests.support.pages import PHONE, Opener, violations

pytestmark = pytest.mark.slow

MANY = 10_000
TOKEN = "a-token-of-a-reader"
LANDING = """# Landing

Lower the wheels at **900 feet** and slow down to 120 knots before the threshold; then look at the far end.

## Crosswind

Hold the wing into the wind until the wheels touch the ground, and keep the nose straight with your feet all the way.

See [the checklist]({checklist}), [the web](https://evil.example/page) and [nowhere](javascript:parent.pwned=1).
"""
HOSTILE = """<script>parent.pwned = window.pwned = 1; alert(1)</script>
<img src="https://evil.example/x.png" onerror="parent.pwned = 1">
<iframe srcdoc="<script>parent.parent.pwned = 1</script>"></iframe>
<meta http-equiv=refresh content="0;url=//evil.example">
<base href="https://evil.example/"><form action="https://evil.example"><button>Go</button></form>
</style><style>@import "https://evil.example/x.css"; body { display: none }</style>

![tracked](https://evil.example/pixel.png) [a](javascript:parent.pwned=1)
[b](data:text/html,<script>parent.pwned=1</script>)
<https://evil.example/auto> [c](//evil.example/) <javascript:parent.pwned=1>

\N{RIGHT-TO-LEFT OVERRIDE}txt.exe
"""


def id_of(name: str) -> str:
    return str(uuid5(NAMESPACE_URL, name))


async def plant(tree: Tree) -> None:
    """The documents that the tests look at."""
    made: list[tuple[str, str, dict[str, Any]]] = [
        ("flying", "root", {"title": "Flying", "body": ""}),
        ("landing", "flying", {"title": "Landing", "body": LANDING.format(checklist=id_of("checklist"))}),
        ("checklist", "flying", {"title": "Checklist", "mime_type": "text/plain", "body": "1. Fuel\n2. Doors"}),
        ("weather", "root", {"title": "Weather", "body": "Clouds and wind", "tags": ("sky",)}),
        ("hidden", "root", {"title": "For programs", "body": "raw-values", "is_human_readable": False}),
        ("evil", "root", {"title": f"Evil {HOSTILE[:60]}", "body": HOSTILE}),
        ("line", "root", {"title": "One line", "body": "word " * 209_715}),
        ("solid", "root", {"title": "Solid line", "mime_type": "text/plain", "body": "x" * 1_048_576}),
        ("deep", "root", {"title": "Deep", "body": "> " * 3000 + "bottom"}),
        ("many", "root", {"title": "Many", "body": ""}),
    ]
    for name, parent, fields in made:
        above = parent if parent == "root" else id_of(parent)
        await tree.create(id_of(name), above, **{"mime_type": "text/markdown", **fields})
    changed = LANDING.format(checklist=id_of("checklist")).replace("120 knots", "110 knots")
    await tree.do(
        UpdateDocument(id=id_of("landing"), fields={"content.body": changed, "metadata.tags": ("air", "sky")})
    )
    for start in range(0, MANY, 500):
        numbers = range(start, start + 500)
        await asyncio.gather(
            *(tree.create(id_of(f"m{each}"), id_of("many"), title=f"Sheet {each:05}", body="s") for each in numbers)
        )


def planted(folder: Path, tenant: str, grow: Callable[[Tree], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        database = SqliteDatabase(folder / FILE_NAME, (*KNOWLEDGE, *GATEWAY))
        await grow(Tree(SqliteDocuments(database, SystemClock()), tenant))
        await database.close()

    apart(asyncio.run, run())


def apart(work: Callable[..., object], *arguments: object) -> None:
    """Do something in a thread of its own: in this one, Playwright has a loop that runs."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(work, *arguments).result()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A server of this machine, which asks nobody who they are, of two processes."""
    folder = tmp_path_factory.mktemp("page")
    apart(add_keys, folder, Signer("local", "owner"))
    planted(folder, "local", plant)
    with GatewayProcess(folder, "--workers", "2") as found:
        yield found


def owners_page(server: GatewayProcess) -> str:
    """The address that a server prints."""
    return server.url(f"/knowledge/#local={find_local_secret(server.folder)}")


@pytest.fixture
def read(pages: Opener, server: GatewayProcess) -> Opener:
    """Opens the page, at a document if one is named, and waits for the tree's first documents."""

    def open_page(document: str = "", **options: Any) -> Page:
        place = f"&tenant=local&document={id_of(document)}" if document else ""
        page = pages(owners_page(server) + place, **options)
        expect(page.locator(".item:not(.other)").first).to_be_attached()
        return page

    return open_page


def text_of(page: Page) -> FrameLocator:
    """The frame that a document is shown in."""
    return page.frame_locator("iframe")


def item(page: Page, name: str) -> Any:
    return page.get_by_role("treeitem", name=name, exact=True)


def search(page: Page, words: str) -> None:
    page.keyboard.press("/")
    page.keyboard.type(words)
    expect(page.get_by_role("option").first).to_be_visible()


# The tree.


def test_the_tree_is_walked_by_keyboard(read: Opener) -> None:
    page = read()
    tree = page.get_by_role("tree")
    page.keyboard.press("d")
    expect(tree).to_be_focused()
    expect(tree).to_have_attribute("aria-activedescendant", "row-0")
    page.keyboard.press("ArrowRight")
    expect(item(page, "Landing")).to_be_visible()
    expect(item(page, "Flying")).to_have_attribute("aria-expanded", "true")
    expect(item(page, "Landing")).to_have_attribute("aria-level", "2")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=2)).to_have_text("Checklist")
    expect(text_of(page).locator("pre")).to_have_text("1. Fuel\n2. Doors")
    expect(tree).to_be_focused()
    expect(item(page, "Checklist")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(item(page, "Landing")).to_have_count(0)
    page.keyboard.press("End")
    expect(page.locator(".item.active")).to_have_text("Many")
    page.keyboard.press("Home")
    expect(page.locator(".item.active")).to_have_text("Flying")


def test_the_tree_can_be_entered_before_its_documents_have_come(pages: Opener, server: GatewayProcess) -> None:
    page, held = pages("about:blank"), list[Route]()
    page.route("**/api/children?*", lambda route: held.append(route))
    page.goto(owners_page(server))
    tree = page.get_by_role("tree")
    expect(item(page, "Loading…")).to_be_visible()
    page.keyboard.press("d")
    expect(tree).to_be_focused()
    held[0].continue_()
    expect(item(page, "Flying")).to_be_visible()
    expect(tree).to_have_attribute("aria-activedescendant", "row-0")
    page.keyboard.press("ArrowDown")
    expect(page.locator(".item.active")).to_have_text("Weather")


def test_a_document_without_a_text_lists_what_is_below_it(read: Opener) -> None:
    page = read("flying")
    page.get_by_role("main").get_by_role("link", name="Landing").click()
    expect(page.get_by_role("heading", level=2)).to_have_text("Landing")
    crumbs = page.get_by_role("navigation", name="Where this is").get_by_role("link")
    expect(crumbs).to_have_text(["local", "Flying"])
    page.go_back()
    expect(page.get_by_role("heading", level=2)).to_have_text("Flying")


def test_ten_thousand_siblings_are_no_burden(read: Opener) -> None:
    page = read()
    item(page, "Many").click()
    expect(item(page, "Sheet 00000")).to_be_visible()
    for _ in range(30):  # Each time to the end of what is there, where more comes.
        page.keyboard.press("End")
        page.locator("#tree").evaluate("(tree) => { tree.scrollTop = tree.scrollHeight; }")
        page.evaluate("new Promise(requestAnimationFrame)")
    page.locator("#tree").evaluate("(tree) => { tree.scrollTop = 34 * 300; }")
    expect(page.locator(".item", has_text=re.compile("^Sheet 0029"))).not_to_have_count(0)
    assert page.locator(".item").count() < 80
    assert page.evaluate("document.querySelectorAll('*').length") < 1500
    far = read(f"m{MANY - 1}")
    expect(far.get_by_role("heading", level=2)).to_have_text(f"Sheet {MANY - 1:05}")


# The document.


def test_a_document_is_laid_out_in_a_frame_that_may_do_nothing(read: Opener) -> None:
    page = read("landing")
    text = text_of(page)
    expect(text.locator("strong")).to_have_text("900 feet")
    expect(text.locator("h1")).to_have_count(0)  # It is the title, which stands above.
    assert page.locator("iframe").get_attribute("sandbox") == (
        "allow-popups allow-popups-to-escape-sandbox allow-top-navigation-by-user-activation"
    )
    expect(text.get_by_role("link")).to_have_text(["the checklist", "the web"])
    frame = page.frames[1]
    assert frame.evaluate("origin") == "null"
    text.get_by_role("link", name="the checklist").click()
    expect(page.get_by_role("heading", level=2)).to_have_text("Checklist")
    expect(item(page, "Checklist")).to_have_attribute("aria-selected", "true")


def test_hostile_documents_run_nothing_and_ask_nobody(read: Opener, server: GatewayProcess) -> None:
    page = read()
    asked: list[str] = []
    page.context.on("request", lambda request: asked.append(request.url))
    item(page, f"Evil {HOSTILE[:60]}".strip()).or_(page.get_by_role("treeitem", name=re.compile("^Evil"))).first.click()
    text = text_of(page)
    expect(text.get_by_text("[U+202E]txt.exe")).to_be_visible()
    expect(text.get_by_text("[Picture: tracked]")).to_be_visible()
    expect(text.locator("main")).to_contain_text("<script>parent.pwned = window.pwned = 1; alert(1)</script>")
    expect(text.get_by_role("link")).to_have_text(["https://evil.example/auto"])
    for link in ("a", "b", "c"):
        text.get_by_text(link, exact=True).click()
    page.get_by_role("link", name="History").click()
    expect(page.locator(".diff")).to_contain_text("<script>")
    assert page.evaluate("window.pwned") is None
    assert [url for url in asked if not url.startswith((server.url("/knowledge/"), "blob:"))] == []
    assert len(page.context.pages) == 1


@pytest.mark.parametrize("name", ["line", "solid", "deep"])
def test_a_megabyte_on_one_line_and_deep_nesting_hang_nothing(name: str, read: Opener) -> None:
    page = read(name)
    text = text_of(page)
    if name != "deep":
        expect(text.locator(".note")).to_contain_text("of 1,048,5")
    expect(text.locator("main")).to_contain_text({"line": "word word", "solid": "xxx", "deep": "bottom"}[name])
    # The page answers, and so does the frame.
    page.get_by_role("link", name="History").click()
    expect(page.locator(".diff")).to_be_visible()


def test_a_document_that_is_not_for_people_is_named_and_not_shown(read: Opener) -> None:
    page = read("hidden")
    expect(page.get_by_text("Not for people")).to_be_visible()
    expect(page.get_by_text("raw-values")).to_have_count(0)
    page = read("no such document")
    expect(page.get_by_text("There is no such document")).to_be_visible()


def test_history_shows_what_has_changed(read: Opener) -> None:
    page = read("landing")
    page.get_by_role("navigation", name="Views").get_by_role("link", name="History").click()
    revisions = page.get_by_role("list", name="Revisions").get_by_role("button")
    expect(revisions).to_have_text([re.compile("^2 · Updated"), re.compile("^1 · Created")])
    change = page.get_by_role("region", name="What has changed")
    expect(change.locator("del mark")).to_have_text(["120"])
    expect(change.locator("ins mark")).to_have_text(["110"])
    expect(change.locator("dl")).to_have_text("Tagsnone → air, sky")
    revisions.nth(1).click()
    expect(change.locator(".plus")).to_have_text("+10")
    revisions.nth(0).click()
    change.get_by_role("combobox").select_option("nothing")
    expect(change.locator("tr.cut")).to_have_count(0)


# Search.


def test_search_as_one_types_marks_the_words_and_opens_the_place(read: Opener) -> None:
    page = read()
    search(page, "crosswind whee")
    expect(page.get_by_role("option").first).to_contain_text("Flying")
    expect(page.locator("mark", has_text="wheels").first).to_be_visible()
    box = page.get_by_role("combobox", name="Search the documents")
    expect(box).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("option").first).to_have_attribute("aria-selected", "true")
    expect(box).to_have_attribute("aria-activedescendant", "option-0")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=2)).to_have_text("Landing")
    expect(page.get_by_role("heading", level=2)).to_be_focused()
    expect(text_of(page).locator("#crosswind")).to_be_visible()
    expect(box).to_have_value("")
    page.go_back()
    expect(box).to_have_value("crosswind whee")
    expect(page.get_by_role("option").first).to_be_visible()


def test_what_is_found_late_does_not_replace_what_was_asked_later(read: Opener) -> None:
    page = read()
    held: list[Any] = []
    page.route(re.compile(r"search\?.*q=clouds(&|$)"), lambda route: held.append(route))
    page.keyboard.press("/")
    with page.expect_request(re.compile("q=clouds")):
        page.keyboard.type("clouds")
    box = page.get_by_role("combobox", name="Search the documents")
    box.fill("checklist")
    expect(page.get_by_role("option").first).to_contain_text("Checklist")
    assert len(held) == 1
    with page.expect_response(re.compile("q=xylophone")):
        box.fill("xylophone")
    expect(page.get_by_text("Nothing was found").first).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_text("Choose a document")).to_be_visible()


def test_a_tag_narrows_the_search(read: Opener) -> None:
    page = read("weather")
    page.get_by_role("button", name="sky").click()
    page.keyboard.type("wind")
    expect(page.get_by_role("option")).not_to_have_count(0)
    titles = page.get_by_role("option").locator(".title").all_inner_texts()
    assert {title.split(" ›")[0] for title in titles} <= {"Weather", "Landing"}
    page.get_by_role("button", name="Search without the tag sky").click()
    expect(page.get_by_role("combobox", name="Search the documents")).to_have_value("wind")


def test_the_secret_leaves_the_address_and_is_kept_for_the_tab(
    read: Opener, pages: Opener, server: GatewayProcess
) -> None:
    page = read("weather")
    assert "local=" not in page.url
    page.reload()
    expect(text_of(page).get_by_text("Clouds and wind")).to_be_visible()
    stranger = pages(server.url("/knowledge/"))
    expect(stranger.get_by_text("Open the address that the server printed")).to_be_visible()


def test_a_model_is_asked_for_an_answer_only_when_somebody_wants_one(pages: Opener, tmp_path: Path) -> None:
    async def grow(tree: Tree) -> None:
        await tree.create(id_of("owls"), title="Owls", body="Owls hunt at night, and sleep by day.")

    apart(add_keys, tmp_path, Signer("local", "owner"))
    planted(tmp_path, "local", grow)
    with model_on_a_thread() as model:
        settings = {f"knowledge.{name}": value for name, value in model.settings.items()}
        with GatewayProcess(tmp_path, settings=settings) as server:
            page = pages(owners_page(server))
            expect(item(page, "Owls")).to_be_visible()
            search(page, "when do owls hunt")
            assert model.requests == []
            page.get_by_role("button", name="Answer this").click()
            answer = page.get_by_role("region", name="Answer")
            expect(answer).to_have_text("Owls hunt at night [1].")
            assert len(model.requests) == 1
            answer.get_by_role("link", name="[1]").click()
            expect(page.get_by_role("heading", level=2)).to_have_text("Owls")


# Everybody can use it.


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
def test_axe_finds_nothing_that_keeps_people_out(look: str, read: Opener, axe: str) -> None:
    options: dict[str, Any] = {"viewport": PHONE} if look == "phone" else {}
    page = read(color_scheme="dark" if look == "dark" else "light", bypass_csp=True, **options)
    assert violations(page, axe) == {}, "the tree"
    page.keyboard.press("d")
    page.keyboard.press("ArrowRight")
    item(page, "Landing").click()
    expect(text_of(page).locator("strong")).to_be_visible()
    assert violations(page, axe) == {}, "a document"
    page.get_by_role("link", name="History").click()
    expect(page.locator(".diff")).to_be_visible()
    assert violations(page, axe) == {}, "its history"
    search(page, "wheels")
    page.keyboard.press("ArrowDown")
    assert violations(page, axe) == {}, "a search"
    page.locator("#theme").click()
    assert violations(page, axe) == {}, "in the other colours"


def test_a_phone_shows_one_thing_at_a_time(read: Opener) -> None:
    page = read(viewport=PHONE)
    item(page, "Weather").click()
    expect(text_of(page).get_by_text("Clouds and wind")).to_be_visible()
    expect(page.get_by_role("tree")).to_be_hidden()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    page.get_by_role("button", name="Documents").click()
    expect(page.get_by_role("tree")).to_be_visible()
    expect(page.locator("iframe")).to_be_hidden()


def test_the_colours_reach_the_frame(read: Opener) -> None:
    page = read("weather")
    text = text_of(page)
    expect(text.locator("body")).to_have_css("background-color", "rgb(255, 255, 255)")
    page.keyboard.press("t")
    expect(text.locator("body")).to_have_css("background-color", "rgb(26, 29, 34)")
    page.reload()
    expect(text.locator("body")).to_have_css("background-color", "rgb(26, 29, 34)")


def test_the_page_asks_for_a_token_and_shows_only_the_callers_tenants(pages: Opener, tmp_path: Path) -> None:
    async def grow(tree: Tree) -> None:
        await tree.create(id_of("only"), title=f"Of {tree.tenant}", body="Seen only with a token")

    for tenant in ("acme", "beta", "other"):
        planted(tmp_path, tenant, grow)
    callers = {"reader": {"token": TOKEN, "roles": ["viewer"], "tenants": ["acme", "beta"]}}
    with GatewayProcess(tmp_path, callers=callers) as server:
        page = pages(server.url("/knowledge/"))
        page.get_by_label("Bearer token").fill("wrong")
        page.get_by_role("button", name="Go on").click()
        expect(page.get_by_text("This token was refused.")).to_be_visible()
        page.get_by_label("Bearer token").fill(TOKEN)
        page.get_by_role("button", name="Go on").click()
        item(page, "Of acme").click()
        expect(text_of(page).get_by_text("Seen only with a token")).to_be_visible()
        page.get_by_label("Tenant").select_option("beta")
        expect(item(page, "Of beta")).to_be_visible()
        expect(item(page, "Of acme")).to_have_count(0)
        expect(page.get_by_label("Tenant").locator("option")).to_have_text(["acme", "beta"])
        page.evaluate("location.hash = '#tenant=other'")
        expect(page.get_by_text("There is no such document").first).to_be_visible()
        expect(item(page, "Of other")).to_have_count(0)
