"""Tracebacks in the log: escaped once, whole in JSON, and the author's own frames on a terminal."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.schemas.sensitive import hide_within
from dragoman.telemetry.log import EntryWriter, StructuredLogger, exception_facts
from dragoman.telemetry.python_logging import LoggingBridge, log_to_python
from dragoman.telemetry.settings import LoggingConfig
from dragoman.telemetry.tracebacks import Traceback, is_own_code


def fail(why: str = "not today") -> None:
    json.loads("{") if why == "in a library" else msgspec.json.decode("{}", type=int)


def caught(why: str = "not today") -> BaseException:
    try:
        fail(why)
    except Exception as error:
        return error
    raise AssertionError


def entries_of(error: BaseException) -> list[Any]:
    entries: list[Any] = []
    StructuredLogger(entries.append).error("tool failed", exception_facts(error, "INTERNAL"))
    return entries


def lines_of(error: BaseException, **options: Any) -> list[str]:
    return EntryWriter(**options)(entries_of(error)).decode().splitlines()


def test_in_json_a_traceback_is_one_string_whose_line_ends_are_escaped_once() -> None:
    error = caught("in a library")
    (line,) = lines_of(error)
    assert "\\\\" not in line
    trace = json.loads(line)["traceback"]
    assert trace == "".join(Traceback.of(error))
    assert trace.splitlines()[0] == "Traceback (most recent call last):"
    assert "json/decoder.py" in trace


def test_a_traceback_can_neither_forge_an_entry_nor_send_escape_sequences_to_a_terminal() -> None:
    error = ValueError("a\n12:00:00.000 ERROR forged\x1b[31m\r")
    assert "\\u001b[31m\\u000d" in json.loads(lines_of(error)[0])["traceback"]
    heading, *below = lines_of(error, text=True)
    assert "tool failed" in heading
    assert below == ["  ValueError: a", "  12:00:00.000 ERROR forged\\u001b[31m\\u000d"]


def test_on_a_terminal_a_traceback_has_the_authors_own_frames_unless_the_level_is_debug() -> None:
    error = caught("in a library")
    below = lines_of(error, text=True)[1:]
    frames = [line for line in below if "File " in line]
    assert len(frames) == 2
    assert all(__file__ in line for line in frames)
    assert below[-1].startswith("  json.decoder.JSONDecodeError: ")
    every = lines_of(error, text=True, config=LoggingConfig(level="debug"))
    assert sum("json/decoder.py" in line for line in every) == 2


def test_causes_without_frames_of_the_author_keep_their_message_and_no_heading() -> None:
    try:
        try:
            json.loads("{")
        except ValueError as error:
            raise RuntimeError("cannot read") from error
    except RuntimeError as error:
        error.__cause__.__traceback__ = error.__cause__.__traceback__.tb_next  # type: ignore[union-attr]
        own = Traceback.of(error).own.splitlines()
    assert own[0].startswith("json.decoder.JSONDecodeError")
    assert own.count("Traceback (most recent call last):") == 1
    assert own[-1] == "RuntimeError: cannot read"


def test_a_traceback_without_any_frame_of_the_author_is_shown_whole() -> None:
    error = caught("in a library")
    while error.__traceback__ is not None and error.__traceback__.tb_frame.f_globals["__name__"] == __name__:
        error.__traceback__ = error.__traceback__.tb_next
    trace = Traceback.of(error)
    assert trace.own == str(trace)
    assert "json/decoder.py" in trace.own


def test_a_syntax_error_points_to_the_file_alone(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def (")
    with pytest.raises(SyntaxError) as caught_error:
        compile("def (", str(tmp_path / "broken.py"), "exec")
    error = caught_error.value.with_traceback(None)
    assert Traceback.of(error).own.startswith(f'  File "{tmp_path / "broken.py"}", line 1')


def test_members_of_a_group_are_filtered_too() -> None:
    own = Traceback.of(ExceptionGroup("several", [caught("in a library"), ValueError("b")])).own  # type: ignore[list-item]
    assert "json/decoder.py" not in own
    assert __file__ in own
    assert "ValueError: b" in own


@pytest.mark.parametrize(
    ("file", "is_own"),
    [
        (__file__, True),
        ("<string>", True),
        ("<frozen importlib._bootstrap>", False),
        (json.__file__, False),
        (msgspec.__file__, False),
        (exception_facts.__code__.co_filename, False),
    ],
)
def test_files_of_the_server_of_python_and_of_packages_are_not_the_authors(file: str, is_own: bool) -> None:
    assert is_own_code(file) is is_own


def test_what_is_sensitive_is_hidden_in_both_forms() -> None:
    facts = hide_within(lambda text: text.replace("secret", "***"), exception_facts(ValueError("secret"), "INTERNAL"))
    assert "secret" not in str(facts["traceback"])
    assert facts["traceback"].own == "ValueError: ***\n"


@pytest.mark.parametrize("is_ours", [True, False])
def test_what_passes_through_pythons_log_is_escaped_once_too(is_ours: bool) -> None:
    entries: list[Any] = []
    theirs = logging.getLogger("tracebacks.of.others")
    theirs.propagate = False
    theirs.handlers = [LoggingBridge(StructuredLogger(entries.append))]
    if is_ours:
        log_to_python(theirs.name).error("tool failed", exception_facts(caught(), "INTERNAL"))
    else:
        theirs.error("tool failed", exc_info=caught())
    line = EntryWriter()(entries).decode()
    assert "\\\\" not in line
    assert json.loads(line)["traceback"].startswith("Traceback (most recent call last):\n  File ")


def test_a_line_of_pythons_log_has_a_traceback_that_is_escaped_once(caplog: pytest.LogCaptureFixture) -> None:
    log_to_python("tracebacks.of.ours").error("tool failed", exception_facts(caught(), "INTERNAL"))
    (record,) = caplog.records
    assert json.loads(record.getMessage())["traceback"].startswith("Traceback (most recent call last):\n  File ")


def test_the_stack_of_a_worker_that_crashed_keeps_its_lines() -> None:
    entries: list[Any] = []
    StructuredLogger(entries.append).error(
        "worker died", {"worker": 1, "stack": "Fatal\n  File x\x1b", "other": "a\nb"}
    )
    said = json.loads(EntryWriter()(entries))
    assert (said["stack"], said["other"]) == ("Fatal\n  File x\\u001b", "a\\u000ab")


def test_a_file_is_looked_at_once_however_many_frames_are_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def recurse() -> None:
        recurse()

    looked_at: list[str] = []

    def realpath(file: str) -> str:
        looked_at.append(file)
        return file

    monkeypatch.setattr("os.path.realpath", realpath)
    is_own_code.cache_clear()
    with pytest.raises(RecursionError) as caught:
        recurse()
    Traceback.of(caught.value)
    is_own_code.cache_clear()
    assert looked_at
    assert len(looked_at) == len(set(looked_at))
