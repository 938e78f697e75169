"""What the package exports, what it says about itself, and what importing it loads."""

from __future__ import annotations

import importlib
import json
import pkgutil
import subprocess
import sys

import pytest

from dragoman.agents import aacp
from tests.support.waiting import PATIENCE

INTERNAL = {"AACPWaiting"}


@pytest.mark.requirement("FND-AACP-45")
def test_everything_public_is_exported() -> None:
    defined = {
        name
        for module in pkgutil.iter_modules(aacp.__path__, "dragoman.agents.aacp.")
        for name, value in vars(importlib.import_module(module.name)).items()
        if isinstance(value, type) and value.__module__ == module.name and not name.startswith("_")
    }
    assert defined - INTERNAL <= set(aacp.__all__)
    assert {"AACPRetryPolicy", "AACPHandler", "InMemoryAACPPersistenceAdapter"} <= set(aacp.__all__)
    assert all(hasattr(aacp, name) for name in aacp.__all__)
    assert sorted(aacp.__all__) == aacp.__all__


@pytest.mark.slow
@pytest.mark.requirement("FND-AACP-45")
def test_importing_it_loads_nothing_of_the_server() -> None:
    code = "import sys, json, dragoman.agents.aacp; print(json.dumps(sorted(sys.modules)))"
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=PATIENCE).stdout
    rooms = {name.split(".")[1] for name in json.loads(output) if name.startswith("dragoman.")}
    assert rooms == {"agents", "clock", "errors", "messaging", "version"}


@pytest.mark.requirement("FND-AACP-46", "FND-AACP-08")
@pytest.mark.parametrize(
    "said",
    [
        "**Purpose.**",
        "means receipt, not commitment",
        "limits `ack` to receipt",
        "so the `ack` of a pair is its last sequence number",
        "`storage.port(AACPRecords).for_agent(agent_id)`",
        "It keys on `requestId`",
        "1. Duplicate check by `requestId`. 2.",
        "**Limits of v0.1.** Records are in memory",
        "**Roadmap, v0.2.** Durable adapters",
        "**Integration with the coordinator.**",
        "`send_message` stays as it is",
        "opt-in",
    ],
)
def test_the_docs_explain(said: str) -> None:
    assert said in " ".join((aacp.__doc__ or "").split())
