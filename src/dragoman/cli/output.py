"""What the commands say, and where: answers on stdout, everything else on stderr.

Exit codes: 0 it went well, 1 what was asked for failed, 2 it could not be tried (usage, settings, target), 3 calls were
abandoned, 130 a call was interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any, NoReturn
from unicodedata import combining, east_asian_width

import msgspec
import typer

from dragoman.process.exit_codes import UNUSABLE
from dragoman.tools.content import encode_json


def refuse(*lines: str, code: int = UNUSABLE) -> NoReturn:
    """Say why on stderr, the particulars indented, and end the command."""
    complain(*lines)
    raise typer.Exit(code)


def complain(*lines: str) -> None:
    """Say something on stderr, the particulars indented."""
    for line in lines:
        typer.echo(f"dragoman: {line}" if line is lines[0] else f"  {line}", err=True)


def print_json(value: Any, *, indented: bool | None = None) -> None:
    """JSON for a person on a terminal, and on one line for a program."""
    print_encoded(encode_json(value), indented=indented)


def print_encoded(encoded: bytes, *, indented: bool | None = None) -> None:
    """As `print_json`, for what is JSON already."""
    if sys.stdout.isatty() if indented is None else indented:
        encoded = msgspec.json.format(encoded, indent=2)
    typer.echo(encoded)


def print_columns(rows: Iterable[Sequence[str]], *, dim_last: bool = False) -> None:
    """Rows in columns that line up; the last column has no width."""
    rows = list(rows)
    widths = [max(map(_width, column)) for column in zip(*(row[:-1] for row in rows), strict=True)]
    for row in rows:
        start = "".join(cell + " " * (width - _width(cell) + 2) for cell, width in zip(row, widths, strict=False))
        typer.echo(start + (typer.style(row[-1], dim=True) if dim_last else row[-1]))


def _width(text: str) -> int:
    """How many columns of a terminal a text takes: two for a Chinese character, none for an accent by itself."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(each) else 2 if east_asian_width(each) in "WF" else 1 for each in text)


@contextmanager
def kept_for_answers() -> Iterator[None]:
    """Whatever tools write to stdout, by whatever means, goes to stderr: stdout is for the answer."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
