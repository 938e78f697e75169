"""Settings: where they come from, which source wins, and what is refused."""

from __future__ import annotations

import asyncio
import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman import tool
from dragoman.cache.settings import CacheConfig
from dragoman.calls.settings import DEFAULT_ARRAY_LIMITS, GATES, ToolLimits
from dragoman.config import Config, Settings, load_config, make_config
from dragoman.errors import ConfigError
from dragoman.sections import every_setting, is_marked
from dragoman.telemetry.settings import DEFAULT_REDACT_KEYS
from dragoman.testing import ManualClock, open_server
from dragoman.tools.settings import AdminPolicy, CategoryTimeouts


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs in a directory that holds no settings."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def problems(values: Any) -> tuple[tuple[str, str], ...]:
    with pytest.raises(ConfigError) as refused:
        make_config(values)
    return refused.value.problems


@pytest.mark.requirement("FND-CONF-03", "FND-CONF-06", "FND-CONF-08")
def test_nothing_has_to_be_set() -> None:
    config = load_config(environ={})
    assert config == Config() == make_config() == make_config({})
    assert (config.tools.default_timeout_ms, config.tools.max_payload_bytes) == (30_000, 1_048_576)
    assert (config.tools.max_state_bytes, config.limits.max_request_bytes) == (262_144, 10_485_760)
    assert (config.resources.max_concurrent_executions, config.server.shutdown_timeout_ms) == (10, 10_000)
    assert config.logging.level == "info"
    assert config.logging.redact_keys == DEFAULT_REDACT_KEYS


@pytest.mark.requirement("FND-CONF-03")
@pytest.mark.parametrize(
    ("settings", "timeout", "slots", "most"),
    [
        ({}, 30_000, 10, 1_048_576),
        (
            {
                "tools": {"defaultTimeoutMs": 77, "maxPayloadBytes": 99},
                "resources": {"maxConcurrentExecutions": 2},
                "server": {"shutdownTimeoutMs": 5},
            },
            77,
            2,
            99,
        ),
    ],
)
async def test_the_numbers_are_in_force(settings: dict[str, Any], timeout: int, slots: int, most: int) -> None:
    clock, release = ManualClock(), asyncio.Event()

    @tool
    async def hold(text: str = "") -> None:
        """Waits."""
        await release.wait()

    unlimited = {"limits": {"max_string_length": None}}
    async with open_server([hold], {**settings, **unlimited}, clock=clock) as server:
        client = await server.client()
        try:
            async with asyncio.timeout(10):
                calls = [client.begin("tools/call", {"name": "hold"}) for _ in range(slots)]
                full = await client.call_tool("hold")
                large = await client.call_tool("hold", {"text": "x" * (most - len('{"text":""}') + 1)})
                clock.advance(timeout / 1000)
                late = [(await client.answer(call))["result"] for call in calls]
                release.set()
                assert await server.runtime.runner.drain(5)
                exact = await client.call_tool("hold", {"text": "x" * (most - len('{"text":""}'))})
        finally:
            release.set()
    told = [json.loads(each["content"][0]["text"]) for each in (full, large, *late)]
    assert [error["code"] for error in told] == ["RESOURCE_EXHAUSTED"] * 2 + ["TIMEOUT"] * slots
    assert [error["details"]["reason"] for error in told[:2]] == ["no_free_slot", "payload_too_large"]
    assert exact["isError"] is False


@pytest.mark.requirement("FND-CONF-04")
def test_whatever_is_dangerous_is_off() -> None:
    config = Config()
    assert config.tools.admin_policy == AdminPolicy(mode="deny_all", token_env_var=None)
    assert config.tools.admin_registration_enabled is False
    assert config.security.dynamic_registration_enabled is False
    assert config.security.allow_arbitrary_code_tools is False


def test_settings_cannot_be_changed_once_they_are_made() -> None:
    with pytest.raises(AttributeError):
        Config().server.name = "other"  # type: ignore[misc]


@pytest.mark.requirement("FND-CONF-01")
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


def test_the_layers_of_a_program_lie_below_the_file_and_a_found_file_is_read_only_if_searched_for(
    tmp_path: Path,
) -> None:
    (tmp_path / "dragoman.toml").write_text('[logging]\nlevel = "error"')
    below = (
        ("a", {"tools": {"maxPayloadBytes": 1, "max_state_bytes": 1}, "server": {"name": "a"}}),
        ("b", {"tools": {"max_payload_bytes": 2}, "limits": {"max_array_size": None}}),
    )
    file = tmp_path / "settings.toml"
    file.write_text("[tools]\nmax_state_bytes = 3\n")
    settings = Settings.load(file, {}, {"server.name": "c"}, below=below)
    assert settings.config == make_config(
        {
            "server": {"name": "c"},
            "tools": {"max_payload_bytes": 2, "max_state_bytes": 3},
            "limits": {"max_array_size": None},
        }
    )
    assert settings.sources == {
        "server.name": "server.name",
        "tools.max_payload_bytes": "b",
        "tools.max_state_bytes": str(file),
        "limits.max_array_size": "b",
    }
    assert Settings.load(environ={}, below=below).config.logging.level == "error"
    assert Settings.load(environ={}, below=below, searches=False).config.logging.level == "info"
    with pytest.raises(ConfigError, match=r"server\.name.*\(b\)"):
        Settings.load(environ={}, below=(("b", {"server": {"name": ""}}),), searches=False)


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
    (tmp_path / "dragoman.json").write_text('{"logging": {"level": "warn"}}')
    assert load_config(environ={}).logging.level == "warn"
    (tmp_path / "dragoman.toml").write_text('[logging]\nlevel = "error"')
    assert load_config(environ={}).logging.level == "error"


def test_a_file_that_is_named_is_the_only_one_read(tmp_path: Path) -> None:
    (tmp_path / "dragoman.toml").write_text('[logging]\nlevel = "error"')
    (tmp_path / "other.json").write_text('{"tools": {"maxStateBytes": 5}}')
    config = load_config(tmp_path / "other.json", {})
    assert (config.logging.level, config.tools.max_state_bytes) == ("info", 5)


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


@pytest.mark.requirement("FND-CONF-02", "FND-CONF-05", "FND-CONF-06")
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
        ({"cache": {"max_size_bytes": 2**63}}, "cache.max_size_bytes"),
        ({"limits": {"tools": {"scan": {"calls_per_minute": 10**400}}}}, "limits.tools.scan.calls_per_minute"),
        ({"storage": {"data_dir": ""}}, "storage.data_dir"),
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
        ("a.json", '{"tools": {}, "http": {"port": 1, "port": 2}}', "cannot be parsed: it has the key 'port' twice"),
        ("a.json", '{"server": {"name": "\\ud800"}}', "has text that is not Unicode"),
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


@pytest.mark.parametrize("variable", ["DRAGOMAN_SERVER__NAME", "DRAGOMAN_HTTP__PORT"])
def test_a_variable_that_is_not_text_is_named(variable: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(None, {variable: os.fsdecode(b"caf\xe9")})
    assert refused.value.problems == ((variable, "has text that is not Unicode"),)


def test_making_settings_does_not_change_what_they_are_made_from() -> None:
    values = {"tools": {"maxPayloadBytes": 5}}
    make_config(values)
    assert values == {"tools": {"maxPayloadBytes": 5}}


@pytest.mark.requirement("FND-CONF-05")
@pytest.mark.parametrize("mode", ["deny_all", "local_stdio_only", "token"])
def test_each_mode_of_the_admin_policy_is_taken_with_or_without_a_variable(mode: str) -> None:
    values = {"tools": {"adminPolicy": {"mode": mode, "tokenEnvVar": "TOKEN"}}}
    assert make_config(values).tools.admin_policy == AdminPolicy(mode=mode, token_env_var="TOKEN")  # type: ignore[arg-type]
    assert make_config({"tools": {"admin_policy": {"mode": mode}}}).tools.admin_policy.token_env_var is None
    assert problems({"tools": {"admin_policy": {"mode": mode.upper()}}}) == (
        ("tools.admin_policy.mode", "must be one of deny_all, local_stdio_only, token"),
    )


@pytest.mark.requirement("FND-CONF-06")
@pytest.mark.parametrize("level", ["debug", "info", "warn", "error"])
def test_each_level_of_the_log_is_taken(level: str) -> None:
    assert make_config({"logging": {"level": level, "redactKeys": ["pin"]}}).logging.level == level
    assert problems({"logging": {"level": level.upper()}}) == (
        ("logging.level", "must be one of debug, info, warn, error"),
    )


def test_every_problem_is_listed_at_once() -> None:
    values = {
        "tools": {"max_payload_bytes": "many", "default_timeout_ms": 0, "xyzzy": 1},
        "limits": {"tools": {"x": {"max_arrray_size": 5, "maxStringLength": -1}}, "toolArrayLimits": {"a": 0, "b": 1}},
        "logging": {"level": "loud", "redact_keys": ["a", 1]},
        "timeouts": 5,
        "toolz": {},
    }
    assert problems(values) == (
        ("tools.xyzzy", "is not a setting"),
        ("limits.tools.x.max_arrray_size", "is not a setting; did you mean limits.tools.x.max_array_size?"),
        ("toolz", "is not a setting; did you mean tools?"),
        ("tools.max_payload_bytes", "must be a whole number, not text"),
        ("tools.default_timeout_ms", "must be at least 1"),
        ("limits.tools.x.max_string_length", "must be at least 1"),
        ("limits.tool_array_limits.a", "must be at least 1"),
        ("logging.level", "must be one of debug, info, warn, error"),
        ("logging.redact_keys[1]", "must be text, not a whole number"),
        ("timeouts", "must be a group of settings, not a whole number"),
    )


@pytest.mark.parametrize(
    ("section", "name", "value", "said"),
    [
        ("limits", "max_array_size", "5", "must be a whole number, not text"),
        ("limits", "max_array_size", 1.5, "must be a whole number, not a fraction"),
        ("cache", "low_water_mark", [], "must be a number, not a list"),
        ("tools", "memory_enabled", {}, "must be true or false, not a table"),
        ("http", "allowed_hosts", True, "must be a list, not true or false"),
        ("http", "path", "mcp", "must match ^/[^?#]*[^/?#]$"),
        ("http", "host", "", "must have a length of at least 1"),
        ("http", "port", 65_536, "must be at most 65535"),
    ],
)
def test_what_is_wrong_with_a_value_is_said_in_words(section: str, name: str, value: Any, said: str) -> None:
    assert problems({section: {name: value}}) == ((f"{section}.{name}", said),)


def test_limits_of_a_tool_take_both_spellings_and_its_name_is_left_alone() -> None:
    values = {"limits": {"tools": {"myTool": {"maxArraySize": 5}, "a.b/c": {"max_array_size": 6}}}}
    assert make_config(values).limits.tools == {
        "myTool": ToolLimits(max_array_size=5),
        "a.b/c": ToolLimits(max_array_size=6),
    }
    assert problems({"limits": {"tools": {"a.b": {"maxArraySiz": 5}, "c": 7}}}) == (
        ('limits.tools."a.b".maxArraySiz', 'is not a setting; did you mean limits.tools."a.b".max_array_size?'),
        ("limits.tools.c", "must be a group of settings, not a whole number"),
    )


def test_limits_of_a_tool_can_come_from_the_environment_each_from_its_own_variable() -> None:
    environ = {
        "DRAGOMAN_LIMITS__TOOLS__myTool__MAX_ARRAY_SIZE": "5",
        "DRAGOMAN_LIMITS__TOOLS__myTool__maxConcurrent": "2",
        "DRAGOMAN_TIMEOUTS__TOOL_OVERRIDES__myTool": "7",
    }
    settings = Settings.load(environ=environ)
    assert settings.config.limits.tools == {"myTool": ToolLimits(max_array_size=5, max_concurrent=2)}
    assert settings.config.timeouts.tool_overrides == {"myTool": 7}
    assert sorted(settings.sources.values()) == sorted(environ)


def test_a_setting_in_both_spellings_is_refused_because_nobody_knows_which_is_meant() -> None:
    values = {"tools": {"maxPayloadBytes": 1, "max_payload_bytes": 2}}
    assert problems(values) == (("tools.max_payload_bytes", "is given twice, in two spellings"),)


def test_a_map_is_added_to_its_default_entry_by_entry() -> None:
    config = make_config({"limits": {"tool_array_limits": {"mine": 5, "ability_inject": 7}}})
    assert config.limits.tool_array_limits == {**DEFAULT_ARRAY_LIMITS, "mine": 5, "ability_inject": 7}
    assert Config().limits.tool_array_limits == DEFAULT_ARRAY_LIMITS


@pytest.mark.requirement("PRD-TIME-02")
def test_the_categories_of_deadlines_are_the_documents_own() -> None:
    config = Config()
    assert CategoryTimeouts.__struct_fields__ == ("query", "mutation", "scan", "execution")
    assert config.timeouts.tool_timeouts == CategoryTimeouts(
        query=10_000, mutation=30_000, scan=120_000, execution=1_200_000
    )
    assert config.timeouts.tool_overrides == {}
    for name in CategoryTimeouts.__struct_fields__:
        assert problems({"timeouts": {"toolTimeouts": {name: 0}}})[0][0] == f"timeouts.tool_timeouts.{name}"
        changed = make_config({"timeouts": {"toolTimeouts": {name: 5}}}).timeouts.tool_timeouts
        assert getattr(changed, name) == 5
    assert problems({"timeouts": {"toolTimeouts": {"other": 5}}})[0][0] == "timeouts.tool_timeouts.other"
    assert problems({"tools": {"defaultTimeoutMs": 0}})[0][0] == "tools.default_timeout_ms"


@pytest.mark.requirement("PRD-LIMIT-01", "PRD-LIMIT-02", "PRD-LIMIT-03", "PRD-LIMIT-04", "PRD-LIMIT-05")
def test_the_limits_of_requests_are_the_documents_own() -> None:
    limits = Config().limits
    assert (limits.max_array_size, limits.max_string_length, limits.max_object_depth) == (10_000, 100_000, 10)
    for more in ({}, {"limits": {"max_string_length": 7}}):
        assert make_config({"response": {"dialect": "envelope"}, **more}).limits.max_array_size == 100
    own = make_config({"response": {"dialect": "envelope"}, "limits": {"maxArraySize": 7}})
    assert own.limits.max_array_size == 7
    assert make_config({"response": {"dialect": "plain"}}).limits.max_array_size == 10_000
    loaded = Settings.load(None, {"DRAGOMAN_RESPONSE__DIALECT": "envelope"}, searches=False)
    assert loaded.config.limits.max_array_size == 100
    assert limits.max_request_bytes == 10_485_760
    assert limits.tool_array_limits == {
        "bugfix_scan": 100,
        "refactor_scan": 100,
        "memory_bulk_delete": 1000,
        "ability_inject": 20,
    }
    for name in ("maxArraySize", "maxStringLength", "maxObjectDepth", "maxRequestBytes"):
        for bad in (0, -1, 1.5, "5", True):
            assert len(problems({"limits": {name: bad}})) == 1


def test_the_limits_of_responses_are_the_documents_own() -> None:
    response = Config().response
    assert (response.max_response_bytes, response.max_list_items, response.max_string_length) == (
        1_048_576,
        100,
        10_000,
    )
    assert response.truncation_suffix == "... [truncated]"
    for name in ("maxResponseBytes", "maxListItems", "maxStringLength"):
        assert len(problems({"response": {name: 0}})) == 1


@pytest.mark.requirement("PRD-CACHE-02", "PRD-CACHE-03", "PRD-CACHE-05")
def test_the_caches_settings_are_the_documents_own() -> None:
    assert Config().cache == CacheConfig(
        max_size_bytes=104_857_600,
        max_entries=10_000,
        default_ttl_ms=3_600_000,
        eviction_policy="lru",
        high_water_mark=0.9,
        low_water_mark=0.7,
        cleanup_interval_ms=60_000,
    )
    assert make_config({"cache": {"defaultTtlMs": 0}}).cache.default_ttl_ms == 0
    for name in ("maxSizeBytes", "maxEntries", "cleanupIntervalMs"):
        assert len(problems({"cache": {name: 0}})) == 1
    assert len(problems({"cache": {"defaultTtlMs": -1, "evictionPolicy": "random"}})) == 2


@pytest.mark.requirement("PRD-CACHE-05")
@pytest.mark.parametrize(
    ("setting", "lowest", "highest"), [("high_water_mark", 0.5, 1.0), ("low_water_mark", 0.1, 0.9)]
)
def test_water_marks_have_bounds_and_reach_them(setting: str, lowest: float, highest: float) -> None:
    room = {"high_water_mark": 1.0, "low_water_mark": 0.1}
    for value in (lowest, highest):
        assert getattr(make_config({"cache": {**room, setting: value}}).cache, setting) == value
    for value in (lowest - 0.01, highest + 0.01, float("nan"), float("inf"), "0.5"):
        assert [name for name, _ in problems({"cache": {**room, setting: value}})] == [f"cache.{setting}"]


def test_a_low_water_mark_above_the_high_one_is_refused_wherever_each_was_set(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[cache]\nlow_water_mark = 0.8\n")
    assert load_config(tmp_path / "a.toml", {}).cache.low_water_mark == 0.8
    with pytest.raises(ConfigError) as refused:
        load_config(tmp_path / "a.toml", {"DRAGOMAN_CACHE__HIGH_WATER_MARK": "0.75"})
    reason = f"must not be above high_water_mark, 0.75 ({tmp_path / 'a.toml'})"
    assert refused.value.problems == (("cache.low_water_mark", reason),)
    same = {"cache": {"low_water_mark": 0.8, "high_water_mark": 0.8}}
    assert make_config(same).cache.low_water_mark == 0.8


def test_a_gate_that_does_not_exist_is_refused_and_the_nearest_suggested() -> None:
    assert make_config({"guards": {"gates": dict.fromkeys(GATES, "warn")}}).guards.gates == dict.fromkeys(GATES, "warn")
    assert problems({"guards": {"gates": {"array-size-chek": "off", "xyzzy": "off", "timeout-audit": "maybe"}}}) == (
        ("guards.gates.timeout-audit", "must be one of enforce, warn, off"),
        ("guards.gates.array-size-chek", "is not a gate; did you mean array-size-check?"),
        ("guards.gates.xyzzy", f"is not a gate; there are {', '.join(GATES)}"),
    )


def test_workers_may_be_silent_for_ever_but_not_too_briefly() -> None:
    for ms in (0, 2000):
        assert make_config({"server": {"worker_timeout_ms": ms}}).server.worker_timeout_ms == ms
    reason = "must be 0, or at least 2000: less may be no more than a busy machine"
    assert problems({"server": {"worker_timeout_ms": 1999}}) == (("server.worker_timeout_ms", reason),)


def test_conflicts_are_listed_together_with_everything_else_that_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[guards.gates]\narray-size-chek = "off"\n[server]\nname = 5\n')
    with pytest.raises(ConfigError) as refused:
        load_config(tmp_path / "a.toml", {})
    assert [name for name, _ in refused.value.problems] == ["server.name", "guards.gates.array-size-chek"]


def test_a_value_that_is_refused_is_not_repeated() -> None:
    secret = "hunter2"
    values = {"auth": secret, "http": {"port": secret}, "logging": {"level": secret}, "limits": {"tools": secret}}
    assert secret not in str(problems(values))


@pytest.mark.requirement("FND-CONF-01")
def test_it_is_known_where_each_setting_came_from(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text(
        '[server]\nname = "mine"\nversion = "1"\n[limits.toolArrayLimits]\n"a/b" = 5\n[timeouts.tool_overrides]\n'
    )
    settings = Settings.load(file, {"DRAGOMAN_SERVER__VERSION": "2", "PATH": "x"}, {"logging.level": "debug"})
    assert (settings.config.server.name, settings.config.server.version) == ("mine", "2")
    assert settings.file == file
    assert settings.sources == {
        "server.name": str(file),
        "server.version": "DRAGOMAN_SERVER__VERSION",
        'limits.tool_array_limits."a/b"': str(file),
        "timeouts.tool_overrides": str(file),
        "logging.level": "--log-level",
    }
    assert Settings.load(environ={}) == Settings(Config(), {}, None)


@pytest.mark.requirement("FND-CONF-02")
def test_a_problem_says_where_it_stands_whichever_source_wins(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text("tools = 5\n[server]\nname = 1\n")
    environ = {"DRAGOMAN_SERVER__NAME": "good", "DRAGOMAN_TOOLS__MAX_STATE_BYTES": "x", "DRAGOMAN_TOLS__A": "1"}
    with pytest.raises(ConfigError) as refused:
        load_config(file, environ, {"logging.level": "loud"})
    assert refused.value.problems == (
        ("tools", f"must be a group of settings, not a whole number ({file})"),
        ("server.name", f"must be text, not a whole number ({file})"),
        ("TOLS", "is not a setting; did you mean tools? (DRAGOMAN_TOLS__A)"),
        ("tools.max_state_bytes", "must be a whole number, not text (DRAGOMAN_TOOLS__MAX_STATE_BYTES)"),
        ("logging.level", "must be one of debug, info, warn, error (--log-level)"),
    )


# What a file in the working directory may do to each setting. A new setting belongs in a `found_file.toml`.
TABLES = [tomllib.loads(path.read_text("utf-8")) for path in Path(__file__).parent.rglob("found_file.toml")]
REFUSED: dict[str, Any] = {name: value for table in TABLES for name, value in table.get("refused", {}).items()}
LIMITS: set[str] = {name for table in TABLES for name in table.get("limits", ())}
HARMLESS: dict[str, Any] = {name: value for table in TABLES for name, value in table.get("harmless", {}).items()}
FOUND = "a file that is only found in the working directory cannot"


def nested(name: str, value: Any) -> dict[str, Any]:
    for part in reversed(name.split(".")):
        value = {part: value}
    assert isinstance(value, dict)
    return value


def default_of(name: str) -> Any:
    """A setting's default; None for one in a map, which has none."""
    value = msgspec.json.decode(msgspec.json.encode(Config()))
    for part in name.split("."):
        value = value.get(part)
        if value is None:
            return None
    return value


def refused_when_found(name: str, value: Any) -> list[tuple[str, str]]:
    """What is said against a file in the working directory that sets one setting."""
    Path("dragoman.json").write_text(json.dumps(nested(name, value)))
    try:
        load_config(environ={})
    except ConfigError as error:
        return [each for each in error.problems if FOUND in each[1]]
    return []


def test_for_each_setting_it_is_decided_what_a_found_file_may_do_to_it() -> None:
    settings = dict(every_setting(Config))
    assert set(settings) == {*REFUSED, *LIMITS, *HARMLESS}
    assert {name for name, kind in settings.items() if is_marked(kind, "is_limit")} == LIMITS
    assert {name for name, kind in settings.items() if is_marked(kind, "is_harmless")} == set(HARMLESS)
    assert LIMITS.isdisjoint(HARMLESS)


@pytest.mark.parametrize("name", REFUSED)
def test_a_found_file_cannot_set_what_could_open_a_server(name: str) -> None:
    name, value = name.replace("<name>", "add"), REFUSED[name]
    named = f"{name}.{next(iter(value))}" if isinstance(value, dict) else name
    reason = f"{FOUND} set this; name it with --config dragoman.json (dragoman.json)"
    assert refused_when_found(name, value) == [(named, reason)]


@pytest.mark.parametrize("name", [name for name in REFUSED if "<name>" not in name])
def test_a_found_file_may_repeat_a_default(name: str) -> None:
    assert refused_when_found(name, default_of(name)) == []


@pytest.mark.parametrize("name", sorted(LIMITS))
def test_a_found_file_can_lower_a_limit_and_not_raise_it(name: str) -> None:
    name = name.replace("<name>", "add")
    default = default_of(name)
    if default is None:
        assert refused_when_found(name, 1_000_000) == refused_when_found(name, 1) == []
        return
    reason = f"{FOUND} raise this above {default}; name it with --config dragoman.json (dragoman.json)"
    assert refused_when_found(name, default) == refused_when_found(name, default * 0.99 // 1 or default * 0.9) == []
    for more in (default + 1, None, 0):
        assert refused_when_found(name, more) == [(name, reason)]


@pytest.mark.parametrize("name", HARMLESS)
def test_a_found_file_can_set_what_is_harmless(name: str) -> None:
    Path("dragoman.json").write_text(json.dumps(nested(name, HARMLESS[name])))
    assert Settings.load(environ={}).sources == {name: "dragoman.json"}


@pytest.mark.parametrize("name", [name for name in REFUSED if not re.search("<name>|issuer|jwks|answers_url", name)])
def test_a_named_file_and_a_variable_can_set_what_a_found_file_cannot(tmp_path: Path, name: str) -> None:
    file = tmp_path / "dragoman.json"
    file.write_text(json.dumps(nested(name, REFUSED[name])))
    assert set(Settings.load(Path("dragoman.json"), {}).sources.values()) == {"dragoman.json"}
    file.unlink()
    variable = "DRAGOMAN_" + name.upper().replace(".", "__")
    text = REFUSED[name] if isinstance(REFUSED[name], str) else json.dumps(REFUSED[name])
    assert set(Settings.load(environ={variable: text}).sources.values()) == {variable}


def test_a_spelling_does_not_get_a_found_file_past_the_rule(tmp_path: Path) -> None:
    (tmp_path / "dragoman.json").write_text(
        '{"tools": {"adminPolicy": {"MODE": "token"}}, "HTTP": {"allowedOrigins": ["*"]}}'
    )
    with pytest.raises(ConfigError) as refused:
        load_config(environ={})
    assert [name for name, _ in refused.value.problems] == ["tools.admin_policy.mode", "http.allowed_origins"]


@pytest.mark.requirement("FND-CONF-08")
def test_partial_settings_can_be_examined_without_being_used() -> None:
    assert msgspec.to_builtins(Settings.validate({"tools": {"maxPayloadBytes": 5}})) == {"valid": True}
    assert msgspec.to_builtins(Settings.validate({})) == {"valid": True}
    assert msgspec.to_builtins(Settings.validate({"tools": {"maxPayloadBytes": 0}, "xyzzy": 1})) == {
        "valid": False,
        "errors": [
            {"path": "xyzzy", "message": "is not a setting"},
            {"path": "tools.max_payload_bytes", "message": "must be at least 1"},
        ],
    }


@pytest.mark.requirement("FND-CONF-08")
def test_sections_are_given_by_name() -> None:
    settings = Settings.load(environ={})
    for name in Config.__struct_fields__:
        assert settings.get(name) == getattr(Config(), name)
    with pytest.raises(KeyError, match="nonsense"):
        settings.get("nonsense")


@pytest.mark.requirement("FND-CONF-09")
@pytest.mark.parametrize("admin", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_dynamic_registration_takes_both_switches(admin: bool, dynamic: bool) -> None:
    environ = {
        "DRAGOMAN_TOOLS__ADMIN_REGISTRATION_ENABLED": str(admin).lower(),
        "DRAGOMAN_SECURITY__DYNAMIC_REGISTRATION_ENABLED": str(dynamic).lower(),
    }
    settings = Settings.load(environ=environ)
    assert settings.is_dynamic_registration_effective() is (admin and dynamic)
    assert settings.config.is_dynamic_registration_effective() is (admin and dynamic)


def test_an_editors_schema_line_and_a_byte_order_mark_are_not_settings(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"$schema": "dragoman.schema.json", "server": {"name": "x"}}', "utf-8-sig")
    assert load_config(tmp_path / "a.json", {}).server.name == "x"


def test_a_directory_a_huge_file_and_a_deep_one_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "huge.toml").write_text("#" * 1_048_577)
    (tmp_path / "deep.json").write_text("[" * 100_000)
    for name, reason in [
        (".", "Is a directory"),
        ("huge.toml", "cannot be parsed: it is larger than 1048576 bytes"),
        ("deep.json", "cannot be parsed: it is nested too deeply"),
    ]:
        with pytest.raises(ConfigError) as refused:
            load_config(tmp_path / name, {})
        assert refused.value.problems == ((str(tmp_path / name), reason),)


def test_a_file_that_may_not_be_read_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "closed.toml"
    file.touch()
    file.chmod(0)
    if os.access(file, os.R_OK):
        assert load_config(file, {}) == Config()  # Root reads everything.
    else:
        with pytest.raises(ConfigError, match="Permission denied"):
            load_config(file, {})


NOT_SECRET = {
    "tools.admin_policy.token_env_var",
    "auth.callers.<name>.token_env_var",
    "knowledge.answers_key_variable",
    "knowledge.embeddings_key_variable",
    "logging.redact_keys",
}


def test_whatever_sounds_like_a_secret_is_marked_as_one() -> None:
    suspicious = [
        name
        for name, kind in every_setting(Config)
        if re.search("token|secret|password|credential|key|dsn", name) and not is_marked(kind, "is_secret")
    ]
    assert set(suspicious) == NOT_SECRET


def test_a_variable_with_one_underscore_too_few_is_refused_with_the_right_one() -> None:
    with pytest.raises(
        ConfigError, match="DRAGOMAN_LOGGING_LEVEL: is not a setting; did you mean DRAGOMAN_LOGGING__LEVEL"
    ):
        load_config(environ={"DRAGOMAN_LOGGING_LEVEL": "debug"})
    assert load_config(environ={"DRAGOMAN_TESTS_REQUIRE_ALL": "1"}) == Config()


# Authentication


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"issuer": "https://a.example"}, {"auth.audience"}),
        ({"jwks": "keys.json"}, {"auth.audience"}),
        ({"issuer": "https://a.example", "audience": ""}, {"auth.audience"}),
        ({"issuer": "http://a.example", "resource": "https://b.example"}, {"auth.issuer"}),
        ({"issuer": "https://", "resource": "ftp://b.example"}, {"auth.issuer", "auth.resource"}),
        ({"jwks": "http://a.example/keys", "audience": "x"}, {"auth.jwks"}),
        ({"jwks": "file:///etc/keys", "audience": "x"}, {"auth.jwks"}),
        ({"callers": {"ada": {}}}, {"auth.callers.ada.token"}),
        ({"callers": {"ada": {"token": "x" * 16, "token_env_var": "X"}}}, {"auth.callers.ada.token"}),
        ({"callers": {"ada": {"token": "x" * 15}}}, {"auth.callers.ada.token"}),
        ({"callers": {"ada": {"token": "has a blank in it, alas"}}}, {"auth.callers.ada.token"}),
        ({"callers": {"ada": {"tokn": "x" * 16}}}, {"auth.callers.ada.tokn", "auth.callers.ada.token"}),
        ({"callers": {"a b": {"token": 5}}}, {'auth.callers."a b".token'}),
    ],
)
def test_authentication_that_could_not_hold_is_refused_by_name(settings: dict[str, Any], found: set[str]) -> None:
    assert {name for name, _ in problems({"auth": settings})} == found


@pytest.mark.parametrize(
    "settings",
    [
        {"issuer": "https://a.example", "resource": "https://b.example/mcp"},
        {"issuer": "http://localhost:9", "audience": "x"},
        {"jwks": "http://127.0.0.2:9/keys", "audience": "x"},
        {"jwks": "http://[::1]:9/keys", "audience": "x"},
        {"jwks": "keys.json", "audience": "x"},
        {"callers": {"ada": {"token": "x" * 16, "roles": ["r"], "scopes": ["tool:*"]}, "ben": {"tokenEnvVar": "B"}}},
    ],
)
def test_authentication_can_be_set_in_several_ways(settings: dict[str, Any]) -> None:
    assert Settings.validate({"auth": settings}).valid


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1@evil.example",
        "http://localhost.evil.example",
        "http://10.0.0.1",
        "http://[::2]",
        "http://[",
        "x",
    ],
)
def test_what_only_looks_like_this_machine_is_not_taken_for_it(url: str) -> None:
    assert {name for name, _ in problems({"auth": {"issuer": url, "audience": "x"}})} == {"auth.issuer"}


def test_a_found_file_cannot_say_who_may_call(tmp_path: Path) -> None:
    file = tmp_path / "dragoman.toml"
    file.write_text('[auth.callers.mallory]\ntoken = "0123456789abcdef"\n')
    with pytest.raises(ConfigError) as refused:
        load_config(environ={})
    assert [name for name, _ in refused.value.problems] == ["auth.callers.mallory.token"]
    assert load_config(file, {}).auth.callers["mallory"].token == "0123456789abcdef"
    file.write_text("[auth.callers]\n")
    assert load_config(environ={}) == Config()


def test_a_token_can_come_from_a_variable_while_the_rest_is_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text('[auth.callers.ada]\nroles = ["admin"]\n')
    caller = load_config(file, {"DRAGOMAN_AUTH__CALLERS__ada__TOKEN": "0123456789abcdef"}).auth.callers["ada"]
    assert (caller.token, caller.roles) == ("0123456789abcdef", ("admin",))


def test_a_value_that_cannot_be_used_is_told_once_and_its_default_conflicts_with_nothing(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('[auth.callers.ada]\ntoken = "short"\n')
    with pytest.raises(ConfigError) as refused:
        Settings.load(file, environ={})
    said = f"must have a length of at least 16 ({file})"
    assert refused.value.problems == (("auth.callers.ada.token", said),)
