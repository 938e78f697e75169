"""Documents of the web and of the disk, small and soon, or not at all."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from dragoman.access.settings import is_secure_url
from dragoman.errors import VerifierUnavailable

MOST_BYTES = 262_144


@dataclass(frozen=True)
class WebDocuments:
    """Gets what a URL leads to, without following it elsewhere; a location that is no URL is a file."""

    timeout: float = 5.0
    """Seconds for all of a document."""

    async def get(self, location: str) -> bytes:
        if "://" not in location:
            return _read(location)
        if not is_secure_url(location):
            raise VerifierUnavailable(f"{location} is neither https nor on this machine")
        import httpx2  # Most servers never need it.

        try:
            async with asyncio.timeout(self.timeout):
                return await _fetch(location)
        except TimeoutError:
            raise VerifierUnavailable(f"{location} did not answer within {self.timeout:g} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise VerifierUnavailable(f"{location} cannot be fetched: {type(error).__name__}") from error


async def _fetch(url: str) -> bytes:
    import httpx2

    # Proxies are for what is elsewhere. Without TLS there is no certificate to verify; loading those of the authorities
    # would block the event loop, for longer than a short timeout on a busy machine.
    is_local = url.startswith("http:")
    # Not compressed: a small document could unpack to a huge one.
    headers = {"accept": "application/json", "accept-encoding": "identity"}
    async with (
        httpx2.AsyncClient(timeout=None, trust_env=not is_local, verify=not is_local) as client,
        client.stream("GET", url, headers=headers) as response,
    ):
        if response.status_code != 200:
            raise VerifierUnavailable(f"{url} answered with status {response.status_code}")
        content = b""
        async for chunk in response.aiter_raw():
            content += chunk
            if len(content) > MOST_BYTES:
                raise VerifierUnavailable(f"{url} holds more than {MOST_BYTES} bytes")
    return content


def _read(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise VerifierUnavailable(f"{path} cannot be read: {type(error).__name__}") from error
    if len(content) > MOST_BYTES:
        raise VerifierUnavailable(f"{path} holds more than {MOST_BYTES} bytes")
    return content
