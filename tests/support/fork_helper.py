"""Import the command line and the runtime once, then fork a process for each request of `forking`.

A script, so that its `sys.path` is that of `python -P -m`. It has one thread and no event loop. In a child, `main` runs
the module as the interpreter would, and returns or raises: exit codes, tracebacks and flushing are the interpreter's.

The socket with the number given is sent, for each process, one byte with four descriptors: a socket, stdin, stdout and
stderr. The other end of that socket sends a JSON object to the child, and receives the process id, and at the end of
the process its exit code and processor time. The helper ends when the first socket is closed, and its children go on.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import struct
import sys
import time
from contextlib import suppress

STARTED, ENDED = struct.Struct("=i"), struct.Struct("=id")

_IMPORTED = (
    "apcore_mcp.server.serve",
    "dragoman.agents.aacp.endpoint",
    "dragoman.agents.coordinator",
    "dragoman.edge.http.app",
    "dragoman.edge.http.server",
    "dragoman.edge.sdk.sessions",
    "dragoman.explorer.part",
    "dragoman.gateway.deliveries_part",
    "dragoman.gateway.part",
    "dragoman.knowledge.part",
    "dragoman.knowledge_page.part",
    "dragoman.slo.part",
    "dragoman.telemetry.stderr",
    "dragoman.workers.parent",
    "uvloop",
)


def main() -> None:
    for name in (*_IMPORTED, *_modules_of("dragoman.cli"), *_modules_of("dragoman.adapters", "sqlite_")):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests and their servers.
    descriptors = _forked(socket.socket(fileno=int(sys.argv[1])))
    if descriptors:
        module = _take_place(*descriptors)
        runpy.run_module(module, run_name="__main__", alter_sys=True)


def _modules_of(package: str, beginning: str = "") -> list[str]:
    found = pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}.")
    return [each.name for each in found if each.name.startswith(f"{package}.{beginning}")]


def _forked(requests: socket.socket) -> list[int]:
    """Fork for each request. Returns its descriptors in the child, and none at the end of the helper."""
    children: dict[int, tuple[int, int]] = {}
    with requests, selectors.DefaultSelector() as waiting:  # A child leaves this block, too, and so closes them.
        waiting.register(requests, selectors.EVENT_READ)
        while True:
            for ready, _ in waiting.select():
                if ready.fileobj is not requests:
                    waiting.unregister(ready.fd)
                    _tell_end(*children.pop(ready.fd))
                    os.close(ready.fd)
                    continue
                data, descriptors, *_ = socket.recv_fds(requests, 1, 4)
                if not data:
                    return []
                child = os.fork()
                if child == 0:
                    return descriptors
                link, *streams = descriptors
                for each in streams:
                    os.close(each)
                with suppress(ConnectionError):
                    os.write(link, STARTED.pack(child))
                ending = os.pidfd_open(child)
                children[ending] = (child, link)
                waiting.register(ending, selectors.EVENT_READ)


def _tell_end(child: int, link: int) -> None:
    _, status, used = os.wait4(child, 0)
    with suppress(ConnectionError):
        os.write(link, ENDED.pack(os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime))
    os.close(link)


def _take_place(link: int, *streams: int) -> str:
    """Make this process the one that is asked for; returns the module to run."""
    with open(link, "rb") as request:
        asked = json.load(request)
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environ"])
    time.tzset()
    _, _, _, module, *arguments = sys.orig_argv = asked["command"]
    sys.argv = [module, *arguments]
    return str(module)


if __name__ == "__main__":
    main()
