"""A real nginx in front of a server on this machine."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.processes import free_port
from tests.support.waiting import wait_until

_CONFIG = """
pid {folder}/nginx.pid;
master_process off;
daemon off;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/bodies;
    proxy_temp_path {folder}/answers;
    fastcgi_temp_path {folder}/unused;
    uwsgi_temp_path {folder}/unused;
    scgi_temp_path {folder}/unused;
{servers}
}}
"""
_SERVER = "    server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://127.0.0.1:{upstream}; {more} }} }}"


def find_nginx() -> str:
    """The program; without it, the test is skipped."""
    found = shutil.which("nginx") or shutil.which("nginx", path=str(Path(sys.prefix) / "bin"))
    if found is None:
        pytest.skip("there is no nginx: make nginx")
    return found


@contextmanager
def nginx(folder: Path, upstream: int, locations: Mapping[str, str]) -> Iterator[dict[str, int]]:
    """Ports by the names of `locations`, which hold what nginx is told besides `proxy_pass` to the port `upstream`."""
    program, ports = find_nginx(), {name: free_port() for name in locations}
    servers = (_SERVER.format(port=ports[name], upstream=upstream, more=more) for name, more in locations.items())
    config = folder / "nginx.conf"
    config.write_text(_CONFIG.format(folder=folder, servers="\n".join(servers)))
    with subprocess.Popen([program, "-p", str(folder), "-c", str(config), "-e", "stderr"]) as running:
        try:
            wait_until(lambda: running.poll() is not None or all(map(_listens, ports.values())))
            assert running.returncode is None, "nginx ended"
            yield ports
        finally:
            running.terminate()


def _listens(port: int) -> bool:
    with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False
