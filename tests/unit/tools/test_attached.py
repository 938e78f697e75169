"""A decorated function stays a function, and everything that takes tools takes it."""

from __future__ import annotations

import functools
import inspect
import math
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman import Tool, ToolDefinition, agent, define_tool, prompt, resource, tool
from dragoman.app import ServerOptions, create_server
from dragoman.cli.target import load_tools
from dragoman.errors import InvalidTool, RegistrationError
from dragoman.testing import open_server
from dragoman.tools.tool import tool_of

ROOT = Path(__file__).parents[3]


@tool
def greet(name: str, polite: bool = False) -> str:
    """Greets."""
    return f"{'Good day' if polite else 'Hello'}, {name}"


@tool(name="fetch_page", read_only=True)
async def fetch(url: str) -> dict[str, str]:
    return {"url": url}


@resource("note://{number}")
def note(number: int) -> str:
    return f"note {number}"


@prompt
async def review(code: str) -> str:
    return f"Review {code}"


@prompt(name="both_prompt")
@tool(name="both_tool")
def both() -> str:
    return "both"


def counted(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def outer(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return outer


class Shop:
    def __init__(self, price: int) -> None:
        self.price = price

    def total(self, count: int) -> int:
        """What it costs."""
        return count * self.price

    async def later(self, count: int) -> int:
        return count * self.price


async def test_a_decorated_function_can_be_called_as_before() -> None:
    assert greet("Ada") == "Hello, Ada"
    assert greet("Ada", polite=True) == "Good day, Ada"
    assert await fetch("x") == {"url": "x"}
    assert (note(3), await review("x")) == ("note 3", "Review x")


@pytest.mark.parametrize("function", [greet, fetch, note, review, both])
def test_a_decorated_function_is_the_function_itself(function: Any) -> None:
    assert inspect.isfunction(function)
    assert pickle.loads(pickle.dumps(function)) is function
    assert function.__module__ == __name__
    assert not hasattr(function, "__wrapped__")


def test_the_tool_of_a_function_is_found_and_a_tool_is_its_own() -> None:
    made = tool_of(greet)
    assert isinstance(made, Tool)
    assert (made.name, made.description) == ("greet", "Greets.")
    assert tool_of(made) is made
    assert tool_of(fetch).name == "fetch_page"


@pytest.mark.parametrize(
    ("value", "name"), [(counted, "counted"), (note, "note"), (7, "7"), ("greet", "greet"), (None, "None")]
)
def test_a_value_that_is_no_tool_is_refused_by_name(value: Any, name: str) -> None:
    with pytest.raises(InvalidTool) as refused:
        tool_of(value)
    assert (refused.value.name, refused.value.problems) == (name, (("", "it is not a tool; decorate it with @tool"),))


async def test_a_server_takes_functions_and_tools_alike() -> None:
    made = define_tool(ToolDefinition(name="made", description="", input_schema={"type": "object"}), lambda *_: None)
    async with open_server([greet, fetch, note, review, both, made]) as server:
        runtime = server.runtime
        assert [each.name for each in runtime.catalogue.list()] == [
            "both_tool",
            "fetch_page",
            "greet",
            "health",
            "made",
        ]
        assert [each.key for each in runtime.offers] == ["both_prompt", "note://{number}", "review"]
        assert (await runtime.call("greet", {"name": "Ada"})).unwrap() == "Hello, Ada"


async def test_functions_can_be_registered_replaced_and_refused_while_a_server_runs() -> None:
    async with open_server() as server:
        runtime = server.runtime
        runtime.catalogue.register(greet)
        runtime.offers.register(note)
        runtime.replace([greet, note], [fetch, review])
        assert [each.name for each in runtime.catalogue.list()] == ["fetch_page", "health"]
        assert [each.key for each in runtime.offers] == ["review"]
        for register in (runtime.catalogue.register, runtime.offers.register):
            with pytest.raises(InvalidTool, match="'counted' cannot be registered: it is not a tool"):
                register(counted)


def test_an_undecorated_function_among_the_tools_is_refused_by_name() -> None:
    with pytest.raises(RegistrationError, match="tool 'counted' cannot be registered: it is not a tool; decorate it"):
        create_server(ServerOptions(tools=[greet, counted]))


async def test_a_decorator_below_is_part_of_the_tool() -> None:
    @tool
    @counted
    def double(number: int) -> int:
        return 2 * number

    @tool
    @functools.cache
    def triple(number: int) -> int:
        return 3 * number

    async with open_server([double, triple]) as server:
        assert (await server.runtime.call("double", {"number": 2})).unwrap() == double(2) == 4
        assert (await server.runtime.call("triple", {"number": 2})).unwrap() == triple(2) == 6


def test_a_decorator_above_is_refused_as_calls_would_not_go_through_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidTool, match="'greet' cannot be registered: another decorator is above @tool"):
        create_server(ServerOptions(tools=[counted(greet)]))
    path = tmp_path / "wrapped_tools.py"
    path.write_text(
        "import functools\n"
        "from dragoman import tool\n"
        "def guarded(function):\n"
        "    @functools.wraps(function)\n"
        "    def outer(): raise PermissionError\n"
        "    return outer\n"
        "@guarded\n"
        "@tool\n"
        "def secret() -> int: return 7\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidTool, match="'secret' cannot be registered: another decorator is above @tool"):
        load_tools(str(path))


async def test_methods_of_an_object_and_builtins_get_a_function_of_their_own() -> None:
    shop, other = Shop(3), Shop(5)
    total, later = tool(shop.total), tool(shop.later)
    other_total = tool(name="other_total")(other.total)
    rounded = tool(name="rounded")(round)
    assert all(map(inspect.isfunction, (total, later, other_total, rounded)))
    assert (total(2), await later(2), other_total(2), rounded(math.pi)) == (6, 6, 10, 3)
    assert inspect.iscoroutinefunction(later)
    async with open_server([total, later, other_total, rounded]) as server:
        results = [
            (await server.runtime.call(name, {"count": 2})).unwrap() for name in ("total", "later", "other_total")
        ]
        assert results == [6, 6, 10]
        assert (await server.runtime.call("rounded", {"number": 2.7})).unwrap() == 3


async def test_one_function_can_become_several_tools() -> None:
    def double(number: int) -> int:
        return 2 * number

    first, second = tool(name="first")(double), tool(name="second", timeout_ms=7)(double)
    assert (first(2), second(2)) == (4, 4)
    assert (tool_of(first).name, tool_of(second).name) == ("first", "second")
    async with open_server([first, second]) as server:
        assert [each.name for each in server.runtime.catalogue.list()] == ["first", "health", "second"]


def test_values_of_a_served_module_are_not_asked_for_attributes(tmp_path: Path) -> None:
    path = tmp_path / "proxy_tools.py"
    path.write_text(
        "from dragoman import tool\n"
        "class Proxy:\n"
        "    def __getattr__(self, name): raise RuntimeError('no request')\n"
        "proxy = Proxy()\n"
        "@tool\n"
        "def seven() -> int: return 7\n"
    )
    (made,) = load_tools(str(path))
    assert repr(made) == "Tool('seven')"


TYPED = """
from collections.abc import Callable, Coroutine
from typing import Any, assert_type
from dragoman import prompt, resource, tool

@tool
def plain(name: str) -> str:
    return name

@tool(read_only=True)
async def options(count: int, *, step: int = 1) -> list[int]:
    return [count]

@resource("note://{number}")
def note(number: int) -> str:
    return str(number)

@prompt
def review(code: str) -> str:
    return code

assert_type(plain("x"), str)
waiting = assert_type(options(1, step=2), Coroutine[Any, Any, list[int]])
assert_type(note(1), str)
assert_type(review("x"), str)
kept: Callable[[str], str] = plain
plain(1)
"""


@pytest.mark.slow
def test_type_checkers_see_the_functions_own_signature(tmp_path: Path) -> None:
    path = tmp_path / "typed.py"
    path.write_text(TYPED)
    # In a process of its own: mypy raises the limit of recursion.
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    (line, total) = done.stdout.splitlines()
    assert line.endswith('error: Argument 1 to "plain" has incompatible type "int"; expected "str"  [arg-type]')
    assert line.partition(":")[2].startswith(f"{TYPED.splitlines().index('plain(1)') + 1}:")
    assert total.startswith("Found 1 error")


@pytest.mark.parametrize(
    ("decorator", "arguments", "option", "said"),
    [
        (tool, (), "timeout", "@tool has no option 'timeout'; did you mean timeout_ms?"),
        (tool, (), "annotations", "@tool has no option 'annotations'"),
        (prompt, (), "descripton", "@prompt has no option 'descripton'; did you mean description?"),
        (resource, ("note://a",), "mimetype", "@resource has no option 'mimetype'; did you mean mime_type?"),
        (agent, ("clerk",), "idempotend", "@agent has no option 'idempotend'; did you mean idempotent?"),
    ],
)
def test_an_unknown_option_is_named_with_the_nearest(
    decorator: Any, arguments: tuple[str, ...], option: str, said: str
) -> None:
    with pytest.raises(TypeError) as refused:
        decorator(*arguments, **{option: 5})
    assert str(refused.value) == said
