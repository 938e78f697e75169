"""The example of `docs/langroid.md` runs as it stands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from langroid.utils.configuration import settings

PAGE = Path(__file__).parents[2] / "docs" / "langroid.md"


@pytest.fixture(autouse=True)
def _settings() -> Iterator[None]:
    """The page changes one, for the whole process."""
    was = settings.quiet
    yield
    settings.quiet = was


def test_the_pages_file_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    text = PAGE.read_text("utf-8")
    (name, code), *_ = re.findall(r"```python file=(\S+)\n(.*?)```", text, re.DOTALL)
    shown = dict(re.findall(r"```console\n\$ python (\S+)\n(.*?)```", text, re.DOTALL))
    exec(compile(code, name, "exec"), {"__name__": "__main__"})  # Another process would import Langroid again.
    assert capsys.readouterr().out == shown[name]
