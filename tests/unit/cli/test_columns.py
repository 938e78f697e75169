"""Columns of a terminal."""

from __future__ import annotations

import pytest

from dragoman.cli.output import print_columns


def test_columns_line_up_whatever_the_letters_are(capsys: pytest.CaptureFixture[str]) -> None:
    print_columns([("TITLE", "N"), ("会議室", "1"), ("e\u0301te\u0301", "2"), ("Zoë", "3")])
    assert capsys.readouterr().out.splitlines() == ["TITLE   N", "会議室  1", "e\u0301te\u0301     2", "Zoë     3"]
