"""How far the bytes on a TCP connection of this machine have come, as Linux tells for one connection."""

from __future__ import annotations

import socket
import struct
from functools import cache
from typing import Any, NamedTuple

_SOCK_DIAG, _BY_FAMILY, _REQUEST, _ERROR = 4, 20, 1, 2
_ANY_STATE, _ANY_COOKIE = 0xFFFF_FFFF, b"\xff" * 8
_HEADER = struct.Struct("=IHHII")
_QUEUES = struct.Struct("=4x48x4xII")  # After the header: state, addresses, expiry, and then the two.
_MOST_WAITING = struct.Struct("=28xI")  # `tcpi_sacked`, of a socket that listens.


class Ends(NamedTuple):
    """The two addresses of a connection, which it has lost when it is closed."""

    family: int
    here: tuple[Any, ...]
    there: tuple[Any, ...]


def ends_of(line: Any) -> Ends:
    return Ends(line.family, line.getsockname(), line.getpeername())


def is_read(ends: Ends) -> bool:
    """Whether the other end, on this machine, has read all that was sent at this end of a connection."""
    family, here, there = ends
    return _queued(family, here, there)[1] == _queued(family, there, here)[0] == 0


def is_quiet(ends: Ends) -> bool:
    """Whether nothing is on its way either way."""
    family, here, there = ends
    return is_read(ends) and is_read(Ends(family, there, here))


def most_waiting(listening: Any) -> int:
    """The connections that the kernel keeps for a listening socket until they are accepted."""
    most: int = _MOST_WAITING.unpack_from(listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256))[0]
    return most


def _queued(family: int, local: tuple[Any, ...], remote: tuple[Any, ...]) -> tuple[int, int]:
    """The bytes that one end has received and not read, and those that it has sent and the other has not received."""
    hosts = (socket.inet_pton(family, host).ljust(16, b"\0") for host in (local[0], remote[0]))
    ports = struct.pack("!HH", local[1], remote[1])
    body = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 0, _ANY_STATE)
    body += b"".join((ports, *hosts, bytes(4), _ANY_COOKIE))
    netlink = _netlink()
    netlink.send(_HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _REQUEST, 0, 0) + body)
    answer = netlink.recv(4096)
    if _HEADER.unpack_from(answer)[1] == _ERROR:  # That end is closed.
        return 0, 0
    receiving, sending = _QUEUES.unpack_from(answer, _HEADER.size)
    return receiving, sending


@cache
def _netlink() -> socket.socket:
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG)
