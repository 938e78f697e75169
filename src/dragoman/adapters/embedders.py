"""The embedder that `knowledge.embedder` names; without one, no library for it is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from dragoman.adapters.minilm_embedder import MODEL, MiniLmEmbedder
from dragoman.adapters.model_files import MINILM
from dragoman.adapters.openai_embedder import PREFIX, OpenAiEmbedder
from dragoman.clock import Clock
from dragoman.errors import ConfigError
from dragoman.extras import install_command
from dragoman.findings import Finding
from dragoman.knowledge.embedding import Embedder
from dragoman.knowledge.settings import KnowledgeConfig

_CHECK: Final = "embedder"


class _Problem(NamedTuple):
    setting: str
    message: str
    advice: str


@dataclass(frozen=True)
class ChosenEmbedders:
    """Implements `Embedders`. Models are in the data directory `folder`.

    Nothing is loaded or sent before the first text is embedded.
    """

    settings: KnowledgeConfig
    folder: Path
    environ: Mapping[str, str]
    clock: Clock

    def make(self, *, is_patient: bool = False) -> Embedder | None:
        problem = _problem(self.settings, self.folder, self.environ)
        if problem is not None:
            raise ConfigError([(f"knowledge.{problem.setting}", f"{problem.message}; {problem.advice}")])
        if self.settings.embedder == "minilm":
            return MiniLmEmbedder(MINILM.place(self.folder), is_patient=is_patient)
        if self.settings.embedder == "openai" and self.settings.embeddings_model is not None:
            return self._asking(self.settings.embeddings_model)
        return None

    @property
    def model(self) -> str | None:
        """The name of the model that the settings name, whether it can be used or not."""
        if self.settings.embedder == "openai":
            return f"{PREFIX}{self.settings.embeddings_model}"
        return MODEL if self.settings.embedder == "minilm" else None

    def find(self, model: str) -> Embedder | None:
        if model == MODEL and _minilm_problem(self.folder) is None:
            return MiniLmEmbedder(MINILM.place(self.folder))
        if model.startswith(PREFIX) and _key_problem(self.settings, self.environ) is None:
            return self._asking(model.removeprefix(PREFIX))
        return None

    def _asking(self, name: str) -> Embedder | None:
        variable, url = self.settings.embeddings_key_variable, self.settings.embeddings_url
        key = None if variable is None else self.environ[variable].strip()
        return None if url is None else OpenAiEmbedder(url, name, key, self.clock)


def examine_embedder(settings: KnowledgeConfig, folder: Path, environ: Mapping[str, str]) -> Iterator[Finding]:
    """What `dragoman doctor` finds out about the embedder; nothing without one. It sends nothing."""
    problem = _problem(settings, folder, environ)
    if problem is not None:
        yield Finding(_CHECK, "problem", problem.message, f"{problem.advice[0].upper()}{problem.advice[1:]}.")
    elif settings.embedder == "minilm":
        yield Finding(_CHECK, "ok", f"{MODEL} is in {MINILM.place(folder)}")
    elif settings.embedder == "openai":
        said = f"{settings.embeddings_url}: nothing was sent, so it was not checked"
        yield Finding(_CHECK, "ok", said)


def _problem(settings: KnowledgeConfig, folder: Path, environ: Mapping[str, str]) -> _Problem | None:
    if settings.embedder == "minilm":
        return _minilm_problem(folder)
    return _key_problem(settings, environ) if settings.embedder == "openai" else None


def _minilm_problem(folder: Path) -> _Problem | None:
    if find_spec("numpy") is None:
        return _Problem("embedder", "minilm needs NumPy", f"run `{install_command('knowledge')}`")
    if not MINILM.is_installed(folder):
        said = f"the model minilm is not installed in {MINILM.place(folder)}"
        return _Problem("embedder", said, "run `dragoman models install minilm`")
    return None


def _key_problem(settings: KnowledgeConfig, environ: Mapping[str, str]) -> _Problem | None:
    variable = settings.embeddings_key_variable
    if variable is None:
        return None
    key = environ.get(variable, "").strip()
    if key.isascii() and key.isprintable() and key:
        return None
    return _Problem("embeddings_key_variable", f"{variable} holds no key", "set it in the environment of the server")
