"""Redacted copies as another package makes them, and whether its functions are those that were read."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dragoman.schemas import quick_copies
from dragoman.schemas.quick_copies import QuickCopies, fingerprint, first_unread

OWNER = SimpleNamespace(part=quick_copies, built_in=len)


SOURCE = """
class Owner:
    def total(
        self,
        first: int,
    ) -> int:

        if first:
            return first

        return 2

    def other(self) -> int:
        return 3
"""


def owner_of(source: str, path: Path) -> Any:
    path.write_text(source)
    found: dict[str, Any] = {}
    exec(compile(source, str(path), "exec"), found)
    return found["Owner"]


def test_a_fingerprint_covers_the_whole_function_and_nothing_else(tmp_path: Path) -> None:
    one = fingerprint(owner_of(SOURCE, tmp_path / "one.py").total)
    assert fingerprint(owner_of("# Moved.\n" + SOURCE, tmp_path / "moved.py").total) == one
    assert fingerprint(owner_of(SOURCE.replace("3", "4"), tmp_path / "beside.py").total) == one
    for number, (old, new) in enumerate([("2", "5"), ("first: int", "first: float"), ("if first", "if not first")]):
        assert fingerprint(owner_of(SOURCE.replace(old, new), tmp_path / f"{number}.py").total) != one


def test_a_function_without_source_counts_as_unread(tmp_path: Path) -> None:
    owner = owner_of(SOURCE, tmp_path / "gone.py")
    (tmp_path / "gone.py").unlink()
    assert first_unread(owner, {"total": "0" * 16}) == "total"


def test_the_first_function_that_is_not_as_it_was_read_is_named() -> None:
    read = {"part.fingerprint": fingerprint(fingerprint), "part.QuickCopies.forget": fingerprint(QuickCopies.forget)}
    assert first_unread(OWNER, read) is None
    assert first_unread(OWNER, {**read, "part.first_unread": "0" * 16}) == "part.first_unread"
    assert first_unread(OWNER, {"part.gone": "0" * 16}) == "part.gone"
    assert first_unread(OWNER, {"built_in": "0" * 16}) == "built_in"


class Model:
    def __init__(self, schema: dict[str, Any]) -> None:
        self.schema = schema
        self.times = 0

    def model_json_schema(self) -> dict[str, Any]:
        self.times += 1
        return self.schema


def test_copies_are_made_by_redaction_only_where_a_name_or_a_schema_calls_for_it() -> None:
    redacted: list[Any] = []

    def redact(data: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
        redacted.append(data)
        return {name: "***" if name == "token" or name in schema else value for name, value in data.items()}

    copies, plain = QuickCopies(redact, looks_at_values=False), Model({"type": "object"})
    data = {"a": [1, {"b": None}]}
    assert copies(data, plain) == data
    assert copies(data, plain)["a"] is not data["a"]
    assert copies({"token": 1}, plain) == {"token": "***"}
    assert copies({"a": 1}, Model({"a": {"x-sensitive": True}})) == {"a": "***"}
    assert plain.times == 1
    copies.forget()
    copies(data, plain)
    assert plain.times == 2
    assert data not in redacted
    assert QuickCopies(redact, looks_at_values=True)(data, plain) == data
    assert data in redacted
