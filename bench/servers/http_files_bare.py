"""The limit of artifacts: `http_files_bare.py FOLDER PORT`. One handler that does what cannot be left out.

PUT hashes the body while it is written to a file, which is synced and renamed to its hash; GET reads a file. Files are
written and read on threads. There are no signatures, types, quotas and links.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import uuid
from pathlib import Path
from typing import Any

_PIECE = 262_144


class Handler:
    """An ASGI application."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] == "PUT":
            name = await self._keep(receive)
            await _start(send, 201, len(name))
            await send({"type": "http.response.body", "body": name})
        else:
            await self._show(scope["path"].rpartition("/")[2], send)

    async def _keep(self, receive: Any) -> bytes:
        draft, digest, more = self._folder / uuid.uuid4().hex, hashlib.sha256(), True
        with await asyncio.to_thread(draft.open, "wb") as file:
            while more:
                held: list[bytes] = []
                while more and sum(map(len, held)) < _PIECE:
                    message = await receive()
                    held.append(message.get("body", b""))
                    more = message.get("more_body", False)
                await asyncio.to_thread(_write, file, digest, held)
            await asyncio.to_thread(os.fsync, file.fileno())
        os.replace(draft, self._folder / digest.hexdigest())
        return digest.hexdigest().encode()

    async def _show(self, name: str, send: Any) -> None:
        with await asyncio.to_thread((self._folder / name).open, "rb") as file:
            await _start(send, 200, os.fstat(file.fileno()).st_size)
            while piece := await asyncio.to_thread(file.read, _PIECE):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _write(file: Any, digest: Any, pieces: list[bytes]) -> None:
    for piece in pieces:
        digest.update(piece)
        file.write(piece)
    file.flush()


async def _start(send: Any, status: int, length: int) -> None:
    headers = [(b"content-type", b"application/octet-stream"), (b"content-length", b"%d" % length)]
    await send({"type": "http.response.start", "status": status, "headers": headers})


if __name__ == "__main__":
    from serving import serve

    serve(Handler(Path(sys.argv[1])))
