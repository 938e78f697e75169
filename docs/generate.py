"""Writes the pages of docs/ that are made from the code. A test fails when they are no longer what this would write."""

from __future__ import annotations

import ast
import re
import textwrap
import tomllib
from collections.abc import Iterable, Iterator
from itertools import chain, groupby, starmap
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from dragoman import errors
from dragoman.cache.bounded import BoundedCache
from dragoman.cache.settings import CacheConfig
from dragoman.calls.call import COMPLETION_MEANINGS, Call, Outcome
from dragoman.calls.origin import Origin
from dragoman.cli.commands import COMMANDS, EXIT_CODES, load
from dragoman.config import FLAGS, PREFIX, Config
from dragoman.edge.http.connection import TRANSITIONS as HTTP_TRANSITIONS
from dragoman.edge.http.connection import HttpState
from dragoman.protocol.session import TRANSITIONS, State
from dragoman.replies.artifacts import Artifacts
from dragoman.replies.dialects import make_dialect
from dragoman.replies.failures import WORTH_REPEATING
from dragoman.replies.result_continue import NAME as RESULT_CONTINUE
from dragoman.replies.settings import ResponseConfig
from dragoman.replies.vocabulary import EnvelopeCode, words_for
from dragoman.sections import Section, is_marked, is_section, member_of, notes_on
from dragoman.telemetry.log import StructuredLogger
from dragoman.tools.catalogue import NO_TOOL, Catalogue
from dragoman.tools.settings import ToolsConfig
from dragoman.tools.tool import Hints, ToolDefinition, define_tool
from tests.support.http_messages import MESSAGES, Message

DOCS = Path(__file__).parent
ROOT = DOCS.parent
WIDTH = 16
"""Of the longest name of a room, and a little more."""
NOTE = "<!-- Made by docs/generate.py from the code; do not edit. -->\n\n"


def error_page() -> str:
    """Every error code, JSON-RPC code and completion outcome."""
    lines = [
        "# Errors and outcomes",
        "",
        "## Tool errors",
        "",
        "A call that fails is answered with a `tools/call` result that has `isError: true` and one text item, the JSON",
        "of `{code, message, details?, runId, correlationId}`. *Refused* means that the handler did not run, so that",
        "repeating the call is safe; *failed* means that it ran: repeat the call only if the tool is idempotent.",
        "",
        "A tool may raise any of these classes itself. `Envelope` is the code in the `envelope` dialect.",
        "",
        "| Class | Code | Envelope | | Meaning |",
        "|---|---|---|---|---|",
    ]
    for kind in concrete(errors.ToolError):
        family = "refused" if issubclass(kind, errors.Refused) else "failed"
        lines.append(f"| `{kind.__name__}` | `{kind.code}` | `{words_for(kind).envelope}` | {family} | {said(kind)} |")
    lines += [
        f"| | `{errors.ErrorCode.NOT_INITIALIZED}` | | refused | Never a tool error: see -32002 below. |",
        "",
        "## Protocol errors",
        "",
        "A message that cannot be taken as it is gets a JSON-RPC error. `error.data.correlationId` is the request's",
        "own correlation id where it brought one, else the connection's; over HTTP, a session is a connection. The",
        "answer has the same words on every transport, and the log has one `message refused` under the same id.",
        "",
        "| Code | Meaning |",
        "|---|---|",
    ]
    lines += [f"| {kind.code} | {said(kind)} |" for kind in leaves(errors.ProtocolError)]
    lines += [
        "",
        "## Completion outcomes",
        "",
        "Every call leaves exactly one record in the log, `tool call completed`, when its handler has really ended.",
        "Its `outcome` is one of these.",
        "",
        "| Outcome | Meaning |",
        "|---|---|",
    ]
    lines += [f"| `{outcome}` | {meaning} |" for outcome, meaning in COMPLETION_MEANINGS.items()]
    return NOTE + "\n".join(lines) + "\n"


def concrete(kind: type[Any]) -> Iterator[type[Any]]:
    """Every class of an error tree but the families it is split into, in the order in which they are defined."""
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            if child not in (errors.Refused, errors.Failed):
                yield child
            yield from concrete(child)


def leaves(kind: type[Any]) -> Iterator[type[Any]]:
    """The classes at the ends of an error tree, in the order in which they are defined."""
    children = [child for child in kind.__subclasses__() if child.__module__ == errors.__name__]
    for child in children:
        yield from leaves(child)
    if not children:
        yield kind


def said(kind: type[Any]) -> str:
    """A class's docstring on one line."""
    return " ".join((kind.__doc__ or "").split())


def state_page() -> str:
    """The state diagram of a handshake connection, from the table that drives it."""
    arrows = [f"    {source.name} --> {target.name}: {move.value}" for (source, move), target in TRANSITIONS.items()]
    lines = [
        "# The states of a connection",
        "",
        "A connection that opens with `initialize` moves through these states, and through no others. Before RUNNING,",
        "every method but `initialize` and `initialized` is answered -32002, `ping` included. CLOSED is final, and",
        "silent.",
        "",
        "```mermaid",
        "stateDiagram-v2",
        f"    [*] --> {State.STARTING.name}",
        *arrows,
        f"    {State.CLOSED.name} --> [*]",
        "```",
        "",
        "A connection whose first request carries the 2026-07-28 envelope in `params._meta` has no handshake, and so",
        "none of these states: each of its requests is complete in itself, and -32002 is never sent. A connection",
        "keeps the era of its first request.",
        "",
        "## The states of an HTTP connection",
        "",
        "Below MCP, a connection over HTTP/1.1 moves through these states. It has one request at a time; bytes that",
        "follow on it wait until it is answered. REFUSED and CLOSED read nothing more.",
        "",
        "```mermaid",
        "stateDiagram-v2",
        f"    [*] --> {HttpState.IDLE.name}",
        *(f"    {old.name} --> {new.name}: {move.name}" for (old, move), new in HTTP_TRANSITIONS.items()),
        f"    {HttpState.CLOSED.name} --> [*]",
        "```",
    ]
    return NOTE + "\n".join(lines) + "\n"


def configuration_page() -> str:
    """Every setting with its default, its variable and its place in a file."""
    lines = [
        "# Configuration",
        "",
        "Flags win over environment variables, variables over the file, the file over the defaults, setting by",
        "setting. The file is the one given with `--config`, else `./dragoman.toml`, else `./dragoman.json`. Keys may",
        "be written `max_payload_bytes` or `maxPayloadBytes`. Whatever is wrong is refused by name, all of it at",
        "once, before anything starts. [`dragoman config`](commands.md#dragoman-config) checks a file, shows what is",
        "in force and where it came from, and prints a JSON Schema for editors.",
        "",
        "```toml",
        "[resources]",
        "max_concurrent_executions = 64",
        "",
        "[timeouts.tool_overrides]",
        "count_down = 5000",
        "",
        "[limits.tools.count_words]",
        "max_string_length = 1000",
        "```",
        "",
        "A variable's value is text where the setting is text, and JSON where it is not. `<name>` is yours: a tool's",
        "name, exactly as it is. In a variable a map is best given whole, as JSON, such as",
        "`DRAGOMAN_TIMEOUTS__TOOL_OVERRIDES='{\"count_down\": 5000}'`. A map is added to its default entry by entry.",
        "",
        "## A file in the working directory",
        "",
        "The person who unpacked a folder may not be the one who runs a server in it. A file that is found there, and",
        "not named with `--config`, can therefore make a server stricter, never more open. It may lower settings",
        "marked *limit* below their defaults, never raise them, and set those marked *harmless* as it likes. Any other",
        "setting stops the start with a message that names it, unless it has its default value; nothing is ignored.",
        "Limits of a single tool that replace a general limit (`limits.tools.<name>.max_array_size`,",
        "`timeouts.tool_overrides`) are not marked: a variable may have lowered the general limit further.",
        "`dragoman config check` without a file applies the same rule.",
        "",
        "To use every setting, as in the example above, name the file: `dragoman serve --config dragoman.toml`.",
        "Environment variables and flags can set everything too.",
    ]
    for section in msgspec.structs.fields(Config):
        lines += ["", f"## `{section.name}`", "", said(section.type)]
        settings = list(rows(section.type, section.name))
        if settings:
            lines += ["", "| Setting | Default | Variable | |", "|---|---|---|---|", *settings]
    return NOTE + "\n".join(lines) + "\n"


def rows(section: type[Section], path: str) -> Iterator[str]:
    """One row for each setting; for a map of sections, one for each setting of a member."""
    for field in msgspec.structs.fields(section):
        name = f"{path}.{field.name}"
        if is_section(field.type):
            yield from rows(field.type, name)
        elif is_section(member := member_of(field.type)):
            yield from rows(member, f"{name}.<name>")
        else:
            default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
            variable = (PREFIX + name.upper().replace(".", "__")).replace("<NAME>", "<name>")
            notes = [note.description for note in notes_on(field.type) if note.description]
            notes += [f"*{mark}.*" for mark in ("Limit", "Harmless") if is_marked(field.type, f"is_{mark.lower()}")]
            notes += [f"Flag: `{FLAGS[name]}`."] if name in FLAGS else []
            yield f"| `{name}` | `{msgspec.json.encode(default).decode()}` | `{variable}` | {' '.join(notes)} |"


def commands_page() -> str:
    """Every command with its arguments and options, in the words of `--help`."""
    lines = [
        "# Commands",
        "",
        "`dragoman COMMAND --help` says the same. Answers are on stdout, everything else on stderr. JSON is indented",
        "on a terminal, and on one line where a program reads it.",
        "",
        EXIT_CODES,
        "",
        "`dragoman --install-completion` teaches your shell the commands and options; `dragoman --show-completion`",
        "prints what it would add.",
    ]
    lines += chain.from_iterable(command_lines(load(name), f"dragoman {name}", 2) for name in COMMANDS)
    return NOTE + "\n".join(lines) + "\n"


def command_lines(command: Any, name: str, level: int) -> Iterator[str]:
    """A command's part of the page, and below it those of the commands within it."""
    yield from ("", f"{'#' * level} `{name}`", "", command.help)
    within = getattr(command, "commands", {})
    parameters = [each for each in command.params if each.name != "help"]
    if not within:
        arguments = [argument(each) for each in parameters if each.param_type_name == "argument"]
        options = ["[OPTIONS]"] if len(arguments) < len(parameters) else []
        yield from ("", "```", " ".join((name, *arguments, *options)), "```")
    if parameters:
        yield from ("", "| | Default | |", "|---|---|---|")
        yield from map(parameter_row, parameters)
    for each in within:
        yield from command_lines(within[each], f"{name} {each}", level + 1)


def argument(parameter: Any) -> str:
    """An argument in a line of usage."""
    name = parameter.name.upper() + ("..." if parameter.nargs == -1 else "")
    return name if parameter.required else f"[{name}]"


def parameter_row(parameter: Any) -> str:
    """One argument or option. What has no default says in its help what happens without it."""
    is_argument = parameter.param_type_name == "argument"
    spelled = parameter.name.upper() if is_argument else ", ".join((*parameter.opts, *parameter.secondary_opts))
    default = "" if parameter.default in (None, False, ()) or callable(parameter.default) else f"`{parameter.default}`"
    return f"| `{spelled}` | {default} | {' '.join(parameter.help.split())} |".replace("|  |", "| |")


Dialect: TypeAlias = Literal["structured", "envelope", "plain"]
DIALECTS: tuple[Dialect, ...] = ("structured", "envelope", "plain")


def dialects_page() -> str:
    """The same outcomes in each dialect, and what the words of `envelope` mean."""
    lines = [
        "# Dialects",
        "",
        "Whatever comes of a call, `response.dialect` says how it is worded. These are the same outcomes in each of",
        "the three: the text of the one content block of the answer. Everywhere, `isError` is true for an error,",
        "`structuredContent` is the result when the tool has an output schema (an object as it is, any other value",
        'as `{"result": value}`), and `_meta` has the run id, the correlation id and the duration under keys that',
        "begin with `dragoman/`. Content blocks that a tool returns are passed on unchanged. In `structured` and",
        "`plain`, a string is sent without quotes if the function [declares it](tools.md#results).",
    ]
    for title, outcome in EXAMPLES.items():
        lines += ["", f"## {title}"]
        for dialect in DIALECTS:
            lines += ["", f"`{dialect}`", "", "```", worded(dialect, outcome), "```"]
    lines += [
        "",
        "## Too large",
        "",
        "No answer weighs more than `response.max_response_bytes`, errors included. In `structured` and `plain`, a",
        "larger result is an error. A result is encoded only until it has passed the limit, so a result that is far",
        "too large costs no more than one at the limit: about 5 ms for each MiB of the limit, during which other",
        "clients wait. A model of Pydantic is converted as a whole first.",
        "",
        "`envelope` shortens a result of up to `response.max_kept_bytes`, at about 25 ms for each MiB. A larger one is",
        "an error there too:",
        "",
        "- Strings longer than `max_string_length` are cut, and end with `truncation_suffix`, which counts. Lists",
        "  longer than `max_list_items` keep their first items.",
        "- What is still too large loses items of its outermost lists, then characters of its strings, then items of",
        "  inner lists. Objects keep all their keys.",
        "- What was cut is still valid under the tool's output schema. What the schema does not let be cut stays",
        "  whole, if it is not too large.",
        '- `metadata.truncated` and `_meta["dragoman/truncated"]` are true when something was cut, and only then.',
        "- What cannot be made to fit is an error, `OPERATION_FAILED`, with `limit`, and `actual` where it is known.",
        "",
        "This is what becomes of `[1, 2, … 250]` under the default settings, but for the items in the middle:",
        "",
        "```",
        worded("envelope", Outcome(list(range(1, 251)))).replace(",".join(map(str, range(4, 98))), "…"),
        "```",
        "",
        f"The tool `{RESULT_CONTINUE}` takes a cursor and gives the next part of a list, `{{items, total, limit,",
        "offset, hasMore, nextCursor}`, or of a string, `{text, total, offset, hasMore, nextCursor}`. Where there are",
        "more cuts than can be told, the last continuation is the whole result as JSON text (`kind` is `json`), and so",
        'is `context.cursor` of the error above. `_meta["dragoman/nextCursor"]` is the first cursor.',
        "",
        "Cursors work for the caller that got them, until the result is forgotten: after `cache.default_ttl_ms`, or",
        "when the cache needs the room. A result that is larger than the cache has no cursors. Reading a part costs",
        "what the part holds, however long the whole is.",
        "",
        "## Whether to repeat a call",
        "",
        "In `envelope`, `error.retryable` is true when repeating the call is safe *and* worth it. It is safe after a",
        "refusal, because nothing has happened, and for a tool whose hints say that it is read-only or idempotent. It",
        "is worth it after these codes, unless the error's own `details.retryable` says otherwise:",
        "",
        "| Code | Worth repeating |",
        "|---|---|",
        *(f"| `{code}` | {'yes' if code in WORTH_REPEATING else 'no'} |" for code in EnvelopeCode),
    ]
    return NOTE + "\n".join(lines) + "\n"


def refused() -> errors.InvalidArgument:
    error = errors.InvalidArgument(
        "Arguments do not match the tool's schema",
        {"errors": [{"path": "/city", "message": "city is required"}]},
    )
    error.keywords, error.rules = frozenset({"required"}), ("missing",)
    return error


EXAMPLES = {
    "A result": Outcome({"city": "Oslo", "degrees": -4}),
    "Arguments that do not fit": Outcome(error=refused()),
    "No answer in time": Outcome(error=errors.TimedOut("No result within 10000 ms", {"timeoutMs": 10_000})),
    "Too many calls": Outcome(error=errors.RateLimited(60, 1500)),
}


def worded(dialect: Dialect, outcome: Outcome) -> str:
    """What the outcome of a read-only tool is worded as."""
    catalogue = Catalogue(ToolsConfig(), StructuredLogger(lambda entry: None))
    definition = ToolDefinition(
        name="weather", description="", input_schema={"type": "object"}, hints=Hints(read_only=True), timeout_ms=10_000
    )
    catalogue.register(define_tool(definition, lambda arguments, context: None))
    call = Call(Origin(), "weather", {}, "run-1", "corr-1", lambda call, outcome: None)
    call.tool, call.duration_ms = catalogue.get("weather") or NO_TOOL, 12.5
    artifacts = Artifacts(BoundedCache(CacheConfig()), lambda: "6Jt0mRrVqk3yN8wPzX2bLA")
    text = make_dialect(ResponseConfig(dialect=dialect), artifacts).render(call, outcome).content[0].text
    return str(text)


def rooms() -> str:
    """The packages from the top to the bottom, as the import contract has them, each in the words of its docstring."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    layers = [re.findall(r"\w+", layer) for layer in contracts[0]["layers"]]
    lines = [f"{name:<{WIDTH}}{purpose(name)}" for layer in layers[:-1] for name in layer]
    return "\n".join((*lines, *textwrap.wrap(" · ".join(layers[-1]), 118)))


def purpose(name: str) -> str:
    """The first sentence of a module's docstring."""
    module = ROOT / "src/dragoman" / name
    path = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
    said = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return said.partition("\n")[0].rstrip(".")


def architecture() -> str:
    """`ARCHITECTURE.md` with its picture of the rooms drawn anew."""
    return with_block(ROOT / "ARCHITECTURE.md", "rooms", f"```\n{rooms()}\n```\n")


def http_page() -> str:
    """`http.md` with its tables of messages made anew."""
    return with_block(DOCS / "http.md", "messages", "".join(starmap(message_table, MESSAGES.items())))


def message_table(title: str, messages: Iterable[Message]) -> str:
    rows = [
        f"| {'<br>'.join(message.name for message in group)} | {outcome} | {with_link(why)} |"
        for (outcome, why), group in groupby(messages, attrgetter("outcome", "why"))
    ]
    return "\n".join((f"### {title}", "", "| Message | Answer | Why |", "|---|---|---|", *rows, "", ""))


def with_link(why: str) -> str:
    """The reason with a link to its section of an RFC."""
    found = re.fullmatch(r"(\d+) ([\d.]+): (.*)", why)
    assert found is not None, why
    number, section, rule = found.groups()
    return f"[RFC {number}, {section}](https://www.rfc-editor.org/rfc/rfc{number}#section-{section}): {rule}"


def with_block(page: Path, name: str, block: str) -> str:
    """A page that is written by hand, with the part of it that is made."""
    before, begin, rest = page.read_text("utf-8").partition(f"<!-- {name}, made by docs/generate.py -->\n")
    _, end, after = rest.partition(f"<!-- end of {name} -->\n")
    return f"{before}{begin}{block}{end}{after}"


PAGES = {
    "../ARCHITECTURE.md": architecture,
    "errors.md": error_page,
    "states.md": state_page,
    "configuration.md": configuration_page,
    "commands.md": commands_page,
    "dialects.md": dialects_page,
    "http.md": http_page,
}


def main() -> None:
    for name, write in PAGES.items():
        (DOCS / name).write_text(write(), "utf-8")


if __name__ == "__main__":
    main()
