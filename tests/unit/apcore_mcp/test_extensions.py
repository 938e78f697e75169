"""Folders of modules: what is found in them, and what is said about the rest."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import textwrap
from pathlib import Path
from typing import Any

import apcore
import pytest
from apcore import Executor

from apcore_mcp import load_extensions

CLASS = """
from pydantic import BaseModel

class Output(BaseModel):
    length: int

class Input(BaseModel):
    text: str

class Measure:
    description = "Measure a text"
    input_schema = Input
    output_schema = Output

    def execute(self, inputs, context):
        return {"length": len(inputs["text"])}
"""
FUNCTIONS = """
from __future__ import annotations

from pydantic import BaseModel
from apcore.decorator import module

class Person(BaseModel):
    name: str

@module
def shout(text: str) -> str:
    "Say it loudly."
    return text.upper()

@module(id="greetings.hello", tags=["public"])
async def hello(person: Person) -> dict[str, str]:
    "Greet somebody."
    return {"said": f"Hello {person['name'] if isinstance(person, dict) else person.name}"}

def helper() -> None: ...
"""


def folder(place: Path, **files: str) -> Path:
    for name, code in files.items():
        path = place.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(code), "utf-8")
    return place


def call(directory: Path, name: str, inputs: dict[str, Any]) -> Any:
    return asyncio.run(Executor(load_extensions(directory)).call_async(name, inputs))


@pytest.mark.requirement("FR-CLI-001", "FR-CLI-002")
def test_classes_are_known_by_their_file_and_functions_by_their_file_and_name_or_by_their_id(tmp_path: Path) -> None:
    place = folder(tmp_path / "a folder [1]", text__measure=CLASS, text__tools=FUNCTIONS)
    assert load_extensions(place).list() == ["greetings.hello", "text.measure", "text.tools.shout"]
    assert call(place, "text.measure", {"text": "abc"}) == {"length": 3}
    assert call(place, "text.tools.shout", {"text": "abc"}) == {"result": "ABC"}
    assert call(place, "greetings.hello", {"person": {"name": "Ada"}}) == {"said": "Hello Ada"}


def test_functions_alone_are_found_without_a_word_about_missing_classes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    more = "import apcore\n@apcore.module()\ndef f(a: int) -> int:\n    return a\n"
    place = folder(tmp_path, tools=FUNCTIONS, more=more)
    assert load_extensions(str(place)).list() == ["greetings.hello", "more.f", "tools.shout"]
    assert caplog.messages == []


def test_a_function_that_is_called_instead_of_decorated_is_found_too(tmp_path: Path) -> None:
    code = "from apcore.decorator import module\ndef f(a: int) -> int:\n    return a\nmade = module(f, id='made.f')\n"
    assert load_extensions(folder(tmp_path, tools=code)).list() == ["made.f"]


def test_a_file_with_both_has_both_and_is_run_once(tmp_path: Path) -> None:
    count = "import os\nos.environ['RUNS'] = os.environ.get('RUNS', '') + 'x'\n"
    code = count + CLASS + FUNCTIONS.replace("from __future__ import annotations", "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUNS", "")
        found = load_extensions(folder(tmp_path, both=code)).list()
        assert os.environ["RUNS"] == "x"
    assert found == ["both", "both.shout", "greetings.hello"]


def test_the_decorator_that_needs_parentheses_is_not_forgotten_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = "from apcore import module\n@module\ndef f(a: int) -> int:\n    return a\n"
    assert load_extensions(folder(tmp_path, tools=code)).list() == []
    assert caplog.messages == [f"Extension {tmp_path / 'tools.py'} has no function that is a module; write @module(…)"]


@pytest.mark.requirement("FR-CLI-001", "NFR-REL-002")
def test_what_cannot_be_loaded_is_left_out_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = folder(
        tmp_path,
        good=CLASS,
        syntax="def (",
        empty="",
        raises="from apcore import module\nraise RuntimeError('at import')\n",
        twice="from apcore.decorator import module\n@module(id='good')\ndef f(a: int) -> int:\n    return a\n",
        hyphen="from apcore.decorator import module\n@module(id='not-an-id')\ndef f(a: int) -> int:\n    return a\n",
        untyped="from apcore.decorator import module\n@module\ndef f(a):\n    return a\n",
        _private=CLASS,
    )
    assert load_extensions(place).list() == ["good"]
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    for name in ("syntax", "empty", "raises", "good", "not-an-id", "untyped"):
        assert any(name in each for each in said), (name, said)


@pytest.mark.requirement("NFR-REL-002")
@pytest.mark.parametrize("end", ["raise RuntimeError('no database')", "raise SystemExit(3)"])
def test_of_a_file_that_fails_half_way_nothing_is_served(
    end: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = folder(tmp_path, good=CLASS, half=FUNCTIONS + f"\n{end}\n")
    assert load_extensions(place).list() == ["good"]
    [said] = caplog.messages
    assert said.startswith(f"Extension {place / 'half.py'} cannot be loaded: ")
    assert "apcore_extensions.half" not in sys.modules


@pytest.mark.requirement("NFR-REL-002")
@pytest.mark.parametrize("end", ["import sys\nsys.exit()", "raise SystemExit(3)"])
def test_a_script_among_the_files_is_left_out_and_the_others_are_run_once(
    end: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    count = "import os\nos.environ['RUNS'] = os.environ.get('RUNS', '') + 'x'\n"
    place = folder(tmp_path, before=count + CLASS, script=CLASS + end, zebra=count + CLASS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUNS", "")
        assert load_extensions(place).list() == ["before", "zebra"]
        assert os.environ["RUNS"] == "xx"
    [said] = caplog.messages
    assert said.startswith(f"Extension {place / 'script.py'} cannot be loaded: SystemExit: ")


def test_who_interrupts_the_loading_has_interrupted_it(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        load_extensions(folder(tmp_path, good=CLASS, slow=CLASS + "raise KeyboardInterrupt"))


def test_a_module_that_ends_the_program_when_it_is_made_is_no_silent_end(tmp_path: Path) -> None:
    code = CLASS + "\n    def __init__(self):\n        raise SystemExit(0)\n"
    with pytest.raises(RuntimeError, match="ends the program when it is loaded"):
        load_extensions(folder(tmp_path, script=code))


@pytest.mark.requirement("NFR-REL-002")
@pytest.mark.parametrize("code", ["x = " + "(" * 3000 + ")" * 3000, "x = " + "-" * 100_000 + "1"])
def test_a_file_that_is_nested_too_deeply_is_left_out(code: str, tmp_path: Path) -> None:
    assert load_extensions(folder(tmp_path, good=CLASS, deep=code)).list() == ["good"]


def test_a_folder_can_be_loaded_again_though_its_files_register_with_the_global_instance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # As whoever reloads does.
    code = "import apcore\n@apcore.module(id='known.to_all')\ndef f(a: int) -> int:\n    return a + {}\n"

    @apcore.module(id="not.of_the_folder")
    def stays(a: int) -> int:
        return a

    for more in (1, 2):
        place = folder(tmp_path, tools=code.format(more))
        assert load_extensions(place).list() == ["known.to_all"]
        assert apcore.call("known.to_all", {"a": 1}) == {"result": 1 + more}
    assert "not.of_the_folder" in apcore.list_modules()


@pytest.mark.requirement("FR-CLI-001", "UC-006")
def test_an_empty_folder_has_no_modules(tmp_path: Path) -> None:
    assert load_extensions(tmp_path).list() == []
