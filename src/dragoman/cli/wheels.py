"""Wheels from the package index that pip is set up for, downloaded so that an interruption costs nothing.

1. Only pip's settings say which index is used, so pip is asked for them; its own downloads start anew each time.
2. Errors name a host, and never a whole URL: those of an index may have credentials in them.
"""

from __future__ import annotations

import re
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urljoin, urlsplit
from urllib.request import url2pathname

if TYPE_CHECKING:
    import httpx2

_PIP_SECONDS = 60
_SILENT_SECONDS = 60.0
_MOST_PAGE_BYTES = 32 << 20
_SETTING = re.compile(r"^(global|install|download|:env:)\.([\w-]+)='(.*)'$", re.MULTILINE)
_DEFAULT = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
_PLACES = ("global", "install", "download", ":env:")
"""Where pip's settings are; what is later in the list wins."""


class DownloadFailed(Exception):
    """A wheel cannot be had now. The text is for the user."""


class PackageIndex:
    """The indexes and folders that pip would look into."""

    def __init__(self) -> None:
        """Ask pip. Raises `DownloadFailed` if there is none."""
        found = _SETTING.findall(_run("-m", "pip", "--disable-pip-version-check", "config", "list"))
        found.sort(key=lambda each: _PLACES.index(each[0]))
        settings: Mapping[str, str] = {name: value for _, name, value in found}
        first = settings.get("index-url") or _run("-c", _DEFAULT).strip()
        others = settings.get("extra-index-url", "").replace("\\n", " ").split()
        self._indexes = [first, *others] if "no-index" not in settings else []
        self._folders = settings.get("find-links", "").replace("\\n", " ").split()
        self._certificates = settings.get("cert")

    def find(self, project: str, file_name: str) -> str | Path:
        """The path or the URL of a file of a project. Raises `DownloadFailed`."""
        folders = [*self._folders, *(f"{url.rstrip('/')}/{project}" for url in self._indexes if _is_file(url))]
        for folder in map(_as_path, folders):
            if (folder / file_name).is_file():
                return folder / file_name
        failures = [f"no index of pip has {file_name}"]
        for index in self._indexes:
            if not _is_file(index):
                try:
                    url = self._find_in(f"{index.rstrip('/')}/{project}/", file_name)
                except DownloadFailed as error:
                    failures.append(str(error))
                else:
                    if url is not None:
                        return url
        raise DownloadFailed("; ".join(failures))

    def _find_in(self, page: str, file_name: str) -> str | None:
        with self.opened(page, {"accept": "text/html"}) as response:
            if response.status_code != 200:
                return None
            content = b""
            for chunk in response.iter_bytes():
                content += chunk
                if len(content) > _MOST_PAGE_BYTES:
                    raise DownloadFailed(f"the list of {urlsplit(page).hostname} is too long")
        link = re.search(rf"""href=["']([^"'#]*{re.escape(file_name)})["'#]""", content.decode(errors="replace"))
        if link is None:
            return None
        index, file = urlsplit(page), urlsplit(urljoin(page, unescape(link[1])))
        is_same = _origin(index) == _origin(file)  # Credentials of an index are for nobody else.
        return file._replace(netloc=index.netloc).geturl() if is_same else file.geturl()

    @contextmanager
    def opened(self, url: str, headers: Mapping[str, str]) -> Iterator[httpx2.Response]:
        """A response to be read. Raises `DownloadFailed`, also for what happens while it is read."""
        import httpx2

        host = urlsplit(url).hostname
        try:
            verify = True if self._certificates is None else ssl.create_default_context(cafile=self._certificates)
            with (
                httpx2.Client(verify=verify, timeout=_SILENT_SECONDS, follow_redirects=True) as client,
                client.stream("GET", url, headers=headers) as response,
            ):
                if response.status_code not in (200, 206, 404, 416):
                    raise DownloadFailed(f"{host} answered with status {response.status_code}")
                yield response
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            if isinstance(error, OSError) and not isinstance(error, ssl.SSLError | FileNotFoundError):
                raise
            raise DownloadFailed(f"the connection with {host} failed: {type(error).__name__}") from error

    def download(self, url: str, target: Path, most: int, begin: Callable[[int, int], Callable[[int], None]]) -> None:
        """Write a file to `target`, or the rest of it, if an earlier attempt has written its beginning there.

        `begin` is called with the bytes in all and those that are there already; what it returns, with how many more
        there are. Raises `DownloadFailed`, for more than `most` bytes too, and `OSError`.
        """
        kept = target.stat().st_size if target.exists() else 0
        # Not compressed: the places of bytes are counted.
        headers = {"accept-encoding": "identity", **({"range": f"bytes={kept}-"} if kept else {})}
        with self.opened(url, headers) as response:
            if response.status_code == 416:
                return  # There are no more bytes. Whether these are the right ones, their hash says.
            if response.status_code == 404:
                raise DownloadFailed(f"{urlsplit(url).hostname} has no such file")
            is_rest = response.status_code == 206
            kept = kept if is_rest else 0
            advance = begin(kept + int(response.headers.get("content-length", 0)), kept)
            with target.open("ab" if is_rest else "wb") as file:
                for chunk in response.iter_raw():
                    kept += len(chunk)
                    if kept > most:
                        raise DownloadFailed(f"the file has more than {most} bytes")
                    file.write(chunk)
                    advance(len(chunk))


def _origin(url: SplitResult) -> tuple[str, str | None, int | None]:
    return url.scheme, url.hostname, url.port


def _is_file(url: str) -> bool:
    return urlsplit(url).scheme not in ("http", "https")


def _as_path(folder: str) -> Path:
    parts = urlsplit(folder)
    return Path(url2pathname(parts.path)) if parts.scheme == "file" else Path(folder).expanduser()


def _run(*arguments: str) -> str:
    """What this Python prints."""
    command = [sys.executable, *arguments]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PIP_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DownloadFailed(f"pip cannot be run: {type(error).__name__}") from error
    if done.returncode != 0:
        raise DownloadFailed(f"pip cannot be asked for its index: is it installed for {sys.executable}?")
    return done.stdout.decode(errors="replace")
