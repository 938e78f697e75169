"""What can be checked of deploy/ without an engine: that it names what there is, and has what operators rely on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dragoman.config import Settings

DEPLOY = Path(__file__).parents[2] / "deploy"


def test_the_image_runs_without_rights_says_how_it_is_and_stops_in_order() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    stage = lines[max(number for number, line in enumerate(lines) if line.startswith("FROM ")) :]
    assert "USER 10001" in stage
    assert "STOPSIGNAL SIGTERM" in stage
    assert any(line.startswith("HEALTHCHECK ") for line in stage)
    assert "/ready" in "\n".join(stage)
    for line in lines:
        if line.startswith("COPY ") and "--from" not in line:
            *sources, _ = line.split()[1:]
            assert all((DEPLOY.parent / source).exists() for source in sources)
            allowed = (DEPLOY.parent / ".dockerignore").read_text().splitlines()
            assert all(f"!{source}" in allowed for source in sources)


def test_the_settings_of_the_container_are_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_TOKEN", "0" * 32)
    for name, value in re.findall(r"(DRAGOMAN_\w+)=(\S+)", (DEPLOY / "Dockerfile").read_text()):
        monkeypatch.setenv(name, value)
    config = Settings.load(DEPLOY / "app" / "dragoman.toml").config
    assert config.http.host == "0.0.0.0"
    assert config.storage.data_dir == "/var/lib/dragoman"
    assert set(config.auth.callers) == {"agent"}


def test_the_unit_and_the_compose_file_give_the_server_time_to_stop() -> None:
    unit = (DEPLOY / "dragoman.service").read_text()
    compose = (DEPLOY / "compose.yaml").read_text()
    assert "TimeoutStopSec=20" in unit
    assert "stop_grace_period: 20s" in compose


def test_the_compose_file_has_no_service_that_the_server_has_no_code_for() -> None:
    compose = (DEPLOY / "compose.yaml").read_text()
    services = compose[compose.index("services:") : compose.index("\nvolumes:")]
    assert re.findall(r"^  (\w+):", services, re.MULTILINE) == ["dragoman"]
