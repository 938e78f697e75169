"""A raw client of the tasks extension, over stdio and over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal

from dragoman.access.callers import LOCAL, Caller
from dragoman.protocol.versions import CAPABILITIES_KEY, TASKS_EXTENSION
from dragoman.testing.connection import ENVELOPE, MemoryClient
from tests.support.http_serving import BOTH, Reply, Serving, message, request

TASKS: Mapping[str, Any] = {"extensions": {TASKS_EXTENSION: {}}}
"""The capabilities of a client that takes tasks."""
ABLE: Mapping[str, Any] = {**TASKS, "elicitation": {"form": {}}, "sampling": {}, "roots": {}}
"""The same, of one that can be asked anything."""
ENDED = frozenset({"completed", "failed", "cancelled"})
TOKENS = {"ada": "adas-token-0123456789", "ben": "bens-token-0123456789"}
AUTH = {"auth": {"callers": {name: {"token": token} for name, token in TOKENS.items()}}}
"""Settings that tell Ada from Ben over HTTP."""

Transport = Literal["stdio", "http"]


class TaskPeer:
    """A client of a server in this process, which says with every request what it can do."""

    def __init__(
        self,
        server: Serving,
        transport: Transport,
        name: str | None = None,
        *,
        scopes: Iterable[str] | None = None,
        capabilities: Mapping[str, Any] = ABLE,
    ) -> None:
        """`scopes` are those over stdio; over HTTP the settings have them."""
        self.server = server
        self._name = name
        self.capabilities = capabilities
        self.memory: MemoryClient | None = None
        if transport == "stdio":
            granted = None if scopes is None else frozenset(scopes)
            caller = LOCAL if name is None else Caller(name, scopes=granted)
            self.memory = MemoryClient(server.runtime, modern=True, caller=caller)

    async def begin(self, method: str, params: Mapping[str, Any], **headers: str) -> int | str | Reply:
        """Send a request, and do not wait for its answer. Over HTTP, `headers` are added to those that it needs."""
        meta = {**ENVELOPE, CAPABILITIES_KEY: self.capabilities, **params.get("_meta", {})}
        params = {**params, "_meta": meta}
        if self.memory is not None:
            return self.memory.begin(method, params)
        named = {"Mcp-Name": params["name"]} if method == "tools/call" else {}
        token = {} if self._name is None else {"Authorization": f"Bearer {TOKENS[self._name]}"}
        standing = {"Content-Type": "application/json", "Accept": BOTH, "MCP-Protocol-Version": "2026-07-28"}
        standing |= {"Mcp-Method": method, **named, **token, **headers}
        return await request(self.server.port, "POST", standing, message(method, params, 1))

    async def ask(self, method: str, params: Mapping[str, Any], **headers: str) -> dict[str, Any]:
        """The answer to a request."""
        begun = await self.begin(method, params, **headers)
        if isinstance(begun, Reply):
            return await (await begun.begin()).answer()
        assert self.memory is not None
        return await self.memory.answer(begun)

    async def result(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a request that must have one."""
        answer = await self.ask(method, params)
        assert "result" in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    async def error(self, method: str, **params: Any) -> dict[str, Any]:
        """The error of a request that must have one, without its correlation id."""
        answer = await self.ask(method, params)
        assert "error" in answer, answer
        error: dict[str, Any] = answer["error"]
        error.get("data", {}).pop("correlationId", None)
        return error

    async def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        """The result of a call."""
        return await self.result("tools/call", name=name, arguments=arguments)

    async def create(self, name: str, **arguments: Any) -> str:
        """The id of the task that a call must become."""
        created = await self.call(name, **arguments)
        assert created["resultType"] == "task", created
        task_id: str = created["taskId"]
        return task_id

    async def get(self, task_id: str) -> dict[str, Any]:
        return await self.result("tasks/get", taskId=task_id)

    async def update(self, task_id: str, responses: Mapping[str, Any]) -> dict[str, Any]:
        return await self.result("tasks/update", taskId=task_id, inputResponses=responses)

    async def cancel(self, task_id: str) -> dict[str, Any]:
        return await self.result("tasks/cancel", taskId=task_id)

    async def when(self, task_id: str, is_so: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """A task, as soon as the condition holds for it."""
        while not is_so(task := await self.get(task_id)):  # noqa: ASYNC110 - clients poll
            await asyncio.sleep(0.005)
        return task

    async def until(self, task_id: str, statuses: Collection[str] = ENDED) -> dict[str, Any]:
        """A task, as soon as its status is one of these."""
        return await self.when(task_id, lambda task: task["status"] in statuses)

    async def questions(self, task_id: str, count: int = 1) -> dict[str, Any]:
        """What a task asks, once it asks so much."""
        asking = await self.when(task_id, lambda task: len(task.get("inputRequests", ())) >= count)
        return dict(asking["inputRequests"])

    async def ended(self, name: str, **arguments: Any) -> dict[str, Any]:
        """What the task of a call has come to."""
        return await self.until(await self.create(name, **arguments))


def filled_in(**content: Any) -> dict[str, Any]:
    """The answer of a person who has filled in a form."""
    return {"action": "accept", "content": content}
