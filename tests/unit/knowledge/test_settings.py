"""Settings of the embedder that do not fit together."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.app import configure
from dragoman.errors import ConfigError

SECRET = "must not have a user, a query or a fragment: it is logged, and a key has its own variable"
INSECURE = ("knowledge.embeddings_url", "must be a URL with https, or with http on this machine")


@pytest.mark.parametrize(
    ("settings", "problems"),
    [
        ({"embedder": "word2vec"}, [("knowledge.embedder", "must be one of none, minilm, openai")]),
        (
            {"embedder": "openai"},
            [
                ("knowledge.embeddings_url", "must be set, as embedder is openai"),
                ("knowledge.embeddings_model", "must be set, as embedder is openai"),
            ],
        ),
        ({"embeddings_url": "http://example.org/v1"}, [INSECURE]),
        ({"embeddings_url": "ftp://127.0.0.1/v1"}, [INSECURE]),
        ({"embeddings_url": "https://me:secret@example.org/v1"}, [("knowledge.embeddings_url", SECRET)]),
        (
            {"answers_url": "https://example.org/v1?key=secret", "answers_model": "small"},
            [("knowledge.answers_url", SECRET)],
        ),
    ],
)
def test_an_embedder_that_cannot_be_made_is_refused(settings: dict[str, Any], problems: list[tuple[str, str]]) -> None:
    with pytest.raises(ConfigError) as raised:
        configure({"knowledge": settings})
    assert list(raised.value.problems) == problems


@pytest.mark.parametrize("url", ["http://127.0.0.1:11434/v1", "https://api.example.org/v1"])
def test_an_embedder_may_be_on_this_machine_or_behind_tls(url: str) -> None:
    configure({"knowledge": {"embedder": "openai", "embeddings_url": url, "embeddings_model": "small"}})
