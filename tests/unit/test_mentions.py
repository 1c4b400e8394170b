"""@file mentions: what is sent, what is shown, and each refusal as one line."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from dflash_tui.application.mentions import (
    LOOKED_AT,
    MAX_BYTES,
    MAX_FILES,
    MAX_LISTED,
    ON_COMMAND_LINE,
    MentionError,
    attached,
    collapse,
    files,
    mentioned,
    offers,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "notes.md").write_text("# Notes\n\n```sh\nls\n```\n")
    (tmp_path / "src" / "a.py").write_text("A = 1\n")
    (tmp_path / "src" / "b.py").write_text("B = 2\n")
    (tmp_path / "a name.txt").write_text("spaces")
    return tmp_path


def test_what_is_sent_and_shown(folder: Path) -> None:
    text = "Compare @src/*.py with @notes.md."
    sent = text + files(text, folder)
    assert sent.startswith("Compare @src/*.py with @notes.md.\n\nFile src/a.py, 6 bytes:\n```py\nA = 1\n```")
    assert "File notes.md, 22 bytes:\n````md\n# Notes\n\n```sh\nls\n```\n````" in sent, "a fence that nothing closes"
    assert collapse(sent) == ("Compare @src/*.py with @notes.md.", ("src/a.py · 6B", "src/b.py · 6B", "notes.md · 22B"))
    assert files('@"a name.txt"', folder).endswith("```txt\nspaces\n```")
    assert collapse("a plain message") == ("a plain message", ())


@pytest.mark.parametrize(
    "text",
    ["mail me@example.org", "@dataclass\nclass A", "@@notes.md", "`@notes.md`", "```\n@notes.md\n```", "a @ b", "@src"],
)
def test_what_is_no_mention(folder: Path, text: str) -> None:
    assert files(text, folder) == ""


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("@gone.md", "@gone.md: no such file; @@ writes a plain @"),
        ("@src/", "@src/ is a folder; name files in it: @src/*"),
        ("@src/*.rs", "@src/*.rs: no file has such a name"),
        ("@empty.md", "@empty.md: there is nothing to read in it; name a file with text"),
        ("@picture.txt", "@picture.txt is not text; only text in UTF-8 can be sent"),
        ("@large.log", f"holds more than {MAX_BYTES:,} bytes"),
        ("@locked.txt", "@locked.txt cannot be read: Permission denied; the message is not sent"),
        ("@pipe.txt", "a FIFO"),
        ("@many/*", f"more than {MAX_FILES} files"),
    ],
)
def test_refused_in_one_line(folder: Path, name: str, why: str) -> None:
    (folder / "empty.md").write_text(" \n\u200b\n")
    (folder / "picture.txt").write_bytes(b"\x89PNG\0\xff")
    (folder / "large.log").write_bytes(b"x" * (MAX_BYTES + 1))
    (folder / "locked.txt").write_text("x")
    os.chmod(folder / "locked.txt", 0)
    os.mkfifo(folder / "pipe.txt")
    (folder / "many").mkdir()
    for number in range(MAX_FILES + 1):
        (folder / "many" / f"{number}.txt").write_text("x")
    if name == "@locked.txt" and os.access(folder / "locked.txt", os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(MentionError) as refused:
        files(f"look at {name} please", folder)
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)


def test_names_while_they_are_typed(folder: Path) -> None:
    assert [one.label for one in offers("look at @", folder)] == ["src/", "a name.txt", "notes.md"]
    [one] = offers("look at @no", folder)
    assert one.text == "look at @notes.md "
    assert one.about == "22B · about 6 tok"
    assert [row.text for row in offers("@src/", folder)] == ["@src/a.py ", "@src/b.py "]
    assert offers("look at @a", folder)[0].text == 'look at @"a name.txt" '
    assert offers("mail me@no", folder) == []
    assert offers("@gone/", folder) == []
    assert list(mentioned("@a.py, @b.py! and @c/*.h")) == ["a.py", "b.py", "c/*.h"]


def test_a_name_is_found_among_any_number_of_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(MAX_LISTED + 10):
        (folder / f"f{number:03}").touch()
    (folder / "zeta.txt").write_text("z")
    looked: list[Path] = []
    stat = Path.stat
    monkeypatch.setattr(Path, "stat", lambda self, **how: (looked.append(self), stat(self, **how))[1])
    assert [one.label for one in offers("look at @zet", folder)] == ["zeta.txt"]
    assert {one.name for one in looked} == {"zeta.txt"}, "nothing is asked of the others"


def test_files_of_the_command_line(folder: Path) -> None:
    assert attached([], folder, ON_COMMAND_LINE) == ""
    assert attached(["src/*.py", "src/a.py"], folder, ON_COMMAND_LINE) == files("@src/*.py", folder)
    os.mkfifo(folder / "pipe")
    for name, why in (
        ("gone.md", "gone.md: no such file; give the path of a text file, or a pattern in quotes"),
        ("gone", "gone: no such file; give the path"),
        ("*.rs", "*.rs: no file has such a name; give the path"),
        ("src", "src is a folder; name files in it: src/*"),
        ("", "a file without a name; give the path of a text file"),
        ("pipe", "pipe is a FIFO"),
    ):
        with pytest.raises(MentionError) as refused:
            attached([name], folder, ON_COMMAND_LINE)
        assert str(refused.value).startswith(why)
        assert "@" not in str(refused.value), "a mark of messages that are typed in the app"


def test_only_what_can_be_sent_is_offered(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)  # the address of a socket is short
    os.mkfifo(folder / "pipe.md")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket.md")
        (folder / "device.md").symlink_to("/dev/zero")
        (folder / "picture.md").write_bytes(b"\x89PNG\r\n")
        (folder / "zeros.md").write_bytes(b"text\0more")
        (folder / "large.md").write_bytes(b"x" * (MAX_BYTES + 1))
        (folder / "gone.md").symlink_to("nowhere")
        (folder / "empty.md").touch()
        (folder / "cut.md").write_text("x" * (LOOKED_AT - 1) + "é")  # a letter at the end of what is looked at
        (folder / "link.md").symlink_to("notes.md")
        labels = [one.label for one in offers("@", folder)]
    assert labels == ["src/", "a name.txt", "cut.md", "empty.md", "link.md", "notes.md"]
