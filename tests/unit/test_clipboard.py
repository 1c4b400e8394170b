"""A copied text is somewhere, and the notice says where: programs stand in for the desktop's and for tmux."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash_tui.terminal.clipboard import copied

TEXT = "one\ntwo é"
TMUX = """case "$1" in
    show) echo {passes} ;;
    display) echo {features} ;;
    load-buffer) cat > "{out}"; [ -z "{old}" ] || [ "$2" != -w ] ;;
esac"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of programs besides the system's shell."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/bin")
    monkeypatch.setattr("dflash_tui.terminal.clipboard._COMMANDS", (("DISPLAY", ("desktop-copy",)),))
    return folder


def put(folder: Path, name: str, script: str) -> Path:
    """A program; returns the file that it writes what it got to."""
    (folder / name).write_text("#!/bin/sh\n" + script.replace("{out}", str(folder / "got")))
    (folder / name).chmod(0o755)
    return folder / "got"


@pytest.mark.parametrize(
    ("passes", "features", "old", "said"),
    [
        ("external", "256,clipboard", "", "the tmux buffer and the terminal's clipboard"),
        ("on", "clipboard,title", "", "the tmux buffer and the terminal's clipboard"),
        ("external", "256", "", "the tmux buffer only"),
        ("off", "clipboard", "", "the tmux buffer only"),
        ("on", "clipboard", "yes", "the tmux buffer only"),  # before 3.2 it had no -w
    ],
)
def test_tmux_gets_it(programs: Path, tmp_path: Path, passes: str, features: str, old: str, said: str) -> None:
    script = TMUX.replace("{passes}", passes).replace("{features}", features).replace("{old}", old)
    got = put(programs, "tmux", script)
    notice = copied(TEXT, "the answer", tmp_path, {"TMUX": "/tmp/x,1,0"})
    assert notice.startswith("copied the answer, to ")
    assert said in notice
    assert got.read_text() == TEXT
    assert not (tmp_path / "copied.txt").exists()


@pytest.mark.parametrize(
    "environment", [{}, {"TMUX": "x"}, {"DISPLAY": ":0"}, {"DISPLAY": ":0", "SSH_CONNECTION": "x"}]
)
def test_where_nothing_is_known_to_take_it_a_file_has_it(
    programs: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    put(programs, "tmux", "exit 1")
    put(programs, "desktop-copy", "cat >/dev/null" if "SSH_CONNECTION" in environment else "exit 1")
    folder = tmp_path / "data"
    notice = copied(TEXT, "the answer", folder, environment)
    assert notice.startswith("sent the answer to the terminal; ")
    assert notice.endswith(str(folder / "copied.txt"))
    assert (folder / "copied.txt").read_text() == TEXT


def test_a_desktop_that_takes_it(programs: Path, tmp_path: Path) -> None:
    got = put(programs, "desktop-copy", 'cat > "{out}"')
    assert copied(TEXT, "the answer", tmp_path, {"DISPLAY": ":0", "TMUX": "x"}) == "copied the answer"
    assert got.read_text() == TEXT


def test_a_folder_that_takes_no_file(programs: Path, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    assert "cannot be written" in copied(TEXT, "the answer", tmp_path / "data", {})
