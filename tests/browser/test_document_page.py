"""The page of a document in a real browser: it shows the text, and nothing in it runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.support.gateway import Signer, as_body, create_args
from tests.support.gateway_process import CREATE, GatewayProcess

pytestmark = pytest.mark.slow

HOSTILE = (
    "<script>document.title = 'run'</script>"
    "<img src=x onerror=\"document.title = 'run'\">"
    "</pre><iframe srcdoc=\"<script>parent.document.title = 'run'</script>\"></iframe>"
    "<meta http-equiv=refresh content='0;url=javascript:1'>"
    "<style>body { display: none }</style>\N{RIGHT-TO-LEFT OVERRIDE}gnp.exe"
)


@pytest.mark.requirement("MC-RBAC-07")
def test_page_of_a_document_shows_its_text_and_runs_nothing(browser: Browser, tmp_path: Path) -> None:
    token = "a-token-of-the-writer"
    callers = {"svc:writer": {"token": token, "roles": ["owner"], "tenants": ["acme"]}}
    with GatewayProcess(tmp_path, callers=callers) as server:
        args = create_args(content={"mime_type": "text/markdown", "body": HOSTILE}, metadata={"title": HOSTILE})
        made = server.post(as_body(Signer("acme", "owner", sub="svc:writer").envelope(CREATE, args)), token)
        page_path = made.json["data"]["web_uri"]
        context = browser.new_context(extra_http_headers={"authorization": f"Bearer {token}"})
        requested: list[str] = []
        page = context.new_page()
        page.on("request", lambda request: requested.append(request.url))
        response = page.goto(server.url(page_path))
        assert response is not None
        assert response.status == 200
        assert page.locator("pre").inner_text() == HOSTILE
        assert page.locator("h1").is_visible()
        assert page.title() == HOSTILE
        assert requested == [server.url(page_path)]
        context.close()
