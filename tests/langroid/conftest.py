"""These tests need Langroid, and are collected only where it is installed: `make test-langroid`."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

collect_ignore_glob = [] if find_spec("langroid") else ["test_*.py"]

# Importing Langroid reads the tables of a tokenizer, which would be downloaded. LiteLLM's wheel contains them.
if (litellm := find_spec("litellm")) and litellm.origin:
    os.environ["TIKTOKEN_CACHE_DIR"] = str(Path(litellm.origin).parent / "litellm_core_utils" / "tokenizers")


@pytest.fixture(autouse=True)
def _away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Langroid's tasks write logs to the working directory."""
    monkeypatch.chdir(tmp_path)
