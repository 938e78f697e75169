"""`dragoman tools` and `dragoman call`: what a client would find, and what it would be answered."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from dragoman.cli.arguments import kind_in_words, read_arguments
from dragoman.cli.commands import app
from tests.support.waiting import PATIENCE

runner = CliRunner()

TOOLS = '''
import subprocess, sys, time
from typing import Literal
from dragoman import Text, ToolContext, tool
from dragoman.errors import InvalidArgument

print("loading")

@tool(title="Greet", read_only=True, timeout_ms=5000)
def greet(name: str, times: int = 1, tone: Literal["dry", "warm"] = "warm") -> str:
    """Greets somebody.

    At length, if need be."""
    print("printed")
    subprocess.run([sys.executable, "-c", "print('by a child')"], check=True)
    return " ".join([f"Hello, {name}!"] * times)

@tool
def fail() -> None:
    raise RuntimeError("not today")

@tool
def refuse() -> None:
    raise InvalidArgument("Not like this", {"field": "x", "sort": [1, 2]})

@tool
def blocks() -> list[Text]:
    return [Text("one"), Text("two")]

@tool
def count(by: dict[str, int]) -> int:
    return sum(by.values())

@tool
def nothing() -> None:
    pass

@tool
def wait() -> None:
    print("under way", file=sys.stderr, flush=True)
    time.sleep(60)
'''


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with a file of tools, and an interpreter that afterwards does not remember it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    (tmp_path / "my_tools.py").write_text(TOOLS)
    yield tmp_path
    for name, module in tuple(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def call(*arguments: str, input: str | None = None) -> Result:
    return runner.invoke(app, ["call", *arguments, "--target", "my_tools.py"], input=input)


def answer(*arguments: str, input: str | None = None) -> Any:
    result = call(*arguments, input=input)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_tools_are_listed_with_what_each_is_for() -> None:
    listed = runner.invoke(app, ["tools", "list"])
    assert listed.exit_code == 0
    lines = listed.stdout.splitlines()
    assert lines[:2] == [
        "echo                Returns the message it was given.",
        "health              Reports the server's status, its limits and what is in use.",
    ]
    assert [line.split()[0] for line in lines[2:]] == [
        f"memory_{name}" for name in ("bulk_delete", "delete", "list", "retrieve", "search", "store")
    ]
    assert "greet    Greets somebody.\n" in runner.invoke(app, ["tools", "list", "my_tools.py"]).stdout


def test_a_script_gets_the_list_as_a_client_would_with_deadlines() -> None:
    listed = runner.invoke(app, ["tools", "list", "my_tools.py", "--json"])
    described = {each["name"]: each for each in json.loads(listed.stdout)}
    assert list(described) == ["blocks", "count", "fail", "greet", "health", "nothing", "refuse", "wait"]
    assert described["greet"]["inputSchema"]["required"] == ["name"]
    assert described["greet"]["annotations"] == {"readOnlyHint": True}
    assert (described["greet"]["timeoutMs"], described["wait"]["timeoutMs"]) == (5000, 30_000)


def test_a_tool_is_shown_with_all_that_it_takes() -> None:
    shown = runner.invoke(app, ["tools", "show", "greet", "my_tools.py"])
    assert shown.exit_code == 0
    assert shown.stdout.splitlines() == [
        "greet: Greet",
        "Greets somebody.",
        "",
        "At length, if need be.",
        "",
        "  name   string          required",
        "  times  integer         default 1",
        '  tone   "dry" | "warm"  default "warm"',
        "",
        "Returns   string",
        "Hints     read only",
        "Deadline  5 s",
        "Try it    dragoman call greet name=… --target my_tools.py",
    ]
    as_json = json.loads(runner.invoke(app, ["tools", "show", "greet", "my_tools.py", "--json"]).stdout)
    assert as_json["inputSchema"]["properties"]["times"] == {"type": "integer", "default": 1}


def test_a_tool_that_is_not_there_is_a_failure_and_the_nearest_is_suggested() -> None:
    for refused in (runner.invoke(app, ["tools", "show", "gret", "my_tools.py"]), call("gret")):
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert refused.stderr.rstrip().endswith("did you mean greet?")


@pytest.mark.parametrize("command", [["tools", "list"], ["tools", "show", "x"], ["call", "x", "--target"]])
def test_a_target_or_settings_that_cannot_be_used_are_refused(workplace: Path, command: list[str]) -> None:
    refused = runner.invoke(app, [*command, "gone.py"])
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr == "dragoman: cannot load tools from 'gone.py': there is no such file\n"
    (workplace / "dragoman.toml").write_text("[xyzzy]")
    refused = runner.invoke(app, [*command, "my_tools.py"])
    assert refused.exit_code == 2
    assert "xyzzy: is not a setting" in refused.stderr


@pytest.mark.slow
def test_a_result_is_printed_as_json() -> None:
    assert answer("greet", "name=Ada", "times=2") == "Hello, Ada! Hello, Ada!"
    assert answer("nothing") is None
    assert answer("blocks") == [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]


@pytest.mark.slow
def test_text_stays_text_where_nothing_else_is_taken() -> None:
    assert answer("greet", "name=5") == "Hello, 5!"
    assert answer("greet", "name=null") == "Hello, null!"
    assert answer("greet", "name=a=b") == "Hello, a=b!"


@pytest.mark.slow
def test_arguments_can_be_json_from_anywhere_and_pairs_are_added(workplace: Path) -> None:
    assert answer("greet", "--json", '{"name": "Ada"}') == "Hello, Ada!"
    assert answer("greet", "--json", '{"name": "Ada"}', "name=Bea", "tone=dry") == "Hello, Bea!"
    assert answer("greet", "--json", "-", input='{"name": "Cyd"}') == "Hello, Cyd!"
    (workplace / "a.json").write_text('{"name": "Dot"}')
    assert answer("greet", "--json", "@a.json") == "Hello, Dot!"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["greet", "name"], "'name' is not name=value"),
        (["greet", "Ada"], "'Ada' is not name=value; did you mean name=Ada?"),
        (["count", "by={a:b}"], "by is not valid JSON: "),
        (["count", "by=[1"], 'Quote names and texts: \'by={"a": "b"}\''),
        (["greet", "=x"], "'=x' is not name=value"),
        (["greet", "name=\udcff"], "'name=\\udcff' is not UTF-8"),
        (["greet", "name=a", "name=b"], "'name' is given twice"),
        (["greet", "--json", "[]"], "--json must be an object"),
        (["greet", "--json", "{"], "--json is not valid JSON"),
        (["greet", "--json", "[" * 100_000], "--json is not valid JSON"),
        (["greet", "--json", "@gone.json"], "gone.json: No such file or directory"),
        (["greet", "--json", "@."], ".: Is a directory"),
        (["greet", "--timeout", "0"], "--timeout"),
        (["greet", "--timeout", "1e9"], "timeouts.tool_overrides.greet: must be at most 86400000 (--timeout)"),
        (["greet", "--log-level", "loud"], "logging.level: must be one of"),
    ],
)
def test_arguments_that_cannot_be_understood_are_refused(arguments: list[str], reason: str) -> None:
    refused = call(*arguments)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert reason in refused.stderr
    assert "Traceback" not in refused.stderr


def test_an_error_is_told_with_code_message_and_details() -> None:
    refused = call("refuse")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr.splitlines()[-3:] == [
        "dragoman: INVALID_ARGUMENT: Not like this",
        '  field: "x"',
        "  sort: [1,2]",
    ]
    wrong = call("greet", "name=Ada", "times=many", "tone=loud").stderr.splitlines()
    assert wrong[-3] == "dragoman: INVALID_ARGUMENT: Arguments do not match the tool's schema"
    assert [line.split(":")[0] for line in wrong[-2:]] == ["  /times", "  /tone"]


def test_whoever_writes_a_tool_sees_where_it_failed() -> None:
    failed = call("fail")
    assert (failed.exit_code, failed.stdout) == (1, "")
    assert "\n  RuntimeError: not today\n" in failed.stderr
    assert "in fail\n" in failed.stderr
    assert "dragoman: INTERNAL: The tool failed\n" in failed.stderr


def test_a_deadline_can_be_given_and_nobody_waits_for_a_deaf_tool() -> None:
    late = call("wait", "--timeout", "0.05")
    assert (late.exit_code, late.stdout) == (1, "")
    setting = '  setting: "timeouts.tool_overrides.wait"'
    assert late.stderr.splitlines()[-3:] == ["dragoman: TIMEOUT: No result within 50 ms", "  timeoutMs: 50", setting]


def test_the_log_is_there_for_who_wants_it() -> None:
    assert "tool call completed" in call("nothing", "--log-level", "info").stderr
    assert "tool call completed" not in call("nothing").stderr


MODULE = '''
from apcore.decorator import module

print("loading the module")

@module(id="shop.price")
def price(pounds: float, rate: float = 0.2) -> float:
    """What something costs with tax.

    Rounded to pence."""
    return round(pounds * (1 + rate), 2)
'''


@pytest.fixture
def extensions(workplace: Path) -> str:
    """A folder of apcore modules, of which one cannot be loaded."""
    (workplace / "extensions").mkdir()
    (workplace / "extensions" / "shop.py").write_text(MODULE)
    (workplace / "extensions" / "script.py").write_text("raise SystemExit(0)")
    return "extensions"


@pytest.mark.slow
def test_modules_of_a_folder_are_listed_alone_or_beside_a_target(extensions: str) -> None:
    alone = runner.invoke(app, ["tools", "list", "--extensions-dir", extensions])
    assert (alone.exit_code, [line.split()[0] for line in alone.stdout.splitlines()]) == (0, ["health", "shop.price"])
    beside = runner.invoke(app, ["tools", "list", "my_tools.py", "--extensions-dir", extensions, "--json"])
    names = [each["name"] for each in json.loads(beside.stdout)]
    assert names == ["blocks", "count", "fail", "greet", "health", "nothing", "refuse", "shop.price", "wait"]
    resources = runner.invoke(app, ["resources", "list", "--extensions-dir", extensions])
    assert resources.stdout.split()[0] == "docs://shop.price"


@pytest.mark.slow
def test_a_module_is_shown_and_called_as_a_tool_is(extensions: str) -> None:
    shown = runner.invoke(app, ["tools", "show", "shop.price", "--extensions-dir", extensions]).stdout.splitlines()
    assert shown[0] == "shop.price"
    assert shown[-1] == "Try it    dragoman call shop.price pounds=… --extensions-dir extensions"
    called = runner.invoke(app, ["call", "shop.price", "pounds=10.0", "--extensions-dir", extensions])
    assert (called.exit_code, called.stdout) == (0, '{"result": 12.0}\n')
    assert json.loads(call("shop.price", "pounds=10.0", "--extensions-dir", extensions).stdout) == {"result": 12.0}
    refused = runner.invoke(app, ["call", "shop.price", "pounds=ten", "--extensions-dir", extensions])
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr.splitlines()[-2:] == [
        "dragoman: INVALID_ARGUMENT: Input validation failed",
        "  /pounds: Input should be a valid number (float_type)",
    ]


@pytest.mark.parametrize("command", [["tools", "list"], ["tools", "show", "x"], ["call", "x"], ["resources", "list"]])
def test_a_folder_that_there_is_not_is_refused(command: list[str]) -> None:
    refused = runner.invoke(app, [*command, "--extensions-dir", "my_tools.py"])
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr == "dragoman: There is no folder my_tools.py\n"


COMMAND = [sys.executable, "-m", "dragoman"]


@pytest.mark.slow
def test_nothing_but_the_answer_is_on_stdout_whoever_writes_there() -> None:
    ran = subprocess.run(
        [*COMMAND, "call", "greet", "name=Ada", "--target", "my_tools.py"], capture_output=True, timeout=30
    )
    assert (ran.returncode, ran.stdout) == (0, b'"Hello, Ada!"\n')
    assert sorted(ran.stderr.split(b"\n")) == [b"", b"by a child", b"loading", b"printed"]
    ran = subprocess.run([*COMMAND, "tools", "list", "my_tools.py", "--json"], capture_output=True, timeout=PATIENCE)
    assert len(json.loads(ran.stdout)) == 8


@pytest.mark.slow
def test_an_interrupt_cancels_the_call() -> None:
    command = [*COMMAND, "call", "wait", "--target", "my_tools.py"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert [process.stderr.readline() for _ in range(2)] == [b"loading\n", b"under way\n"]
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=PATIENCE)
    assert (process.returncode, stdout, stderr) == (130, b"", b"dragoman: cancelled\n")


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "perhaps": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "number": {"type": "number"},
        "either": {"type": ["string", "integer"]},
        "word": {"enum": ["1", "2"]},
        "figure": {"enum": [1, "x", None]},
        "named": {"$ref": "#/$defs/a~1b"},
        "lost": {"$ref": "#/$defs/nowhere"},
        "round": {"$ref": "#/properties/round"},
        "list": {"type": "array", "items": {"type": "string"}},
        "open": {"oneOf": [{"type": "string"}, {}]},
        "whatever": True,
    },
    "$defs": {"a/b": {"type": "string"}},
}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("text", "5", "5"),
        ("text", '"quoted"', '"quoted"'),
        ("perhaps", "null", "null"),
        ("number", "5", 5),
        ("number", "many", "many"),
        ("either", "5", 5),
        ("either", "five", "five"),
        ("word", "1", "1"),
        ("figure", "1", 1),
        ("figure", "x", "x"),
        ("named", "5", "5"),
        ("lost", "5", 5),
        ("round", "5", 5),
        ("list", '["a"]', ["a"]),
        ("open", "5", 5),
        ("whatever", "NaN", "NaN"),
        ("whatever", "12345678901234567890", 12345678901234567890),
        ("unknown", "true", True),
        ("unknown", "", ""),
    ],
)
def test_a_value_is_read_as_the_schema_would_have_it(name: str, text: str, value: Any) -> None:
    assert read_arguments([f"{name}={text}"], {}, SCHEMA) == {name: value}


def test_kinds_are_said_in_words() -> None:
    said = {name: kind_in_words(each) for name, each in SCHEMA["properties"].items()}
    assert said == {
        "text": "string",
        "perhaps": "string | null",
        "number": "number",
        "either": "string | integer",
        "word": '"1" | "2"',
        "figure": '1 | "x" | null',
        "named": "a~1b",
        "lost": "nowhere",
        "round": "round",
        "list": "string[]",
        "open": "string | any",
        "whatever": "any",
    }


def test_a_trace_shows_each_stage_and_leaves_stdout_to_the_result() -> None:
    ran = runner.invoke(app, ["call", "echo", "message=hi", "--trace"])
    assert ran.stdout == '{"message":"hi"}\n'
    names = [line.split()[0] for line in ran.stderr.splitlines()]
    assert names[0] == "RecordCompletion"
    assert names[-3:] == ["handler", "answer", "in"]
    assert all(line.endswith(" µs") for line in ran.stderr.splitlines())


def test_gates_are_listed_with_their_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_GUARDS__GATES", '{"array-size-check": "warn"}')
    lines = runner.invoke(app, ["guards"]).stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["memory-pressure-check", "enforce"],
        ["request-size-check", "enforce"],
        ["array-size-check", "warn"],
        ["timeout-audit", "enforce"],
    ]
    gates = json.loads(runner.invoke(app, ["guards", "--json"]).stdout)
    assert gates[2] == {
        "id": "array-size-check",
        "name": "Array Size Check",
        "description": "Refuses requests with oversized arrays",
        "mode": "warn",
    }


def test_a_limit_that_is_exceeded_is_told_with_its_path() -> None:
    ran = runner.invoke(app, ["call", "echo", "message=hi", "--json", json.dumps({"a": [0] * 10_001})])
    assert ran.exit_code == 1
    assert "/a: has 10001 items, and at most 10000 are allowed (limits.max_array_size)" in ran.stderr


ODD = """
from dragoman import tool
from dragoman.errors import InvalidArgument

@tool
def odd() -> None:
    raise InvalidArgument("odd", {details})
"""


@pytest.mark.parametrize("details", ['{"errors": ["one"]}', '{"errors": [{"path": 1}]}', '{"a": object()}'])
def test_details_of_any_shape_are_told(tmp_path: Path, details: str) -> None:
    target = tmp_path / f"odd_tools_{abs(hash(details))}.py"
    target.write_text(ODD.replace("{details}", details))
    ran = runner.invoke(app, ["call", "odd", "--target", str(target)])
    assert ran.exit_code == 1
    assert "INVALID_ARGUMENT: odd" in ran.stderr


def test_the_sheet_says_how_long_results_are_kept(tmp_path: Path) -> None:
    target = tmp_path / "kept_tools.py"
    target.write_text(
        "from dragoman import tool\n\n"
        "@tool(read_only=True, cache_ttl_ms=90_000, cache_tags=('prices',))\ndef price() -> int:\n    return 1\n\n"
        "@tool(read_only=True, cache_ttl_ms=0)\ndef pi() -> float:\n    return 3.14\n"
    )
    shown = {name: runner.invoke(app, ["tools", "show", name, str(target)]).stdout for name in ("price", "pi")}
    assert "Kept      for 90 s, or until prices changes\n" in shown["price"]
    assert "Kept      for ever\n" in shown["pi"]
