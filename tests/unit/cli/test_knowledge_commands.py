"""`dragoman knowledge`: files become documents and documents files, and what is in the tree is shown."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unicodedata import normalize
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from dragoman.cli.commands import app
from dragoman.cli.knowledge_export import plan_files
from dragoman.cli.knowledge_files import DocumentList, FoundTree, file_name, find_documents, id_for
from dragoman.cli.knowledge_import import Import
from dragoman.cli.storage_access import OpenStorage, with_storage
from dragoman.gateway.keeping import open_objects
from dragoman.knowledge.actions import CHANGES
from dragoman.knowledge.port import UNLIMITED, ActionRequest, Documents
from tests.support.document_entries import draft
from tests.support.gateway import create_args

runner = CliRunner()
HOSTILE = "\x1b]0;gone\x07 \x1b[2J \u202egnp.exe \u200b\r"
LARGEST = 131_072


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a folder of files, and a data directory that is not there yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAGOMAN_STORAGE__DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "files").mkdir()
    return tmp_path


def dragoman(*words: str) -> Result:
    return runner.invoke(app, words)


def answer(*words: str, code: int = 0) -> Any:
    """What a command prints as JSON."""
    result = dragoman(*words, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def write(**files: str | bytes) -> None:
    """Write files; two underscores stand for a slash, and one at the end for a dot before the suffix."""
    for name, content in files.items():
        path = Path("files", *name.split("__"))
        path = path.with_name(".".join(path.name.rsplit("_", 1)))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def take(*words: str, code: int = 0) -> Any:
    return answer("knowledge", "import", "files", *words, code=code)


def counts(imported: Any) -> tuple[int, int, int]:
    return imported["created"], imported["updated"], imported["unchanged"]


def tree(*words: str) -> list[Any]:
    return list(answer("knowledge", "tree", *words)["documents"])


def outline(*words: str) -> list[tuple[int, str, str]]:
    return [(each["depth"], each["title"], each["mimeType"]) for each in tree(*words)]


def by_title(title: str, *words: str) -> Any:
    (found,) = (each for each in tree(*words) if each["title"] == title)
    return answer("knowledge", "show", found["id"], *words)


def carry_out(action: str, arguments: dict[str, Any], tenant: str = "local") -> dict[str, Any]:
    """Do what a client of the server does."""

    async def work(stored: OpenStorage) -> dict[str, Any]:
        request = ActionRequest(
            tenant=tenant, principal="a client", roles=frozenset(("owner",)), action=action, correlation_id="c"
        )
        change = CHANGES[action](arguments, request, stored.now())
        return (await stored.storage.port(Documents).carry_out(change, request)).data

    return with_storage(None, work)


def create(title: str, parent: str = "root", body: str = "", mime_type: str = "text/plain", **metadata: Any) -> str:
    content = {"mime_type": mime_type, "body": body}
    args = create_args(None, parent, content=content, metadata={"title": title, **metadata})
    return str(carry_out("knowledge.create_document", args)["id"])


@pytest.mark.slow
def test_files_and_folders_become_documents_of_their_types_in_order() -> None:
    write(b_md="# B", a__z_txt="plain", a__y_json='{"a": [1]}', a__x_json="{no", a__deep__w_MD="w")
    assert counts(take()) == (7, 0, 0)
    assert outline() == [
        (0, "a", "text/markdown"),
        (1, "deep", "text/markdown"),
        (2, "w", "text/markdown"),
        (1, "x", "text/plain"),
        (1, "y", "application/json"),
        (1, "z", "text/plain"),
        (0, "b", "text/markdown"),
    ]
    assert (by_title("b")["body"], by_title("a")["body"], by_title("x")["body"]) == ("# B", "", "{no")
    assert {UUID(each["id"]).version for each in tree()} == {5}


@pytest.mark.slow
def test_a_second_import_updates_only_what_changed() -> None:
    write(a_md="a", b_md="b", c__d_md="d")
    assert counts(take()) == (4, 0, 0)
    ids = [each["id"] for each in tree()]
    write(b_md="B!", e_md="e")
    assert counts(take()) == (1, 1, 3)
    assert (by_title("b")["body"], by_title("b")["revision"], by_title("a")["revision"]) == ("B!", 2, 1)
    assert [each["id"] for each in tree()][:-1] == ids
    assert counts(take()) == (0, 0, 5)
    assert dragoman("knowledge", "import", "files").stdout == "0 created, 0 updated, 5 unchanged\n"


@pytest.mark.slow
def test_the_same_files_are_other_documents_for_another_tenant_or_below_another_parent() -> None:
    write(a_md="a")
    assert counts(take()) == counts(take("--tenant", "acme")) == (1, 0, 0)
    (first,), (other,) = tree(), tree("--tenant", "acme")
    assert first["id"] != other["id"]
    assert counts(take("--parent", first["id"].upper())) == (1, 0, 0)
    assert outline() == [(0, "a", "text/markdown"), (1, "a", "text/markdown")]
    assert outline(first["id"]) == [(0, "a", "text/markdown")]
    missing = dragoman("knowledge", "import", "files", "--parent", other["id"])
    assert (missing.exit_code, "has no document" in missing.stderr) == (1, True)
    assert dragoman("knowledge", "import", "files", "--parent", "not-an-id").exit_code == 2


@pytest.mark.slow
def test_a_name_in_either_normal_form_of_unicode_is_the_same_file() -> None:
    name = "Zürich – ñandú 東京.md"
    Path("files", normalize("NFD", name)).write_text("1")
    assert counts(take()) == (1, 0, 0)
    Path("files", normalize("NFD", name)).rename(Path("files", normalize("NFC", name)))
    assert counts(take()) == (0, 0, 1)
    assert tree()[0]["title"] == normalize("NFC", name).removesuffix(".md")
    Path("files", normalize("NFD", name)).write_text("2")
    both = take(code=1)
    assert (counts(both), len(both["problems"])) == ((0, 1, 0), 1)


def test_hidden_files_are_passed_over_and_links_and_other_files_are_listed(place: Path) -> None:
    write(a_md="a", program_py="x")
    (place / "files/.hidden.md").write_text("x")
    (place / "files/.git").mkdir()
    (place / "files/.git/b.md").write_text("x")
    (place / "secret.md").write_text("x")
    (place / "files/link.md").symlink_to(place / "secret.md")
    (place / "files/loop").symlink_to(place / "files")
    os.mkfifo(place / "files/pipe.md")
    taken = take()
    assert counts(taken) == (1, 0, 0)
    other = "neither a folder nor one of .md, .json, .txt"
    reasons = {each["path"]: each["reason"] for each in taken["skipped"]}
    assert reasons == {"link.md": "a link", "loop": "a link", "pipe.md": other, "program.py": other}
    shown = dragoman("knowledge", "import", "files")
    assert (shown.exit_code, "  program.py: neither" in shown.stderr) == (0, True)


def test_an_import_stops_at_the_quota_of_the_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_KNOWLEDGE__DOCUMENTS_PER_TENANT", "2")
    write(a_md="a", b_md="b", c_md="c")
    taken = take(code=1)
    assert counts(taken) == (2, 0, 0)
    assert taken["problems"] == [{"path": "c.md", "reason": "At most 2 documents are kept for a tenant"}]


@pytest.mark.slow
def test_what_cannot_be_a_document_is_listed_at_the_end_and_the_rest_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DRAGOMAN_GATEWAY__MAX_ARTIFACT_BYTES", str(LARGEST))
    frame = len(json.dumps({"document_id": str(uuid4()), "parent_id": "root"}, separators=(",", ":")))
    frame += len(',"content":{"mime_type":"text/markdown","body":""},"metadata":{"title":"fits"}')
    write(fits_md="x" * (LARGEST - frame), large_md="x" * (LARGEST - frame), huge_md="x" * 200_000, a_md="a")
    write(latin_txt=b"caf\xe9", escaped_md="\x01" * 30_000)
    Path("files", os.fsdecode(b"caf\xe9.md")).write_text("x")
    taken = take(code=1)
    assert counts(taken) == (2, 0, 0)
    reasons = {each["path"]: each["reason"] for each in taken["problems"]}
    assert set(reasons) == {"large.md", "huge.md", "latin.txt", "escaped.md", "caf?.md"}
    assert "131073 bytes of arguments" in reasons["large.md"]
    assert reasons["latin.txt"] == "it is not UTF-8"
    assert {title for _, title, _ in outline()} == {"a", "fits"}
    shown = dragoman("knowledge", "import", "files")
    assert (shown.exit_code, "  latin.txt: it is not UTF-8" in shown.stderr.splitlines()) == (1, True)


@pytest.mark.slow
@pytest.mark.requirement("MC-ART-01")
def test_a_file_that_is_too_large_for_a_message_is_imported_in_its_place_and_leaves_no_artifact(place: Path) -> None:
    large = "\u00e4\n" * 200_000
    write(a_md="a", b_md=large, c_md="\x01" * 30_000, d_md="d")
    assert counts(take()) == (4, 0, 0)
    assert [title for _, title, _ in outline()] == ["a", "b", "c", "d"]
    assert (by_title("b")["body"], by_title("c")["body"]) == (large, "\x01" * 30_000)
    assert counts(take()) == (0, 0, 4)
    write(b_md=f"{large}!")
    assert counts(take()) == (0, 1, 3)
    assert by_title("b")["body"] == f"{large}!"
    assert [path.name for path in (place / "data/artifacts").rglob("*") if path.is_file()] == []


def test_a_large_file_is_listed_if_artifacts_cannot_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_GATEWAY__ARTIFACT_BYTES_PER_TENANT", "1000")
    write(a_md="a", b_md="b" * 200_000)
    taken = take(code=1)
    assert (counts(taken), [each["path"] for each in taken["problems"]]) == ((1, 0, 0), ["b.md"])
    assert "At most 1000 bytes of artifacts" in taken["problems"][0]["reason"]


def test_what_cannot_be_read_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    write(a__b_md="b", c_md="c", d_md="d")

    def refusing(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """As the system does, for whoever is not root."""

        def refuse(path: Any, *rest: Any, **named: Any) -> Any:
            if Path(path).name == name:
                raise PermissionError(errno.EACCES, "Permission denied")
            return function(path, *rest, **named)

        return refuse

    monkeypatch.setattr(os, "scandir", refusing(os.scandir, "a"))
    monkeypatch.setattr(os, "open", refusing(os.open, "c.md"))
    taken = take(code=1)
    assert (counts(taken), [each["path"] for each in taken["problems"]]) == ((2, 0, 0), ["a", "c.md"])


@pytest.mark.slow
def test_a_document_that_was_deleted_is_not_made_again_and_neither_is_what_was_below_it() -> None:
    write(a__b_md="b", c_md="c")
    take()
    carry_out("knowledge.delete_document", {"document_id": by_title("a")["id"]})
    taken = take(code=1)
    assert (counts(taken), [each["path"] for each in taken["problems"]]) == ((0, 0, 1), ["a", "a/b.md"])
    assert outline() == [(0, "c", "text/markdown")]


@pytest.mark.slow
def test_a_document_that_somebody_else_made_is_not_taken_for_an_imported_one() -> None:
    """Whoever may create documents in an inbox could have what is imported below them, as ids follow from paths."""
    inbox = create("Inbox", tags=["agent-inbox"])
    taken = {path: id_for("local", "root", path) for path in ("handbook", "notes.md")}
    for path, id in taken.items():
        carry_out("knowledge.create_document", create_args(id, inbox, metadata={"title": f"Mine: {path}"}))
    write(handbook__secrets_md="# Secrets", notes_md="# Notes", free_md="# Free")
    imported = take(code=1)
    assert counts(imported) == (1, 0, 0)
    said = {
        path: f"the document {id} has its id, and was made by a client, not by an import" for path, id in taken.items()
    }
    problems = {each["path"]: each["reason"].partition(":")[0] for each in imported["problems"]}
    assert problems == {**said, "handbook/secrets.md": "its folder could not be imported"}
    assert sorted(title for _, title, _ in outline()) == ["Inbox", "Mine: handbook", "Mine: notes.md", "free"]


@pytest.mark.slow
def test_an_id_that_the_list_names_is_taken_for_its_document_only_where_the_list_has_it() -> None:
    folder = create("Folder")
    one = create("One", folder, "first", "text/markdown")
    assert answer("knowledge", "export", "files")
    (file,) = Path("files").rglob("*.md")
    file.write_text("second")
    assert counts(take()) == (0, 1, 1), "a client has made them, and they are where the list says"
    inbox = carry_out("knowledge.create_document", create_args(metadata={"title": "Inbox"}), "other")["id"]
    carry_out("knowledge.create_document", create_args(one, inbox), "other")
    refused = take("--tenant", "other", code=1)
    assert counts(refused) == (1, 0, 0)
    assert [one in each["reason"] for each in refused["problems"]] == [True]


@pytest.mark.slow
def test_a_document_stays_where_it_was_moved_to_and_a_folder_keeps_the_text_it_was_given() -> None:
    write(a__b_md="b", c_md="c")
    take()
    folder, moved = by_title("a")["id"], by_title("b")["id"]
    carry_out("knowledge.move_document", {"document_id": moved, "new_parent_id": "root"})
    patch = {"patch": {"content": {"body": "All about a"}}, "update_mask": ["content.body"]}
    carry_out("knowledge.update_document", {"document_id": folder, **patch})
    write(a__b_md="B!")
    assert counts(take()) == (0, 1, 2)
    assert [title for _, title, _ in outline()] == ["a", "c", "b"]
    assert (by_title("a")["body"], by_title("b")["body"]) == ("All about a", "B!")


@pytest.mark.slow
def test_an_interrupted_import_goes_on_where_it_was(place: Path) -> None:
    write(**{f"f{number:03}_md": str(number) for number in range(150)})

    def interrupt(done: int) -> None:
        raise asyncio.CancelledError

    async def be_interrupted(stored: OpenStorage) -> int:
        found = find_documents(place / "files", DocumentList())
        objects = open_objects(stored.storage, stored.config.gateway, stored.clock).objects
        documents = stored.storage.port(Documents)
        run = Import(documents, objects, "local", "root", DocumentList(), stored.now, LARGEST, UNLIMITED)
        with pytest.raises(asyncio.CancelledError):
            await run.run(found, interrupt)
        return run.came_to.created

    done = with_storage(None, be_interrupted)
    assert 0 < done < 150
    assert counts(take()) == (150 - done, 0, done)
    assert [title for _, title, _ in outline()] == [f"f{number:03}" for number in range(150)]


@pytest.mark.slow
def test_what_is_exported_is_imported_as_the_same_tree() -> None:
    top = create("Notes/2024: draft?", body="# Top\r\n", mime_type="text/markdown", tags=["agent-inbox", "x"])
    for title in ("same", "same", "SAME", "_index", "", "..", "a" * 300, "CON", HOSTILE, "e\u0301"):
        create(title, top, f"body of {title}", source="somewhere")
    folder = create("same", top, '{"a":1}', "application/json")
    create("leaf", folder, "")
    create("inner", create("plain folder", folder, "", "text/markdown"), "\ufeffBOM and \x00")
    carry_out(
        "knowledge.move_document",
        {"document_id": folder, "new_parent_id": top, "position": {"before": tree()[3]["id"]}},
    )
    before, texts = tree(), [answer("knowledge", "show", each["id"])["body"] for each in tree()]
    assert answer("knowledge", "export", "out")["problems"] == []
    taken = answer("knowledge", "import", "out", "--tenant", "copy")
    assert (counts(taken), taken["skipped"], taken["problems"]) == ((len(before), 0, 0), [], [])
    own = ("revision", "createdAt", "updatedAt")
    after = tree("--tenant", "copy")
    for trees in (before, after):
        for each in trees:
            [each.pop(name) for name in own]
    assert after == before
    assert [answer("knowledge", "show", each["id"], "--tenant", "copy")["body"] for each in after] == texts
    assert counts(answer("knowledge", "import", "out")) == (0, 0, len(before))


@pytest.mark.parametrize(
    "title", ["../../escape", "/etc/passwd", "..\\..\\escape", "a/../../b", "..", "\x00", "~", "c:x"]
)
def test_an_export_stays_in_its_folder_whatever_titles_hold(title: str, place: Path) -> None:
    create("child", create(title, body="parent"), "child")
    create(title, body="leaf")
    before = {path for path in place.rglob("*") if "data" not in path.parts}
    assert answer("knowledge", "export", "in/out")["problems"] == []
    made = {path for path in place.rglob("*") if "data" not in path.parts} - before
    assert {path.relative_to(place).parts[0] for path in made} == {"in"}
    assert len([path for path in made if path.is_file()]) == 4


@given(st.text())
def test_every_title_gives_a_name_of_one_part_that_is_not_hidden(title: str) -> None:
    name = file_name(title)
    assert 0 < len(name.encode()) <= 121
    assert Path(name).name == name
    assert not name.startswith((".", " "))
    assert not name.endswith((".", " "))
    assert not set(name) & set('/\\:*?"<>|\x00\n')


@pytest.mark.slow
def test_an_export_writes_through_no_link(place: Path) -> None:
    create("leaf", create("folder", body="text"), "inner")
    (place / "elsewhere").mkdir()
    (place / "out").mkdir()
    (place / "out/folder").symlink_to(place / "elsewhere")
    for words in ((), ("--force",)):
        refused = answer("knowledge", "export", "out", *words, code=1)
        assert {each["path"] for each in refused["problems"]} <= {"folder/_index.txt", "folder/leaf.txt"}
        assert [*(place / "elsewhere").iterdir()] == []


@pytest.mark.slow
def test_an_export_overwrites_nothing_unless_it_is_forced(place: Path) -> None:
    create("a", body="new")
    create("b", body="b")
    (place / "out").mkdir()
    (place / "out/a.txt").write_text("mine")
    refused = answer("knowledge", "export", "out", code=1)
    assert (refused["written"], [each["path"] for each in refused["problems"]]) == (0, ["a.txt"])
    assert [(each.name, each.read_text()) for each in (place / "out").iterdir()] == [("a.txt", "mine")]
    assert answer("knowledge", "export", "out", "--force") == {"written": 3, "unchanged": 0, "problems": []}
    assert answer("knowledge", "export", "out") == {"written": 0, "unchanged": 3, "problems": []}
    assert ((place / "out/a.txt").read_text(), len([*(place / "out").iterdir()])) == ("new", 3)


def test_only_what_is_below_a_document_is_exported(place: Path) -> None:
    parent = create("p")
    create("child", parent, "x")
    create("other")
    assert answer("knowledge", "export", "out", "--parent", parent)["written"] == 2
    assert sorted(path.name for path in (place / "out").iterdir()) == [".dragoman-tree.json", "child.txt"]


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b'{"version": 2}',
        b'{"version": 1, "documents": {"a.md": {"id": "../x", "title": "a"}}}',
        b'{"version": 1, "documents": {"a.md": {"id": "root", "title": "a"}}}',
        b'{"version": 1, "documents": {"a.md": {"id": 7, "title": "a"}}}',
    ],
)
def test_a_list_that_no_export_wrote_is_refused_before_anything_is_done(content: bytes, place: Path) -> None:
    write(a_md="a")
    (place / "files/.dragoman-tree.json").write_bytes(content)
    result = dragoman("knowledge", "import", "files")
    assert (result.exit_code, (place / "data").exists()) == (2, False)


def test_a_folder_that_is_none_is_refused(place: Path) -> None:
    (place / "file").write_text("x")
    results = [dragoman("knowledge", "import", each) for each in ("file", "missing")]
    assert [each.exit_code for each in [*results, dragoman("knowledge", "export", "file")]] == [2, 2, 2]


@pytest.mark.slow
def test_a_document_is_shown_as_it_stands_and_as_it_stood() -> None:
    id = create("First", body="one\n\ttwo")
    patch = {"patch": {"content": {"body": "three"}, "metadata": {"title": "Last"}}}
    carry_out("knowledge.update_document", {"document_id": id, **patch, "update_mask": ["content", "metadata.title"]})
    now, then = (answer("knowledge", "show", id, *words) for words in ((), ("--revision", "1")))
    assert (now["title"], now["body"], now["revision"]) == ("Last", "three", 2)
    assert (then["title"], then["body"], then["revision"]) == ("First", "one\n\ttwo", 1)
    shown = dragoman("knowledge", "show", id, "--revision", "1").stdout
    assert shown.endswith("\n\none\n\ttwo\n")
    revisions = answer("knowledge", "history", id)["revisions"]
    assert [(each["revision"], each["title"], each["principal"]) for each in revisions] == [
        (2, "Last", "a client"),
        (1, "First", "a client"),
    ]
    page = answer("knowledge", "history", id, "--limit", "1")
    assert (len(page["revisions"]), page["before"]) == (1, 2)
    assert len(answer("knowledge", "history", id, "--before", "2")["revisions"]) == 1


def test_the_history_of_a_deleted_document_is_still_there() -> None:
    id = create("Gone")
    carry_out("knowledge.delete_document", {"document_id": id})
    assert [each["revision"] for each in answer("knowledge", "history", id)["revisions"]] == [2, 1]
    assert dragoman("knowledge", "show", id).exit_code == 1


@pytest.mark.slow
def test_what_is_not_there_ends_with_exit_code_1() -> None:
    id, missing = create("a"), str(uuid4())
    commands = [("show", missing), ("history", missing), ("tree", missing), ("show", id, "--revision", "2")]
    commands += [("show", id, "--tenant", "acme"), ("export", "out", "--parent", missing)]
    assert [dragoman("knowledge", *words).exit_code for words in commands] == [1] * 6
    assert dragoman("knowledge", "show", "nonsense").exit_code == 2
    assert dragoman("knowledge", "tree", "--tenant", "acme").stderr == "there are no documents\n"


@pytest.mark.slow
def test_a_terminal_is_shown_nothing_that_could_deceive_it() -> None:
    id = create(HOSTILE, body=HOSTILE, tags=[HOSTILE], source=HOSTILE)
    for words in (("tree",), ("show", id), ("history", id)):
        for each in (dragoman("knowledge", *words), dragoman("knowledge", *words, "--json")):
            assert each.exit_code == 0
            assert not {"\x1b", "\x07", "\u202e", "\u200b", "\r"} & set(each.output), words
    Path("files", f"a{HOSTILE}.txt").write_bytes(b"\xff")
    Path("files", f"b{HOSTILE}.exe").write_bytes(b"")
    assert not {"\x1b", "\x07", "\u202e", "\u200b"} & set(dragoman("knowledge", "import", "files").output)


def test_an_empty_folder_is_an_empty_tree() -> None:
    assert counts(take()) == (0, 0, 0)
    assert find_documents(Path("files"), DocumentList()) == FoundTree()
    assert answer("knowledge", "export", "out")["written"] == 1


def test_no_two_documents_are_exported_to_one_file() -> None:
    ids = [f"{number:032x}" for number in range(3)]
    titles = ["x", f"x~{ids[2]}", "x"]
    tree = defaultdict(list, {"root": [draft(id, title=title) for id, title in zip(ids, titles, strict=True)]})
    files, listed = plan_files(tree, "root")
    assert len({str(each.path).casefold() for each in files}) == len(listed.documents) == 3
