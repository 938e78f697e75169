"""`dragoman tasks`, and `dragoman call` with `--task` or a key: what operators see of tasks, and can do."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from typer.testing import CliRunner, Result

from dragoman.adapters.process_locks import boot_clock
from dragoman.agents.ledger import EntryStatus
from dragoman.cli.commands import app
from dragoman.cli.target import with_space
from dragoman.config import Config
from dragoman.protocol.results import ResultMeta, TextBlock, ToolResult
from dragoman.tasks.port import Begin, Note, QuestionAsked, Run
from dragoman.tasks.stored import UNKNOWN_OUTCOME, encode_result
from dragoman.workers.control import Source
from tests.support.ledger_processes import Process, processes
from tests.support.run_entries import ended, keyed, task

T = TypeVar("T")
runner = CliRunner()
SPACE = "shop"
KEY = "order-7-of-monday"
EVERY = ("tasks list", "tasks show t", "tasks answer t --decline", "tasks cancel t", "tasks result t")
HOSTILE = "\x1b]0;gone\x07 \x1b[2J \x9b31m \u202egnp.exe \u2066x \r\n\x00 \u200b end"

TOOLS = '''
import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from dragoman import Text, ToolContext, agent, tool
from dragoman.errors import InvalidArgument, ProtocolError

def note(word):
    with Path("ran").open("a") as ran:
        ran.write(word + "\\n")

@asynccontextmanager
async def lifespan():
    note("lifespan")
    yield

@agent("clerk", effects="ledger")
async def clerk(message, ctx):
    note("clerk")

@tool(task="optional")
async def build(name: str, ctx: ToolContext) -> str:
    """Builds."""
    note(name)
    ctx.progress(1, 2, "half")
    return f"built {name}"

@tool(task="optional")
async def blocks() -> list[Text]:
    """Answers with content."""
    return [Text("one"), Text("two")]

@tool(task="required")
async def ask(ctx: ToolContext) -> str:
    """Asks, and goes on without an answer."""
    try:
        return str(await ctx.elicit("Which\\x1b[2J colour?", str))
    except TimeoutError:
        return "none"

@tool(task="optional")
async def refuse(how: str) -> str:
    """Fails."""
    if how == "tool":
        raise InvalidArgument("Not like this", {"field": "x"})
    raise ProtocolError("It broke", {"part": 7}, code=1234)

@tool
async def pay(amount: int) -> int:
    """Pays."""
    note(f"paid {amount}")
    return amount

@tool(read_only=True)
async def look() -> int:
    """Looks."""
    note("looked")
    return 1
'''


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A data directory that is not there yet, beside a file of tools that the interpreter forgets afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAGOMAN_STORAGE__DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr(sys, "path", sys.path.copy())
    (tmp_path / "my_tools.py").write_text(TOOLS)
    yield tmp_path / "data"
    for name, module in tuple(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def dragoman(*words: str) -> Result:
    return runner.invoke(app, words)


def answer(*words: str) -> Any:
    """What a command that goes well prints as JSON."""
    result = dragoman(*words, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def call(*words: str) -> Result:
    return dragoman("call", *words, "--target", "my_tools.py")


def what_ran() -> list[str]:
    """What the tools have noted, line by line."""
    ran = Path("ran")
    return ran.read_text().splitlines() if ran.exists() else []


def fill(folder: Path, work: Callable[[Process], Awaitable[T]]) -> T:
    """What `work` returns, done by a process that holds runs."""

    folder.mkdir(exist_ok=True)

    async def run() -> T:
        async with processes(folder, SPACE) as ((process,), clock):
            clock.seconds = boot_clock()
            return await work(process)

    return asyncio.run(run())


def result_of(text: str, structured: bytes | None = None, *, is_error: bool = False) -> bytes:
    """A `tools/call` result as a task holds it."""
    made = ToolResult([TextBlock(text)], is_error, ResultMeta("r", "c", 1.0))
    if structured is not None:
        made.structured_content = msgspec.Raw(structured)
    return encode_result(made, {"name": "s", "version": "1"})


async def begun(process: Process, task_id: str, **facts: Any) -> Run:
    """A task that runs in `process`."""
    added = await process.runs.add(task(task_id, at=time.time(), expires_at=time.time() + 1000, **facts))
    return await process.runs.change(Begin(added.number, time.time()))


async def one_of_each(process: Process) -> None:
    """Tasks named for what became of them, of which the last two are open, and a keyed call that is no task."""
    done = await begun(process, "done", tool="build")
    await process.runs.change(ended(done, result_of("8", b'{"result":8}'), at=time.time()))
    plain = await begun(process, "plain", tool="build")
    await process.runs.change(ended(plain, result_of("only text"), at=time.time()))
    wrong = await begun(process, "wrong")
    error = '{"code":"INVALID_ARGUMENT","message":"Not so","details":{"field":"x"}}'
    await process.runs.change(ended(wrong, result_of(error, is_error=True), at=time.time()))
    failed = await begun(process, "failed")
    facts = {"status": EntryStatus.FAILED, "error": b'{"code":1234,"message":"It broke","data":{"part":7}}'}
    await process.runs.change(ended(failed, None, at=time.time(), **facts))
    lost = await begun(process, "lost", is_repeatable=False)
    unknown = {"status": EntryStatus.UNKNOWN, "error": msgspec.json.encode(UNKNOWN_OUTCOME)}
    await process.runs.change(ended(lost, None, at=time.time(), **unknown))
    gone = await begun(process, "gone")
    await process.runs.change(ended(gone, None, at=time.time(), status=EntryStatus.CANCELLED))
    await process.runs.add(keyed("pay 1", at=time.time(), expires_at=time.time() + 1000))
    asking = await begun(process, "asking", arguments=b'{"token":"hush"}', key=f"pay {KEY}")
    request = msgspec.json.encode({"method": "elicitation/create", "params": {"message": "Sure?", "secret": "hush"}})
    await process.runs.change(Note(asking.number, asking.fence, time.time(), "half", b'{"progress":1,"total":2}'))
    await process.runs.change(QuestionAsked(asking.number, asking.fence, time.time(), "words", 0, request))
    await process.runs.add(task("waiting", at=time.time(), expires_at=time.time() + 1000))


NEWEST_FIRST = [
    ("waiting", "pay", "working"),
    ("asking", "pay", "input_required"),
    ("gone", "pay", "cancelled"),
    ("lost", "pay", "failed"),
    ("failed", "pay", "failed"),
    ("wrong", "pay", "completed"),
    ("plain", "build", "completed"),
    ("done", "build", "completed"),
]


def ids(*words: str) -> list[str]:
    return [each["taskId"] for each in answer("tasks", "list", *words)["tasks"]]


# Which ledger is meant.


@pytest.mark.parametrize("command", EVERY)
def test_without_a_database_nothing_is_made_and_the_command_is_refused(command: str, data: Path) -> None:
    result = dragoman(*command.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"dragoman: {data} has no ledger yet; a server with agents or tasks makes one\n"
    assert not data.exists()


# Looking at tasks.


def test_tasks_of_all_callers_are_listed_from_the_newest(data: Path) -> None:
    async def work(process: Process) -> tuple[Any, str]:
        await one_of_each(process)
        # On a thread: a command has an event loop of its own.
        shown = await asyncio.to_thread(dragoman, "tasks", "list")
        return await asyncio.to_thread(answer, "tasks", "list"), shown.stdout

    listed, shown = fill(data, work)
    assert [(each["taskId"], each["tool"], each["status"]) for each in listed["tasks"]] == NEWEST_FIRST
    asking = listed["tasks"][1]
    assert (asking["statusMessage"], asking["progress"]) == ("half", {"progress": 1, "total": 2})
    assert {each["owner"] for each in listed["tasks"]} == {"ada"}
    assert listed["before"] is None
    lines = [line.split() for line in shown.splitlines()]
    assert lines[0] == ["TASK", "TOOL", "STATUS", "AGE", "MESSAGE"]
    assert lines[2][:3] == ["asking", "pay", "input_required"]
    assert (lines[2][-1], lines[1][-1]) == ("half", "-")


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ("--tool build", ["plain", "done"]),
        ("--tool nothing", []),
        ("--status working", ["waiting"]),
        ("--status input_required", ["asking"]),
        ("--status failed", ["lost", "failed"]),
        ("--status cancelled --status working", ["waiting", "gone"]),
        ("--status completed --tool pay", ["wrong"]),
        ("--status working --limit 1", ["waiting"]),
    ],
)
def test_tasks_are_found_by_tool_and_status(filters: str, found: list[str], data: Path) -> None:
    async def work(process: Process) -> list[str]:
        await one_of_each(process)
        return await asyncio.to_thread(ids, *filters.split())

    assert fill(data, work) == found


@pytest.mark.slow
def test_a_long_list_comes_page_by_page(data: Path) -> None:
    async def work(process: Process) -> None:
        for number in range(5):
            await process.runs.add(task(f"t{number}", at=time.time(), expires_at=time.time() + 1000))

    fill(data, work)
    first = answer("tasks", "list", "--limit", "2")
    second = answer("tasks", "list", "--limit", "2", "--before", str(first["before"]))
    last = answer("tasks", "list", "--limit", "2", "--before", str(second["before"]))
    pages = [[each["taskId"] for each in page["tasks"]] for page in (first, second, last)]
    assert (pages, last["before"]) == ([["t4", "t3"], ["t2", "t1"], ["t0"]], None)
    assert dragoman("tasks", "list", "--limit", "2").stderr == f"there are more: --before {first['before']}\n"
    assert dragoman("tasks", "list", "--tool", "nothing").stderr == "there are no such tasks\n"


def test_a_task_is_shown_with_its_questions_and_without_secrets(data: Path) -> None:
    async def work(process: Process) -> Any:
        await one_of_each(process)
        return await asyncio.to_thread(answer, "tasks", "show", "asking")

    shown = fill(data, work)
    times = [shown.pop(name) for name in ("createdAt", "lastUpdatedAt")]
    assert all(each.endswith("Z") for each in times)
    assert shown == {
        "number": shown["number"],
        "taskId": "asking",
        "tool": "pay",
        "status": "input_required",
        "statusMessage": "half",
        "progress": {"progress": 1, "total": 2},
        "owner": "ada",
        "idempotencyKey": KEY,
        "correlationId": "c",
        "attempts": 1,
        "mayRunAgain": True,
        "isHeld": True,
        "arguments": {"token": "[REDACTED]"},
        "inputRequests": {
            "question-1": {
                "method": "elicitation/create",
                "params": {"message": "Sure?", "secret": "[REDACTED]"},
            }
        },
    }


@pytest.mark.slow
def test_a_task_that_has_ended_is_shown_with_what_it_came_to(data: Path) -> None:
    fill(data, one_of_each)
    done, plain, failed = (answer("tasks", "show", each) for each in ("done", "plain", "failed"))
    assert (done["result"], done["isError"]) == ({"result": 8}, False)
    assert plain["result"] == [{"type": "text", "text": "only text"}]
    assert answer("tasks", "show", "wrong")["isError"] is True
    assert failed["error"] == {"code": 1234, "message": "It broke", "data": {"part": 7}}
    assert "endedAt" in failed
    assert "expiresAt" in failed
    lines = dict(line.split(maxsplit=1) for line in dragoman("tasks", "show", "done").stdout.splitlines())
    assert (lines["status"], lines["result"]) == ("completed", '{"result":8}')


@pytest.mark.slow
def test_nothing_that_a_task_says_reaches_the_terminal_as_it_is(data: Path) -> None:
    async def work(process: Process) -> None:
        words = msgspec.json.encode({HOSTILE: HOSTILE, "password": "hush"})
        run = await begun(process, "t", tool=HOSTILE, arguments=words)
        await process.runs.change(Note(run.number, run.fence, time.time(), HOSTILE, b"{}"))
        secret = json.dumps({"token": "hush", "said": HOSTILE})
        await process.runs.change(ended(run, result_of(secret), at=time.time()))
        failing = await begun(process, "f")
        error = msgspec.json.encode({"code": 1, "message": HOSTILE, "data": {HOSTILE: HOSTILE}})
        await process.runs.change(ended(failing, None, at=time.time(), status=EntryStatus.FAILED, error=error))

    fill(data, work)
    for command in ("tasks list", "tasks show t", "tasks result t", "tasks show f", "tasks result f"):
        for words in (command.split(), [*command.split(), "--json"]):
            result = dragoman(*words)
            said = (result.stdout + result.stderr).replace("\n", "").replace("\u200b", "")
            assert said.isprintable(), words
            assert "hush" not in said or "result" in words
    gone = dragoman("tasks", "show", HOSTILE)
    assert (gone.exit_code, gone.stderr.replace("\n", "").replace("\u200b", "").isprintable()) == (1, True)


@pytest.mark.parametrize("command", EVERY[1:])
def test_a_task_that_is_not_there_fails_the_command(command: str, data: Path) -> None:
    fill(data, one_of_each)
    result = dragoman(*command.split())
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "dragoman: there is no task t\n")


# Results.


@pytest.mark.slow
def test_the_result_of_a_task_is_printed_as_json(data: Path) -> None:
    fill(data, one_of_each)
    assert dragoman("tasks", "result", "done").stdout == '{"result":8}\n'
    assert json.loads(dragoman("tasks", "result", "plain").stdout) == [{"type": "text", "text": "only text"}]
    whole = answer("tasks", "result", "done")
    assert (whole["status"], whole["result"]["structuredContent"]) == ("completed", {"result": 8})
    assert whole["result"]["resultType"] == "complete"


@pytest.mark.parametrize(
    ("task_id", "said"),
    [
        ("wrong", 'INVALID_ARGUMENT: Not so\n  field: "x"'),
        ("failed", "1234: It broke\n  part: 7"),
        ("lost", f'-32603: {UNKNOWN_OUTCOME.message}\n  outcome: "UNKNOWN"'),
        ("gone", "task gone was cancelled"),
        ("waiting", "task waiting is working: it is not done yet"),
        ("asking", "task asking is input_required: it is not done yet"),
    ],
)
def test_a_task_without_a_result_fails_the_command_and_says_why(task_id: str, said: str, data: Path) -> None:
    async def work(process: Process) -> tuple[Result, Result]:
        await one_of_each(process)
        words = ("tasks", "result", task_id)
        return await asyncio.to_thread(dragoman, *words), await asyncio.to_thread(dragoman, *words, "--json")

    result, as_json = fill(data, work)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"dragoman: {said}\n")
    assert (as_json.exit_code, json.loads(as_json.stdout)["taskId"]) == (1, task_id)


# Cancelling.


@pytest.mark.slow
def test_a_task_that_waits_is_cancelled_at_once(data: Path) -> None:
    fill(data, one_of_each)
    result = dragoman("tasks", "cancel", "waiting")
    assert (result.exit_code, result.stdout) == (0, "task waiting is cancelled\n")
    assert answer("tasks", "show", "waiting")["status"] == "cancelled"
    again = dragoman("tasks", "cancel", "waiting")
    assert (again.exit_code, again.stderr) == (
        1,
        "dragoman: task waiting is cancelled: there is nothing to cancel\n",
    )


def test_the_process_that_runs_a_task_is_asked_to_stop_it(data: Path) -> None:
    async def work(process: Process) -> tuple[Result, Any, Run | None]:
        await begun(process, "t", is_repeatable=False)
        said = await asyncio.to_thread(dragoman, "tasks", "cancel", "t")
        told = await asyncio.to_thread(answer, "tasks", "cancel", "t")
        return said, told, await process.runs.find(task_id="t")

    result, told, run = fill(data, work)
    assert (result.exit_code, result.stdout) == (0, "task t is working, and its tool was asked to stop\n")
    assert told == {"taskId": "t", "status": "working", "cancelRequested": True}
    assert run is not None
    assert (run.is_cancelled, run.is_open) == (True, True)


@pytest.mark.parametrize(
    ("is_repeatable", "code", "said"),
    [
        (True, 0, "task t is cancelled\n"),
        (False, 1, "dragoman: task t is failed: the process that ran it has ended, and its outcome is unknown\n"),
    ],
)
def test_a_task_whose_process_has_ended_is_settled(is_repeatable: bool, code: int, said: str, data: Path) -> None:
    async def work(process: Process) -> Result:
        await begun(process, "t", is_repeatable=is_repeatable)
        process.end()
        return await asyncio.to_thread(dragoman, "tasks", "cancel", "t")

    result = fill(data, work)
    assert (result.exit_code, result.stdout + result.stderr) == (code, said)
    assert answer("ledger", "verify") == {"valid": True, "problems": []}


# Tasks are no messages.


@pytest.mark.slow
def test_commands_about_messages_show_no_tasks(data: Path) -> None:
    fill(data, one_of_each)
    assert answer("messages", "list") == {"messages": [], "after": None}
    assert answer("messages", "dead") == {"messages": [], "after": None}
    assert dragoman("messages", "redrive", "--all").stderr == "there is nothing to redrive\n"
    assert dragoman("messages", "show", "1").stderr == "dragoman: there is no message 1\n"
    assert dragoman("messages", "redrive", str(answer("tasks", "show", "lost")["number"])).exit_code == 1
    counted = answer("ledger", "stats")
    assert (counted["byStatus"], counted["depths"]) == ({}, {})
    assert counted["tasks"] == {
        "cancelled": 1,
        "completed": 3,
        "failed": 1,
        "unknown": 1,
        "waiting": 2,
    }


@pytest.mark.slow
def test_a_purge_counts_and_deletes_tasks_that_have_ended_and_expired(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAGOMAN_AACP__MAX_DELAY_MS", "1000")

    async def work(process: Process) -> None:
        old = await process.runs.add(task("old", at=1.0, expires_at=2.0))
        old = await process.runs.change(Begin(old.number, 1.0))
        await process.runs.change(ended(old, result_of("1"), at=2.0))
        await process.runs.add(task("open", at=1.0, expires_at=2.0))

    fill(data, work)
    assert answer("messages", "purge", "--dry-run")["purged"] == 2  # The task, and its result.
    assert answer("messages", "purge")["purged"] == 2
    assert ids() == ["open"]


# Calls that become tasks.


@pytest.mark.slow
def test_a_call_is_stored_as_a_task_for_a_server_of_the_same_target_and_nothing_runs(data: Path) -> None:
    result = call("build", "name=a boat", "--task")
    assert result.exit_code == 0, result.stderr
    (task_id,) = result.stdout.splitlines()
    assert re.fullmatch("[0-9a-f]{48}", task_id)  # A hyphen at its beginning would make it an option.
    shown = answer("tasks", "show", task_id, "--target", "my_tools.py")
    assert (shown["status"], shown["arguments"], shown["attempts"]) == ("working", {"name": "a boat"}, 0)
    assert answer("ledger", "stats")["space"] == with_space(Config(), Source("my_tools.py")).storage.space
    assert answer("agents", "list") == []
    assert what_ran() == []


@pytest.mark.slow
def test_a_task_that_no_server_begins_runs_in_the_command_that_waits_for_it() -> None:
    left = call("build", "name=left", "--task").stdout.strip()
    result = call("build", "name=boat", "--task", "--wait")
    assert (result.exit_code, result.stdout) == (0, '"built boat"\n')
    assert result.stderr.startswith("task ")
    task_id = result.stderr.split()[1]
    assert answer("tasks", "show", task_id)["result"] == {"result": "built boat"}
    assert what_ran() == ["lifespan", "boat"]
    assert answer("tasks", "show", left)["attempts"] == 0
    assert answer("ledger", "verify")["valid"] is True


@pytest.mark.slow
@pytest.mark.parametrize("words", [("build", "name=boat"), ("blocks",), ("refuse", "how=tool")])
def test_a_command_that_waits_prints_what_a_plain_call_prints(words: tuple[str, ...]) -> None:
    plain, waited = call(*words), call(*words, "--task", "--wait")
    assert (waited.exit_code, waited.stdout) == (plain.exit_code, plain.stdout)
    assert [line for line in waited.stderr.splitlines() if not line.startswith("task ")] == plain.stderr.splitlines()


def test_a_task_that_fails_with_a_protocol_error_fails_the_command() -> None:
    result = call("refuse", "how=protocol", "--task", "--wait")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[1:] == ["dragoman: 1234: It broke", "  part: 7"]


def test_a_question_of_the_tool_is_reported_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_TIMEOUTS__INPUT_MS", "1000")
    result = call("ask", "--task", "--wait")
    task_id = result.stderr.split()[1]
    assert result.stderr.splitlines()[1:4] == [
        "dragoman: the tool asks: Which\\u001b[2J colour?",
        f"  answer with `dragoman tasks answer {task_id}`, or with any client of the same caller",
        f"  end the task with `dragoman tasks cancel {task_id}`",
    ]


@pytest.mark.slow
def test_the_same_key_is_the_same_task() -> None:
    first = call("build", "name=boat", "--task", "--idempotency-key", KEY)
    again = call("build", "name=boat", "--task", "--idempotency-key", KEY)
    assert (first.exit_code, again.stdout) == (0, first.stdout)
    other = call("build", "name=ship", "--task", "--idempotency-key", KEY)
    assert (other.exit_code, other.stdout) == (1, "")
    assert other.stderr.startswith("dragoman: INVALID_ARGUMENT: The idempotency key was used before")
    waited = call("build", "name=boat", "--task", "--wait", "--idempotency-key", KEY)
    assert waited.stdout == '"built boat"\n'
    assert call("build", "name=boat", "--task", "--wait", "--idempotency-key", KEY).stdout == '"built boat"\n'
    assert what_ran().count("boat") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pay", "amount=1"), "INVALID_ARGUMENT: Calls of pay do not become tasks"),
        (("build",), "INVALID_ARGUMENT: "),
        (("biuld", "name=boat"), "NOT_FOUND: Unknown tool: biuld; did you mean build?"),
    ],
)
def test_a_call_that_cannot_become_a_task_fails_and_stores_nothing(words: tuple[str, ...], said: str) -> None:
    call("build", "name=boat", "--task")
    result = call(*words, "--task")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"dragoman: {said}")
    assert len(ids()) == 1


@pytest.mark.slow
def test_no_more_tasks_are_stored_than_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_TASKS__MAX_WAITING", "2")
    codes = [call("build", f"name={number}", "--task").exit_code for number in range(3)]
    assert codes == [0, 0, 1]
    assert len(ids()) == 2


# Keys.


@pytest.mark.slow
def test_a_call_that_is_repeated_with_its_key_prints_the_first_result_and_runs_once() -> None:
    first = call("pay", "amount=3", "--idempotency-key", KEY)
    again = call("pay", "amount=3", "--idempotency-key", KEY)
    assert (first.exit_code, first.stdout, first.stderr) == (0, "3\n", "")
    assert (again.exit_code, again.stdout) == (0, "3\n")
    assert again.stderr == "This is the result of the first call with the key.\n"
    assert what_ran().count("paid 3") == 1
    other = call("pay", "amount=4", "--idempotency-key", KEY)
    assert (other.exit_code, other.stderr.splitlines()[0]) == (
        1,
        "dragoman: INVALID_ARGUMENT: The idempotency key was used before, with other arguments",
    )
    assert call("pay", "amount=4").stdout == "4\n"


def test_a_tool_that_only_reads_ignores_keys() -> None:
    for _ in range(2):
        assert call("look", "--idempotency-key", KEY).stdout == "1\n"
    assert what_ran().count("looked") == 2


# Usage.


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--wait",), "--wait needs --task"),
        (("--task", "--trace"), "--trace is about a call that runs here and now; it cannot be given with --task"),
        (("--task", "--timeout", "1"), "--timeout needs --wait, with --task"),
        (("--idempotency-key", "short"), "--idempotency-key must have 16 to 128 printable characters"),
        (("--task", "--idempotency-key", "k" * 129), "--idempotency-key must have 16 to 128 printable characters"),
        (("--idempotency-key", "with a line\nbreak in it"), "--idempotency-key must have 16 to 128"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: tuple[str, ...], said: str, data: Path) -> None:
    result = call("build", "name=boat", *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"dragoman: {said}")
    assert (what_ran(), data.exists()) == ([], False)


@pytest.mark.parametrize("options", [("--task",), ("--task", "--wait"), ("--idempotency-key", KEY)])
def test_an_engine_that_keeps_nothing_is_refused(options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_STORAGE__ENGINE", "memory")
    result = call("build", "name=boat", *options)
    assert (result.exit_code, what_ran()) == (2, [])
    assert result.stderr == "dragoman: storage.engine is memory: nothing that is stored outlives the command\n"


@pytest.mark.parametrize(
    ("options", "code"),
    # Agents of the target cannot even start.
    [(("--task",), 1), (("--task", "--wait"), 2), (("--idempotency-key", KEY), 2)],
)
def test_a_storage_that_cannot_be_used_fails_the_call_before_the_tool_runs(
    options: tuple[str, ...], code: int, data: Path
) -> None:
    data.write_text("no directory")
    result = call("build", "name=boat", *options)
    assert (result.exit_code, result.stdout) == (code, "")
    assert "File exists" in result.stderr
    assert "boat" not in what_ran()


# Answering.

FORM = {
    "type": "object",
    "properties": {"colour": {"type": "string", "enum": ["red", "blue"]}, "count": {"type": "integer"}},
    "required": ["colour"],
}
ROOTS: dict[str, Any] = {"method": "roots/list", "params": {}}


def form(message: str) -> dict[str, Any]:
    return {"method": "elicitation/create", "params": {"message": message, "requestedSchema": FORM}}


def while_asked(
    folder: Path, questions: list[dict[str, Any]], *commands: tuple[str, ...], typed: str = ""
) -> tuple[list[Result], list[Any]]:
    """What commands say while a task has open questions, and the answers that it has then."""

    async def ask(process: Process) -> tuple[list[Result], list[Any]]:
        asking = await begun(process, "asking")
        for place, question in enumerate(questions):
            asked = QuestionAsked(asking.number, asking.fence, time.time(), "q", place, msgspec.json.encode(question))
            await process.runs.change(asked)
        words = [("tasks", "answer", "asking", *command) for command in commands]
        said = [await asyncio.to_thread(runner.invoke, app, [*each], input=typed) for each in words]
        run = await process.runs.find(task_id="asking")
        assert run is not None
        return said, [None if each.answer is None else msgspec.json.decode(each.answer) for each in run.questions]

    return fill(folder, ask)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "content"),
    [
        (("colour=red",), {"colour": "red"}),
        (("colour=blue", "count=3"), {"colour": "blue", "count": 3}),
        (("--json", '{"colour": "red"}', "count=1"), {"colour": "red", "count": 1}),
    ],
)
def test_a_question_is_answered_with_fields_as_a_client_would(words: tuple[str, ...], content: Any, data: Path) -> None:
    (result,), answers = while_asked(data, [form("Which?")], words)
    assert (result.exit_code, result.stdout) == (0, "task asking has the answer\n")
    assert answers == [{"action": "accept", "content": content}]


@pytest.mark.slow
def test_every_open_question_is_declined_and_then_there_is_none(data: Path) -> None:
    (result, again), answers = while_asked(data, [form("Which?"), ROOTS], ("--decline",), ("colour=red",))
    assert (result.exit_code, result.stdout) == (0, "task asking has the refusal\n")
    assert answers == [{"action": "decline"}] * 2
    assert (again.exit_code, again.stderr) == (1, "dragoman: task asking is working, and asks nothing\n")


@pytest.mark.slow
def test_an_answer_that_does_not_fit_is_refused_and_not_stored(data: Path) -> None:
    said, answers = while_asked(
        data,
        [form("Which?")],
        ("colour=green",),
        ("count=many", "colour=red"),
        ("count=1",),
        ("color=red",),
        ("colour",),
        ("--json", "{"),
        ("--decline", "colour=red"),
        (),
        ("--question", "other", "colour=red"),
    )
    assert answers == [None]
    assert [result.exit_code for result in said] == [1, 1, 1, 1, 1, 2, 2, 2, 1]
    expected = [
        '  /colour: the value is not one of "red" or "blue"',
        '  /count: the value is not of type "integer"',
        "  colour is required",
        "  there is no field color; the form has colour, count",
        "  'colour' is not name=value",
        """dragoman: --json is not valid JSON: Input data was truncated. Write it as '{"name": "value"}'""",
        "dragoman: give fields or --decline, not both",
        "dragoman: give the fields as NAME=VALUE or with --json, or --decline; there is no terminal to ask on",
        "dragoman: task asking is input_required, and asks no question other",
    ]
    assert [result.stderr.splitlines()[-1] for result in said] == expected


@pytest.mark.slow
def test_one_of_several_questions_has_to_be_named_and_only_a_client_knows_its_roots(data: Path) -> None:
    said, answers = while_asked(
        data,
        [form("Which?"), ROOTS],
        ("colour=red",),
        ("--question", "question-2", "a=1"),
        ("--question", "question-1", "colour=red"),
    )
    assert [result.exit_code for result in said] == [2, 1, 0], [each.stderr for each in said]
    assert said[0].stderr == "dragoman: the task asks 2 questions; name one with --question: question-1, question-2\n"
    assert said[1].stderr.splitlines()[-1] == "  only an MCP client can answer roots/list; --decline refuses it"
    assert answers == [{"action": "accept", "content": {"colour": "red"}}, None]


@pytest.mark.slow
def test_a_person_at_the_terminal_is_asked_for_each_field_until_the_answer_fits(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.cli.task_answers.can_ask", lambda: True)
    (result,), answers = while_asked(data, [form("Which\x1b[2J?")], (), typed="green\n\nred\n2\n")
    assert result.exit_code == 0, result.stderr
    assert answers == [{"action": "accept", "content": {"colour": "red", "count": 2}}]
    assert result.stderr.startswith("Which\\u001b[2J?\n")
    for shown in (
        '  colour ("red" | "blue")',
        "  count (integer, optional)",
        '/colour: the value is not one of "red" or "blue"',
    ):
        assert shown in result.stderr
