"""What an address to listen on, or to be reached by, means."""

from __future__ import annotations

from ipaddress import ip_address


def is_address(name: str) -> bool:
    """Whether this is an address, and no name that would have to be looked up."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to the address."""
    return host == "localhost" or (is_address(host) and ip_address(host).is_loopback)
