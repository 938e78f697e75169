"""Sections: frozen groups of settings, and how they are read from plain values.

1. A setting may be spelled `max_payload_bytes` or `maxPayloadBytes`. The keys of a map (tool names, gates) are the
   user's own, and stay as they are written.
2. What is not a setting is refused by name, with the nearest that is.
3. Every problem is found, not only the first.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

Problem: TypeAlias = tuple[str, str]
"""A setting's dotted name, and what is wrong with it."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_UNUSABLE: Any = object()
_MESSAGE = re.compile(
    r"Expected `([^`]+)`(?:, got `([^`]+)`| (of length )?(>=|<=|>|<) (\S+)| matching regex '(.+)')", re.DOTALL
)
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "list": "a list",
    "NoneType": "null",
    "object": "a table",
}
_BOUNDS = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}
_HIGHEST = 2**63 - 1
"""Of any number. Whoever calculates with larger ones may find that there is no such float."""


class Section(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A named group of settings."""

    def conflicts(self) -> Iterator[Problem]:
        """What is wrong with settings that are each right by themselves; names are within the section."""
        return iter(())


S = TypeVar("S", bound=Section)

Milliseconds = Annotated[int, Meta(ge=1, le=86_400_000)]


Bytes = Annotated[int, Meta(ge=1)]


Count = Annotated[int, Meta(ge=1)]


class ValidationResult(Struct, frozen=True, omit_defaults=True):
    """Whether something can be used, and if not, why: `errors` holds `{path, message}` each."""

    valid: bool
    errors: list[dict[str, str]] | None = None


def about(text: str, *, is_secret: bool = False, is_limit: bool = False, is_harmless: bool = False) -> Meta:
    """What a setting is for. A secret is never shown.

    A settings file that is found in the working directory may lower a limit and set what is harmless. It cannot set
    anything else, so a setting without a mark is refused there. Mark a number as a limit only if every lower number,
    down to the smallest above zero, makes the server stricter, and if no default (null) means "no limit".
    """
    return Meta(description=text, extra={"is_secret": is_secret, "is_limit": is_limit, "is_harmless": is_harmless})


def notes_on(kind: Any) -> list[Meta]:
    """What is said about a setting beside its type."""
    return [note for note in get_args(kind)[1:] if isinstance(note, Meta)] if get_origin(kind) is Annotated else []


def is_marked(kind: Any, mark: str) -> bool:
    """Whether a setting was described with `is_secret`, `is_limit` or `is_harmless`."""
    return any((note.extra or {}).get(mark) for note in notes_on(kind))


@lru_cache(maxsize=256)
def fields_of(section: type[Section]) -> Mapping[str, msgspec.structs.FieldInfo]:
    """What msgspec knows of a section's settings, by name. It evaluates every annotation to tell."""
    return {field.name: field for field in msgspec.structs.fields(section)}


def settings_of(section: type[Section]) -> dict[str, Any]:
    """The types of a section's settings, by name."""
    return {name: field.type for name, field in fields_of(section).items()}


def is_section(kind: Any) -> bool:
    """Whether `kind` is a section, and not a setting."""
    return isinstance(kind, type) and issubclass(kind, Section)


def member_of(kind: Any) -> Any:
    """The type of a map's values; None when `kind` is no map."""
    plain = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return get_args(plain)[1] if get_origin(plain) is dict else None


def kind_of(section: type[Section], names: Iterable[str]) -> Any:
    """The type of the setting that `names`, in either spelling, lead to; Any when there is none."""
    kind: Any = section
    for name in names:
        kind = settings_of(kind).get(snake(name)) if is_section(kind) else member_of(kind)
        if kind is None:
            return Any
    return kind


def every_setting(section: type[Section], path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and types of all settings, those of sections within sections included; a map's keys are `<name>`."""
    for name, kind in settings_of(section).items():
        member = member_of(kind)
        if is_section(kind):
            yield from every_setting(kind, join(path, name))
        elif is_section(member):
            yield from every_setting(member, f"{join(path, name)}.<name>")
        else:
            yield join(path, name), kind


def snake(name: str) -> str:
    """`maxPayloadBytes`, `MAX_PAYLOAD_BYTES` and `max_payload_bytes` in the last of these spellings."""
    if name.isupper() or "_" in name:
        return name.lower()
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()


def join(path: str, name: str) -> str:
    """A dotted name; a part that is not a bare word is quoted, as TOML would have it."""
    part = name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)
    return f"{path}.{part}" if path else part


def nearest(name: str, known: Iterable[str], path: str = "") -> str:
    """A hint at what was probably meant; empty when nothing is near."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {join(path, close[0])}?" if close else ""


def respell(kind: Any, value: Any, found: list[Problem], path: str = "") -> Any:
    """A copy of `value` with every setting's name in one spelling, and without what is not a setting."""
    member = member_of(kind)
    if not isinstance(value, Mapping):
        return value
    if member is not None:
        return {str(key): respell(member, each, found, join(path, str(key))) for key, each in value.items()}
    if not is_section(kind):
        return value
    known = settings_of(kind)
    plain: dict[str, Any] = {}
    for key, each in value.items():
        name = snake(str(key))
        if name not in known:
            found.append((join(path, str(key)), f"is not a setting{nearest(name, known, path)}"))
        elif name in plain:
            found.append((join(path, name), "is given twice, in two spellings"))
        else:
            plain[name] = respell(known[name], each, found, join(path, name))
    return plain


def read(section: type[S], values: Any, found: list[Problem]) -> S:
    """A section from respelled values. Where a value cannot be used, the problem is found and the default stands in."""
    made = _read(section, values, found, "")
    return section() if made is _UNUSABLE else made


def _read(kind: Any, value: Any, found: list[Problem], path: str) -> Any:
    if is_section(kind):
        return _read_section(kind, value, found, path)
    member = member_of(kind)
    if member is not None and isinstance(value, Mapping):
        read_all = {key: _read(member, each, found, join(path, key)) for key, each in value.items()}
        return {key: each for key, each in read_all.items() if each is not _UNUSABLE}
    if isinstance(value, int) and value > _HIGHEST:
        found.append((path, f"must be at most {_HIGHEST}"))
        return _UNUSABLE
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        message, _, inner = str(error).partition(" - at `$")
        choices = _choices(kind)
        said = f"must be one of {', '.join(choices)}" if choices else _in_words(message)
        found.append((path + inner.rstrip("`"), said))
    return _UNUSABLE


def _read_section(section: type[Section], values: Any, found: list[Problem], path: str) -> Any:
    if not isinstance(values, Mapping):
        kind = type(values).__name__
        found.append((path or "settings", f"must be a group of settings, not {_KINDS.get(kind, kind)}"))
        return _UNUSABLE
    given: dict[str, Any] = {}
    fields = fields_of(section)
    for name, value in values.items():
        made = _read(fields[name].type, value, found, join(path, name))
        if made is not _UNUSABLE:
            # A map is added to its default, entry by entry, as every other layer is.
            is_map = isinstance(made, dict) and member_of(fields[name].type) is not None
            given[name] = {**fields[name].default_factory(), **made} if is_map else made
    return section(**given)


def _in_words(message: str) -> str:
    """What msgspec says, for who may not know what an `int` is."""
    said = _MESSAGE.fullmatch(message)
    if said is None:
        return message
    wanted, got, length, bound, number, pattern = said.groups()
    if got is not None:
        kinds = [_KINDS.get(name, name) for name in wanted.split(" | ") if name != "null"]
        return f"must be {' or '.join(kinds)}, not {'a fraction' if got == 'float' else _KINDS.get(got, got)}"
    if pattern is not None:
        return f"must match {pattern}"
    return f"must {'have a length of' if length else 'be'} {_BOUNDS[bound]} {number}"


def _choices(kind: Any) -> tuple[str, ...]:
    plain = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return get_args(plain) if get_origin(plain) is Literal else ()


def conflicts(section: Section, path: str = "") -> Iterator[Problem]:
    """The conflicts of a section and of all sections within it, by their whole names."""
    for name, message in section.conflicts():
        yield f"{path}.{name}" if path else name, message
    for name in section.__struct_fields__:
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from conflicts(value, join(path, name))
        elif isinstance(value, dict):
            for key, each in value.items():
                if isinstance(each, Section):
                    yield from conflicts(each, join(join(path, name), key))


def leaves(
    kind: Any, value: Any, path: str = "", marks: frozenset[str] = frozenset()
) -> Iterator[tuple[str, Any, frozenset[str]]]:
    """Dotted name, value and marks of everything that `value`, a respelled tree, sets. An empty group is a leaf itself.

    What is marked on a map is marked on all that is in it.
    """
    marks |= {mark for note in notes_on(kind) for mark, is_set in (note.extra or {}).items() if is_set}
    inner = settings_of(kind) if is_section(kind) else None
    member = member_of(kind)
    if not isinstance(value, Mapping) or (inner is None and member is None) or (not value and inner is None):
        yield path, value, marks
        return
    for key, each in value.items():
        yield from leaves(member if inner is None else inner[key], each, join(path, key), marks)


def merge(into: dict[str, Any], layer: Mapping[str, Any]) -> None:
    """Lay `layer` over `into`, setting by setting."""
    for key, value in layer.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            merge(into[key], value)
        elif isinstance(value, Mapping):
            into[key] = {}
            merge(into[key], value)
        else:
            into[key] = value
