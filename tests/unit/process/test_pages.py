"""What a server prints about its pages: the owner's secret on a terminal, and nowhere else."""

from __future__ import annotations

import io
import os
from contextlib import redirect_stdout

import pytest

from dragoman.process.pages import show_pages

SECRET = "s" * 43
HINT = "run `dragoman keys local` for the secret"


def printed(file: io.TextIOBase, secret: str | None) -> None:
    with redirect_stdout(file):
        show_pages("http://127.0.0.1:8000", ["/explorer/#token=t", "/knowledge/"], "/mcp", "docs", secret)


@pytest.mark.skipif(os.name != "posix", reason="Windows has no such terminals")
def test_a_terminal_is_shown_links_and_a_configuration_with_the_secret() -> None:
    ours, theirs = os.openpty()
    with open(theirs, "w") as terminal, open(ours, "rb", buffering=0) as screen:
        printed(terminal, SECRET)
        shown = screen.read(4096).decode()
    assert f"/explorer/#token=t&local={SECRET}\r\n" in shown
    assert f"/knowledge/#local={SECRET}\r\n" in shown
    assert f'"headers": {{"Authorization": "Bearer {SECRET}"}}' in shown
    assert HINT not in shown


def test_a_file_or_a_journal_never_has_the_secret_and_is_told_how_to_get_it() -> None:
    file = io.StringIO()
    printed(file, SECRET)
    assert SECRET not in file.getvalue()
    assert "  Open   http://127.0.0.1:8000/knowledge/\n" in file.getvalue()
    assert file.getvalue().count(HINT) == 1
    without = io.StringIO()
    printed(without, None)
    assert HINT not in without.getvalue()
