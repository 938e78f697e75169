"""What a server that is served over HTTP prints when it starts: where to look, and what clients need."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any


def show_pages(root: str, pages: Sequence[str], endpoint: str, name: str, secret: str | None = None) -> None:
    """Where to look, if there are pages, and what to paste. Clients that bring the `secret` are the owner's.

    On stdout, not in the log: the address of a page may let whoever has it run tools, and read documents. The secret
    is printed on a terminal only: a file or a service's journal would keep it.
    """
    if not pages:
        return
    shown = secret if sys.stdout.isatty() else None
    client: dict[str, Any] = {"url": root + endpoint}
    if shown is not None:
        client["headers"] = {"Authorization": f"Bearer {shown}"}
    entry = json.dumps({"mcpServers": {name: client}})
    addresses = "".join(f"\n  Open   {root}{_with_secret(page, shown)}\n" for page in pages)
    hint = "\n  run `dragoman keys local` for the secret\n" if shown != secret else ""
    sys.stdout.write(f"{addresses}{hint}\n  or paste into a client's configuration\n\n  {entry}\n\n")
    sys.stdout.flush()


def _with_secret(page: str, secret: str | None) -> str:
    """The address of a page with the secret behind the `#`, which browsers send to no server."""
    if secret is None:
        return page
    return f"{page}{'&' if '#' in page else '#'}local={secret}"
