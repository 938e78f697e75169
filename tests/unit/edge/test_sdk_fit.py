"""The SDK has what is used of its insides, and one that does not is named."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest

import dragoman.edge.sdk
from dragoman.cli import checks
from dragoman.edge.sdk import fit
from dragoman.testing import open_server

SOURCES = {path: path.read_text("utf-8") for path in Path(dragoman.edge.sdk.__file__).parent.glob("*.py")}
PRIVATE = r"_(?!_)[a-z]\w*"


@pytest.mark.requirement("C-01")
def test_the_installed_sdk_has_all_that_is_used_of_its_insides() -> None:
    fit.check_sdk()


def test_every_member_of_the_sdk_without_a_promise_is_in_the_list() -> None:
    source = "\n".join(text for path, text in SOURCES.items() if path.name != "fit.py")
    used = {*re.findall(rf"\.({PRIVATE})\b", source)}
    own = {*re.findall(rf"\bself\.({PRIVATE})(?:: [^=\n]+)? = ", source)}
    own |= {*re.findall(rf"^(?:    )?({PRIVATE})(?:: [^=\n]+)? = ", source, re.MULTILINE)}
    overridden = {*re.findall(rf"super\(\)\.({PRIVATE})\(", source)}
    own |= {*re.findall(rf"\bdef ({PRIVATE})\(", source)} - overridden
    listed = {name for names in fit.INSIDES.values() for name in names}
    assert (used | overridden) - own - listed == set()


@pytest.mark.requirement("C-01")
async def test_a_version_that_does_not_fit_is_named_with_what_it_does_not_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = "mcp.server.streamable_http:StreamableHTTPServerTransport"
    monkeypatch.setattr(fit, "INSIDES", {place: ("_request_streams", "_gone"), "mcp.server.gone:Gone": ("_x",)})
    said = f"mcp {metadata.version('mcp')} does not fit this version of Dragoman: there is no "
    with pytest.raises(fit.SdkDoesNotFit) as refused:
        fit.check_sdk()
    assert str(refused.value).startswith(f"{said}StreamableHTTPServerTransport._gone, mcp.server.gone:Gone.")
    (finding,) = checks.sdk()
    assert (finding.verdict, finding.message.startswith(said)) == ("problem", True)
    async with open_server([]) as server:
        client = await server.client()
        assert "error" in await client.request("resources/list")
        assert (await client.list_tools())[0]["name"] == "health", "the lane answers all the same"
        assert any(said in str(entry) for entry in server.log)
    monkeypatch.undo()
    assert [*checks.sdk()] == []
