"""How long the explorer's page takes until it can be used, with few tools and with many: `python -m bench page`.

In a real browser, without a cache: from the request for the page until its first tool can be clicked.
"""

from __future__ import annotations

import shutil

from bench.process import BenchError
from bench.rounds import Figures, Plan, spread_of
from tests.support.sites import QUIET, Site, serving

COUNTS = (10, 1000)
_MOST_ROUNDS = 5
_TOOLS = """
from dragoman import Tool, ToolDefinition

TOOLS = [
    Tool(
        ToolDefinition(
            name=f"tool-{{number:03}}",
            description=f"Does the thing with the number {{number}}.",
            input_schema={{"type": "object", "properties": {{"text": {{"type": "string"}}}}}},
        ),
        lambda arguments, context: arguments,
    )
    for number in range({count})
]
"""


def page(plan: Plan) -> Figures:
    """Milliseconds by the number of tools; nothing where there is no browser."""
    chromium = shutil.which("chromium")
    if chromium is None:
        plan.say("page: there is no Chromium here, so it is left out")
        return {}
    return {str(count): _opened(plan, chromium, count) for count in COUNTS}


def _opened(plan: Plan, chromium: str, count: int) -> Figures:
    from playwright.sync_api import sync_playwright

    tools = plan.folder / f"page_{count}_tools.py"
    tools.write_text(_TOOLS.format(count=count))
    with serving(f"{tools}:TOOLS") as site, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(QUIET))
        try:
            opened = [_until_usable(browser, site) for _ in range(min(plan.rounds, _MOST_ROUNDS) + 1)][
                1:
            ]  # The first one warms up.
        finally:
            browser.close()
    figures = spread_of(opened)
    plan.say(f"page, {count:,} tools: usable after {figures['median']:.0f} ms")
    return figures


def _until_usable(browser: object, site: Site) -> float:
    context = browser.new_context()  # type: ignore[attr-defined]
    try:
        opened = context.new_page()
        opened.goto(site.explorer, wait_until="commit")
        opened.get_by_text("tool-000").first.wait_for()
        milliseconds: float = opened.evaluate("performance.now()")
    finally:
        context.close()
    if milliseconds <= 0:
        raise BenchError("the browser's clock stands still")
    return milliseconds
