"""`dflash-tui conversations`: the app's stored conversations, from the command line."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_core.record import pack
from dflash_tui.application.conversations.store import Card, Store
from dflash_tui.cli import main
from support.stored import a_turn, talk, titles


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The store that the command opens, with two conversations."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.setenv("HOME", str(tmp_path))
    store = Store(tmp_path / "share" / "dflash-tui")
    talk(store, "first question", "an answer about trees")
    _, nodes = talk(store, "second \x1b[31mquestion", "another")
    store.keep(nodes[1].id, pack(a_turn()))
    return store


def ids(store: Store) -> list[str]:
    return [entry.card.id for entry in store.list()]


def test_list(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conversations", "list"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(ids(store)[0][:6] + "  20")
    assert first.endswith("     2  second �[31mquestion")
    assert main(["conversations", "list", "about", "tree"]) == 0
    assert capsys.readouterr().out.endswith("first question\n")
    assert main(["conversations", "list", "nothing like it"]) == 0
    assert capsys.readouterr() == ("", "no conversation has these words\n")
    assert second


def test_list_as_json(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["conversations", "list", "--json"], ["--json", "conversations", "list"]):
        assert main(words) == 0
        out = json.loads(capsys.readouterr().out)
        assert [one["id"] for one in out["conversations"]] == ids(store)
        assert {"title", "model", "created", "updated", "messages"} < set(out["conversations"][0])


def test_export_and_import_and_delete(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "all.json"
    assert main(["conversations", "export", "all", "-o", str(file)]) == 0
    assert "2 conversations" in capsys.readouterr().err
    for id in ids(store):
        assert main(["conversations", "delete", id[:8], "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["deleted"][0]["id"] == id
    assert titles(store) == []
    assert main(["conversations", "import", str(file)]) == 0
    assert sorted(titles(store)) == ["first question", "second \x1b[31mquestion"]
    [entry] = store.list("second")
    assert store.record(store.branches(entry.card.id).path[1].id) == a_turn()


def test_export_goes_to_stdout_where_no_file_is_named(store: Store) -> None:
    command = [sys.executable, "-m", "dflash_tui", "conversations", "export", ids(store)[1]]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    assert done.stdout.startswith("# first question\n")
    assert done.stderr == ""


@pytest.mark.parametrize(("ending", "begins"), [("md", b"# first"), ("svg", b"<svg"), ("json", b"{")])
def test_the_ending_of_the_file_is_the_format(store: Store, tmp_path: Path, ending: str, begins: bytes) -> None:
    file = tmp_path / f"one.{ending}"
    assert main(["conversations", "export", ids(store)[1], "--output", str(file)]) == 0
    assert file.read_bytes().startswith(begins)


def test_an_export_that_the_disk_refuses_leaves_the_file_before(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "one.md"
    file.write_text("before")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.replace", full)  # the last step of a write
        assert main(["conversations", "export", ids(store)[1], "--output", str(file)]) == 1
    assert f"{file} cannot be written: No space left on device; name another file" in capsys.readouterr().err
    assert file.read_text() == "before"
    assert [one.name for one in tmp_path.glob("*one*")] == ["one.md"], "no part of it stays"


def test_refusals(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = tmp_path / "wrong.json"
    wrong.write_text("{}")
    one = ids(store)[0]
    for words, says in (
        (["export", "zz"], "no conversation 'zz'; dflash-tui conversations list shows them"),
        (["export", ""], "no conversation ''"),
        (["export", "all"], "JSON only; add --as json"),
        (["export", one, "-o", "a.txt"], "its ending names no format"),
        (["export", one, "-o", str(tmp_path / "no" / "a.md")], f"there is no folder {tmp_path / 'no'}"),
        (["export", one, "--json"], "--json reports on a file"),
        (["import", str(wrong)], f"{wrong}: not an export of conversations"),
        (["import", str(tmp_path / "none.json")], "No such file or directory"),
        (["delete", one, "zz"], "no conversation 'zz'"),
    ):
        assert main(["conversations", *words]) == 1
        out, error = capsys.readouterr()
        assert says in error
        assert (out, error.count("\n")) == ("", 1)
    assert len(titles(store)) == 2, "the second name was wrong, so the first was not deleted either"
    for words in ([], ["nonsense"], ["delete"]):
        with pytest.raises(SystemExit) as refusal:
            main(["conversations", *words])
        assert refusal.value.code == 2


def test_an_id_that_could_be_several(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    # No drawn id begins so: they are hexadecimal.
    store.begin(Card("a", id="xy1"))
    store.begin(Card("b", id="xy2"))
    assert main(["conversations", "delete", "xy"]) == 1
    assert "matches several, xy1, xy2" in capsys.readouterr().err


def test_a_change_that_could_not_be_made_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    export = tmp_path / "one.json"
    export.write_text('{"format":"dflash-tui conversations","version":1,"conversations":[{"card":{"title":"t"},'
                      '"leaf":null,"messages":[],"turns":{}}]}')  # fmt: skip
    assert main(["conversations", "import", str(export)]) == 1
    out, error = capsys.readouterr()
    assert out == "", "what was not stored is not listed"
    assert error.startswith("dflash-tui: nothing was changed: conversations cannot be saved in ")
    assert error.count("\n") == 1
    assert main(["conversations", "list"]) == 0, "a list changes nothing"
    assert capsys.readouterr().err.startswith("no conversations\nnote: conversations cannot be saved in ")


def test_a_conversation_without_an_id_can_be_deleted(store: Store) -> None:
    """Earlier versions imported such files."""
    store.begin(Card("nameless", id=""))
    store.begin(Card("named", id="xy"))
    store.begin(Card("named alike", id="xyz"))
    assert main(["conversations", "delete", ""]) == 0
    assert main(["conversations", "delete", "xy"]) == 0
    assert titles(store, "na") == ["named alike"]
