"""Which embedder the settings lead to, and what is said of one that cannot be used."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dragoman.adapters.embedders import ChosenEmbedders, examine_embedder
from dragoman.adapters.minilm_embedder import MODEL
from dragoman.adapters.model_files import MINILM
from dragoman.app import ServerOptions, configure, create_server
from dragoman.errors import ConfigError
from dragoman.extras import install_command
from dragoman.findings import Finding
from dragoman.knowledge.settings import KnowledgeConfig
from dragoman.testing import ManualClock

OPENAI = KnowledgeConfig(embedder="openai", embeddings_url="http://127.0.0.1:1/v1", embeddings_model="small")
WITH_KEY = KnowledgeConfig(
    embedder="openai",
    embeddings_url="http://127.0.0.1:1/v1",
    embeddings_model="small",
    embeddings_key_variable="THE_KEY",
)
MINILM_SET = KnowledgeConfig(embedder="minilm")


def pretend_installed(folder: Path) -> None:
    """Files of the right size, which take no space."""
    place = MINILM.place(folder)
    place.mkdir(parents=True)
    for name, file in MINILM.files.items():
        with (place / name).open("wb") as made:
            made.truncate(file.size)


def chosen(settings: KnowledgeConfig, folder: Path, **environ: str) -> ChosenEmbedders:
    return ChosenEmbedders(settings, folder, environ, ManualClock())


def test_there_is_no_embedder_unless_one_is_set(tmp_path: Path) -> None:
    embedders = chosen(KnowledgeConfig(), tmp_path)
    assert (embedders.make(), embedders.model) == (None, None)
    assert list(examine_embedder(KnowledgeConfig(), tmp_path, {})) == []


def test_the_settings_name_the_model(tmp_path: Path) -> None:
    pretend_installed(tmp_path)
    for settings, model in ((MINILM_SET, MODEL), (OPENAI, "openai/small")):
        embedder = chosen(settings, tmp_path).make()
        assert embedder is not None
        assert (embedder.model, chosen(settings, tmp_path).model) == (model, model)
        (finding,) = examine_embedder(settings, tmp_path, {})
        assert finding.verdict == "ok"


def test_the_model_from_before_is_found_as_long_as_it_can_be_had(tmp_path: Path) -> None:
    assert chosen(OPENAI, tmp_path).find(MODEL) is None
    pretend_installed(tmp_path)
    before = chosen(OPENAI, tmp_path).find(MODEL)
    assert before is not None
    assert before.model == MODEL
    larger = chosen(OPENAI, tmp_path).find("openai/large")
    assert larger is not None
    assert larger.model == "openai/large"
    assert chosen(MINILM_SET, tmp_path).find("openai/large") is None
    assert chosen(WITH_KEY, tmp_path).find("openai/large") is None
    assert chosen(OPENAI, tmp_path).find("something else") is None


@pytest.mark.parametrize("key", [None, "", " ", "kéy", "a\nb"])
def test_a_key_that_cannot_be_sent_is_named_by_its_variable(tmp_path: Path, key: str | None) -> None:
    environ = {} if key is None else {"THE_KEY": key}
    with pytest.raises(ConfigError) as raised:
        chosen(WITH_KEY, tmp_path, **environ).make()
    said = "THE_KEY holds no key; set it in the environment of the server"
    assert raised.value.problems == (("knowledge.embeddings_key_variable", said),)
    assert chosen(WITH_KEY, tmp_path, THE_KEY="sk-1\n").make() is not None


def test_a_model_without_its_files_is_said_with_what_to_do(tmp_path: Path) -> None:
    pretend_installed(tmp_path)
    (MINILM.place(tmp_path) / "vocab.txt").write_bytes(b"cut off")
    message, advice = f"the model minilm is not installed in {tmp_path}/models/minilm", "dragoman models install minilm"
    assert list(examine_embedder(MINILM_SET, tmp_path, {})) == [
        Finding("embedder", "problem", message, f"Run `{advice}`.")
    ]
    with pytest.raises(ConfigError) as raised:
        chosen(MINILM_SET, tmp_path).make()
    assert raised.value.problems == (("knowledge.embedder", f"{message}; run `{advice}`"),)


def test_numpy_that_is_missing_is_said_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_installed(tmp_path)
    monkeypatch.setitem(sys.modules, "numpy", None)
    (finding,) = examine_embedder(MINILM_SET, tmp_path, {})
    assert finding == Finding("embedder", "problem", "minilm needs NumPy", f"Run `{install_command('knowledge')}`.")


def test_a_server_without_the_model_that_is_set_does_not_start(tmp_path: Path) -> None:
    settings = {
        "gateway": {"enabled": True},
        "knowledge": {"embedder": "minilm"},
        "storage": {"data_dir": str(tmp_path)},
    }
    with pytest.raises(ConfigError, match="run `dragoman models install minilm`"):
        create_server(ServerOptions(config=configure(settings)))
