"""Sockets to listen on."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.errors import ConfigError
from dragoman.process.address import is_loopback

if TYPE_CHECKING:
    from dragoman.access.settings import AuthConfig
    from dragoman.edge.settings import HttpConfig

BACKLOG = 2048
"""Connections that wait to be accepted. Whatever listens on a socket must name it: a second `listen` replaces it."""
_LOOK = 1.0
"""Seconds to find out whether somebody listens on a socket file."""


def open_listening(http: HttpConfig) -> socket.socket:
    """The socket that the settings name. Raises as `bind` and `bind_file` do."""
    return bind(http.host, http.port) if http.uds is None else bind_file(Path(http.uds))


def bind(host: str, port: int, *, shared: bool = False, listens: bool = True) -> socket.socket:
    """A listening socket. Raises `ValueError` for a port that there is not, and `OSError` for one that is taken.

    A `shared` address is open to other processes of this user, and the kernel deals connections out to all of them. A
    socket that does not listen only keeps the address.
    """
    if not 0 <= port <= 65_535:
        raise ValueError(f"port must be between 0 and 65535, not {port}")
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
        listening.bind(address)
        if listens:
            listening.listen(BACKLOG)  # At once: until somebody listens, others may bind to the address as well.
    except BaseException:
        listening.close()
        raise
    return listening


def bind_file(path: Path) -> socket.socket:
    """A listening Unix socket, for the user and the group that the process has. Raises `OSError` for a path that is
    taken; a socket file that nobody listens on any more is replaced."""
    listening = socket.socket(socket.AF_UNIX)
    try:
        if _is_left_behind(path):
            path.unlink()
        listening.bind(str(path))
        path.chmod(0o660)
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def _is_left_behind(path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError), socket.socket(socket.AF_UNIX) as looking:
        if stat.S_ISSOCK(path.lstat().st_mode):
            looking.settimeout(_LOOK)
            try:
                looking.connect(str(path))
            except ConnectionRefusedError:
                return True
    return False


@contextlib.contextmanager
def removed_at_the_end(listening: socket.socket) -> Iterator[None]:
    """Take away the file of a Unix socket when the block ends, if it is still the same one."""
    if listening.family != socket.AF_UNIX:
        yield
        return
    path = Path(listening.getsockname())
    was = path.lstat()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if os.path.samestat(was, path.lstat()):
                path.unlink()


def accept_all(listening: socket.socket) -> list[socket.socket]:
    """The connections that wait to be accepted at a socket that does not block."""
    accepted: list[socket.socket] = []
    with contextlib.suppress(OSError):  # There are no more.
        while len(accepted) < BACKLOG:
            accepted.append(listening.accept()[0])
            accepted[-1].setblocking(False)
    return accepted


def raise_file_limit() -> None:
    """Let the process open as many files as it may: each connection is one."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def check_address(http: HttpConfig, auth: AuthConfig) -> None:
    """Raise `ConfigError` for an address that others can reach while anybody may call."""
    is_near = http.uds is not None or is_loopback(http.host)
    if not (is_near or auth.allow_unauthenticated or auth.callers or auth.takes_jwts):
        reason = f"{http.host} can be reached from other machines, and nobody is authenticated"
        raise ConfigError([("http.host", f"{reason}; set up auth, or say --allow-unauthenticated")])


def is_near(http: HttpConfig) -> bool:
    """Whether only this machine can call. With names of its own, or proxies, callers may be anywhere."""
    is_proxied = http.uds is not None or http.allowed_hosts or http.trusted_proxies
    return is_loopback(http.host) and not is_proxied


def root_of(http: HttpConfig, listening: socket.socket) -> str:
    """The address that clients use, without a path."""
    if http.uds is not None:
        return f"unix:{http.uds}:"
    host = f"[{http.host}]" if ":" in http.host else http.host
    return f"http://{host}:{listening.getsockname()[1]}"
