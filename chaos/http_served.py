"""Servers over HTTP, and requests to them, each on a connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

import msgspec

from bench.http_load import Answer, is_whole
from bench.process import BenchError
from chaos.servers import Gone, Place, Served
from tests.support.http_wire import modern
from tests.support.processes import free_port

_MOST_ANSWER = 1 << 22


class HttpServed(Served):
    """A server that listens on a free port."""

    port: int

    @classmethod
    async def start(cls, place: Place, *arguments: str) -> Self:
        port = free_port()
        place = replace(place, settings={**place.settings, "http.port": port})
        served = await cls._started(place, arguments, ("--transport", "streamable-http"))
        served.port = port
        return served

    async def ask(self, method: str, params: Mapping[str, Any], meta: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request, which may be an error; `Gone` if the server ends first or does not listen."""
        named = {"mcp-name": params["taskId"]} if "taskId" in params else {}
        data = modern(method, params, {"connection": "close", **named}, meta=meta)
        told: dict[str, Any] = msgspec.json.decode((await self.exchange(data)).message)
        return told

    async def exchange(self, data: bytes) -> Answer:
        """The answer to the bytes of a request that is the last one of its connection; raises `Gone` as `ask` does."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=_MOST_ANSWER)
            try:
                writer.write(data)
                found = await reader.read()
            finally:
                writer.close()
            if not is_whole(found):
                raise Gone
        except (OSError, BenchError):
            raise Gone from None
        answer = Answer.read(found)
        self.has_begun.set()
        return answer

    def _hear(self, line: bytes) -> None:
        """It tells people where its pages are."""
