"""Settings: where they come from, which source wins, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.config import DEFAULT_REDACT_KEYS, AdminPolicy, Config, load_config, make_config
from dragoman.errors import ConfigError


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs in a directory that holds no settings."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def problems(values: Any) -> tuple[tuple[str, str], ...]:
    with pytest.raises(ConfigError) as refused:
        make_config(values)
    return refused.value.problems


def test_nothing_has_to_be_set() -> None:
    config = load_config(environ={})
    assert config == Config() == make_config() == make_config({})
    assert (config.tools.default_timeout_ms, config.tools.max_payload_bytes) == (30_000, 1_048_576)
    assert (config.tools.max_state_bytes, config.limits.max_request_bytes) == (262_144, 10_485_760)
    assert (config.resources.max_concurrent_executions, config.server.shutdown_timeout_ms) == (10, 10_000)
    assert config.logging.level == "info"
    assert config.logging.redact_keys == DEFAULT_REDACT_KEYS


def test_whatever_is_dangerous_is_off() -> None:
    config = Config()
    assert config.tools.admin_policy == AdminPolicy(mode="deny_all", token_env_var=None)
    assert config.tools.admin_registration_enabled is False
    assert config.security.dynamic_registration_enabled is False
    assert config.security.allow_arbitrary_code_tools is False


def test_settings_cannot_be_changed_once_they_are_made() -> None:
    with pytest.raises(AttributeError):
        Config().server.name = "other"  # type: ignore[misc]


def test_flags_win_over_the_environment_the_environment_over_the_file_the_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(
        """
        [tools]
        default_timeout_ms = 1
        max_payload_bytes = 1
        max_state_bytes = 1
        [logging]
        level = "debug"
        """
    )
    environ = {"DRAGOMAN_TOOLS__MAX_PAYLOAD_BYTES": "2", "DRAGOMAN_TOOLS__MAX_STATE_BYTES": "2"}
    config = load_config(file, environ, {"tools.max_state_bytes": 3, "logging.level": None})
    assert config == make_config(
        {
            "tools": {"default_timeout_ms": 1, "max_payload_bytes": 2, "max_state_bytes": 3},
            "logging": {"level": "debug"},
        }
    )


def test_both_spellings_name_the_same_setting_in_every_source(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"tools": {"maxPayloadBytes": 1, "adminPolicy": {"tokenEnvVar": "A"}}}))
    assert load_config(file, {}).tools.max_payload_bytes == 1
    environ = {
        "DRAGOMAN_tools__maxPayloadBytes": "2",
        "DRAGOMAN_TOOLS__ADMIN_POLICY__TOKEN_ENV_VAR": "B",
    }
    config = load_config(file, environ)
    assert (config.tools.max_payload_bytes, config.tools.admin_policy.token_env_var) == (2, "B")
    assert load_config(file, environ, {"tools.max_payload_bytes": 3}).tools.max_payload_bytes == 3


def test_a_file_in_the_working_directory_is_found_toml_before_json(tmp_path: Path) -> None:
    (tmp_path / "dragoman.json").write_text('{"server": {"name": "json"}}')
    assert load_config(environ={}).server.name == "json"
    (tmp_path / "dragoman.toml").write_text('[server]\nname = "toml"')
    assert load_config(environ={}).server.name == "toml"


def test_a_file_that_is_named_is_the_only_one_read(tmp_path: Path) -> None:
    (tmp_path / "dragoman.toml").write_text('[server]\nname = "found"')
    (tmp_path / "other.json").write_text('{"tools": {"maxStateBytes": 5}}')
    config = load_config(tmp_path / "other.json", {})
    assert (config.server.name, config.tools.max_state_bytes) == ("dragoman", 5)


@pytest.mark.parametrize(
    ("variable", "text", "section", "setting", "value"),
    [
        ("DRAGOMAN_SERVER__NAME", "mine", "server", "name", "mine"),
        ("DRAGOMAN_SERVER__NAME", "42", "server", "name", "42"),
        ("DRAGOMAN_SERVER__NAME", "true", "server", "name", "true"),
        ("DRAGOMAN_SERVER__VERSION", "2.0", "server", "version", "2.0"),
        ("DRAGOMAN_SERVER__SHUTDOWN_TIMEOUT_MS", "5", "server", "shutdown_timeout_ms", 5),
        ("DRAGOMAN_TOOLS__ADMIN_REGISTRATION_ENABLED", "true", "tools", "admin_registration_enabled", True),
        ("DRAGOMAN_LOGGING__REDACT_KEYS", '["a", "b"]', "logging", "redact_keys", ("a", "b")),
        ("DRAGOMAN_TIMEOUTS__TOOL_OVERRIDES", '{"a/b": 5}', "timeouts", "tool_overrides", {"a/b": 5}),
    ],
)
def test_the_environment_is_text_and_settings_are_what_they_are(
    variable: str, text: str, section: str, setting: str, value: Any
) -> None:
    assert getattr(getattr(load_config(environ={variable: text}), section), setting) == value


def test_other_variables_are_none_of_our_business() -> None:
    environ = {"PATH": "x", "DRAGOMAN_HOME": "x", "OTHER_SERVER__NAME": "x", "dragoman_server__name": "x"}
    assert load_config(environ=environ) == Config()


def test_the_process_environment_is_read_when_no_other_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_SERVER__NAME", "from outside")
    assert load_config().server.name == "from outside"


def test_every_unknown_key_is_named_with_the_nearest_that_exists() -> None:
    values = {"tools": {"maxPayloadByte": 1, "xyzzy": 1, "adminPolicy": {"mod": "x"}}, "toolz": {}}
    assert problems(values) == (
        ("tools.maxPayloadByte", "is not a setting; did you mean tools.max_payload_bytes?"),
        ("tools.xyzzy", "is not a setting"),
        ("tools.admin_policy.mod", "is not a setting; did you mean tools.admin_policy.mode?"),
        ("toolz", "is not a setting; did you mean tools?"),
    )


@pytest.mark.parametrize(
    ("values", "setting"),
    [
        ({"tools": {"max_payload_bytes": "many"}}, "tools.max_payload_bytes"),
        ({"tools": {"max_payload_bytes": 0}}, "tools.max_payload_bytes"),
        ({"tools": {"max_payload_bytes": 1.5}}, "tools.max_payload_bytes"),
        ({"tools": {"max_payload_bytes": True}}, "tools.max_payload_bytes"),
        ({"tools": {"default_timeout_ms": 86_400_001}}, "tools.default_timeout_ms"),
        ({"tools": {"admin_policy": {"mode": "everyone"}}}, "tools.admin_policy.mode"),
        ({"tools": {"admin_registration_enabled": "yes"}}, "tools.admin_registration_enabled"),
        ({"resources": {"maxConcurrentExecutions": -1}}, "resources.max_concurrent_executions"),
        ({"server": {"name": ""}}, "server.name"),
        ({"logging": {"level": "loud"}}, "logging.level"),
        ({"logging": {"redact_keys": "token"}}, "logging.redact_keys"),
        ({"logging": {"redact_keys": ["a", 1]}}, "logging.redact_keys[1]"),
        ({"tools": 5}, "tools"),
    ],
)
def test_a_bad_value_is_refused_and_its_setting_named(values: dict[str, Any], setting: str) -> None:
    ((named, message),) = problems(values)
    assert named == setting
    assert message


@pytest.mark.parametrize("value", [1, 86_400_000])
def test_a_value_exactly_at_its_limit_is_taken(value: int) -> None:
    assert make_config({"tools": {"default_timeout_ms": value}}).tools.default_timeout_ms == value


def test_settings_that_are_made_already_are_passed_through() -> None:
    config = make_config({"server": {"name": "mine"}})
    assert make_config(config) is config


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.toml", "tools = [", "cannot be parsed"),
        ("a.json", "{", "cannot be parsed"),
        ("a.json", "[]", "must hold an object of sections"),
        ("a.toml", b"\xff\xfe", "cannot be parsed"),
        ("gone.toml", None, "No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, name: str, content: str | bytes | None, message: str
) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ConfigError) as refused:
        load_config(file, {})
    ((named, said),) = refused.value.problems
    assert named == str(file)
    assert message in said


def test_making_settings_does_not_change_what_they_are_made_from() -> None:
    values = {"tools": {"maxPayloadBytes": 5}}
    make_config(values)
    assert values == {"tools": {"maxPayloadBytes": 5}}
