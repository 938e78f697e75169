"""`dragoman config`: what is in force, where it came from, and what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import jsonschema_rs
import msgspec
import pytest
from typer.testing import CliRunner

from dragoman.calls.settings import GATES
from dragoman.cli.commands import app
from dragoman.cli.config import MASK, json_schema, masked
from dragoman.config import Config
from dragoman.sections import Section, about

runner = CliRunner()


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that holds no settings."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shown(*arguments: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    result = runner.invoke(app, ["config", "show", "--json", *arguments], env=env)
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_every_setting_in_force_is_shown_with_its_source() -> None:
    everything = shown(env={"DRAGOMAN_SERVER__NAME": "mine"})
    assert everything["file"] is None
    assert everything["settings"]["server.name"] == {"value": "mine", "source": "DRAGOMAN_SERVER__NAME"}
    assert everything["settings"]["tools.admin_policy.mode"] == {"value": "deny_all", "source": "default"}
    sections = {name.split(".")[0] for name in everything["settings"]}
    assert sections == set(Config.__struct_fields__)


def test_only_what_was_changed_is_shown_when_that_is_asked_for(workplace: Path) -> None:
    (workplace / "my.toml").write_text('[limits.tools."a/b"]\nmaxArraySize = 5\n[server]\nname = "mine"\n')
    source = "my.toml"
    assert shown("--changed", "--config", source) == {
        "file": source,
        "settings": {
            "server.name": {"value": "mine", "source": source},
            'limits.tools."a/b".max_array_size': {"value": 5, "source": source},
        },
    }
    assert set(shown("--changed", "--config", source, "--section", "server")["settings"]) == {"server.name"}


def test_a_person_is_shown_columns_section_by_section() -> None:
    result = runner.invoke(app, ["config", "show", "--changed"], env={"DRAGOMAN_HTTP__PORT": "5"})
    assert result.stdout.splitlines() == [
        "# no file; ./dragoman.toml and ./dragoman.json are looked for",
        "",
        "http.port  5  DRAGOMAN_HTTP__PORT",
    ]


def test_a_section_that_does_not_exist_is_refused_and_the_nearest_suggested() -> None:
    refused = runner.invoke(app, ["config", "show", "--section", "limit"])
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr == "dragoman: there is no section 'limit'; did you mean limits?\n"


class Credentials(Section, frozen=True):
    """Stands for a section to come."""

    user: str = "me"
    password: Annotated[str | None, about("The password.", is_secret=True)] = None
    tokens: Annotated[dict[str, str], about("Tokens.", is_secret=True)] = msgspec.field(default_factory=dict)


class Vault(Section, frozen=True):
    """A section within which there are secrets."""

    credentials: Credentials = Credentials()


def test_secrets_are_masked_and_what_is_not_set_is_seen_to_be_not_set() -> None:
    secret = {"user": "me", "password": "hunter2", "tokens": {"a": "b"}}
    assert dict(masked(Vault, {"credentials": secret})) == {
        "credentials.user": "me",
        "credentials.password": MASK,
        "credentials.tokens.a": MASK,
    }
    assert dict(masked(Vault, msgspec.to_builtins(Vault())))["credentials.password"] is None


def test_a_callers_token_is_masked_and_what_it_grants_is_shown(workplace: Path) -> None:
    (workplace / "my.toml").write_text('[auth.callers.ada]\ntoken = "0123456789abcdef"\nroles = ["admin"]\n')
    values = {name: row["value"] for name, row in shown("--config", "my.toml", "--section", "auth")["settings"].items()}
    assert values["auth.callers.ada.token"] == MASK
    assert values["auth.callers.ada.roles"] == ["admin"]
    assert values["auth.callers.ada.token_env_var"] is None
    assert "0123456789abcdef" not in runner.invoke(app, ["config", "show", "--config", "my.toml"]).output


def test_the_schema_is_valid_and_takes_what_is_taken_and_nothing_else() -> None:
    printed = runner.invoke(app, ["config", "schema"])
    schema = json.loads(printed.stdout)
    assert schema == json.loads(json.dumps(json_schema()))
    jsonschema_rs.meta.validate(schema)
    validator = jsonschema_rs.validator_for(schema)
    assert isinstance(validator, jsonschema_rs.Draft202012Validator)
    everything = {"$schema": "x", **msgspec.to_builtins(Config())}
    assert validator.is_valid(everything)
    assert validator.is_valid(
        {"guards": {"gates": {GATES[0]: "off"}}, "limits": {"tools": {"x": {"max_array_size": 1}}}}
    )
    for bad in (
        {"toolz": {}},
        {"tools": {"max_payload_bytes": 0}},
        {"guards": {"gates": {"xyzzy": "off"}}},
        {"limits": {"tools": {"x": {"y": 1}}}},
        {"logging": {"level": "loud"}},
    ):
        assert not validator.is_valid(bad), bad


def test_a_good_file_is_ok(workplace: Path) -> None:
    assert runner.invoke(app, ["config", "check"]).stdout == "No file, and the environment: OK\n"
    (workplace / "dragoman.toml").write_text('[logging]\nlevel = "warn"\n')
    checked = runner.invoke(app, ["config", "check"])
    assert (checked.exit_code, checked.stdout) == (0, "dragoman.toml: OK\n")
    assert json.loads(runner.invoke(app, ["config", "check", "--json"]).stdout) == {"valid": True}


def test_every_problem_of_a_file_is_listed(workplace: Path) -> None:
    (workplace / "my.toml").write_text("[server]\nname = 5\n[tols]\n[cache]\nlow_water_mark = 2\n")
    checked = runner.invoke(app, ["config", "check", "my.toml"])
    assert (checked.exit_code, checked.stdout) == (2, "")
    assert checked.stderr.splitlines() == [
        "dragoman: The settings cannot be used:",
        "  tols: is not a setting; did you mean tools? (my.toml)",
        "  server.name: must be text, not a whole number (my.toml)",
        "  cache.low_water_mark: must be at most 0.9 (my.toml)",
    ]
    checked = runner.invoke(app, ["config", "check", "my.toml", "--json"])
    assert checked.exit_code == 2
    assert [each["path"] for each in json.loads(checked.stdout)["errors"]] == [
        "tols",
        "server.name",
        "cache.low_water_mark",
    ]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("gone.toml", None, "No such file or directory"),
        ("bad.toml", b"tools = [", "cannot be parsed"),
        ("bad.json", b'{"tools": }', "cannot be parsed"),
        ("list.json", b"[1]", "must hold an object of sections"),
        ("binary.toml", bytes(range(256)), "cannot be parsed"),
        (".", None, "Is a directory"),
    ],
)
def test_a_file_that_cannot_be_read_fails_its_check(
    workplace: Path, name: str, content: bytes | None, reason: str
) -> None:
    if content is not None:
        (workplace / name).write_bytes(content)
    checked = runner.invoke(app, ["config", "check", name])
    assert checked.exit_code == 2
    assert reason in checked.stderr
    assert "Traceback" not in checked.stderr


def test_a_found_file_is_checked_as_one_that_was_found(workplace: Path) -> None:
    (workplace / "dragoman.toml").write_text("[explorer]\nallow_execute = true\n")
    assert "name it with --config dragoman.toml" in runner.invoke(app, ["config", "check"]).stderr
    assert runner.invoke(app, ["config", "check", "dragoman.toml"]).exit_code == 0
