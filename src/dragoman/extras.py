"""How to install an extra of Dragoman, from wherever Dragoman itself was installed."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote, urlsplit

_NAME = "dragoman"


def install_command(extra: str) -> str:
    """The command that adds the packages of an extra, for a shell."""
    from importlib import metadata  # Dear, and hardly ever wanted.

    try:
        origin = json.loads(metadata.distribution(_NAME).read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        origin = {}
    return f"pip install {_wanted(origin, extra)}"


def _wanted(origin: Any, extra: str) -> str:
    """The argument for pip. `origin` is the content of pip's `direct_url.json`, empty for a package from an index."""
    match origin:
        case {"url": str(url), "dir_info": {**info}}:
            return f"{'-e ' if info.get('editable') else ''}'{unquote(urlsplit(url).path)}[{extra}]'"
        case {"url": str(url), "vcs_info": {"vcs": str(vcs)}}:
            return f"'{_NAME}[{extra}] @ {vcs}+{url}'"
        case {"url": str(url)}:
            return f"'{_NAME}[{extra}] @ {url}'"
    return f"'{_NAME}[{extra}]'"
