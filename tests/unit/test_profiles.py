"""Profiles: kept in a file that people edit too, named on the command line, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash_core.demo import demo_target_path
from dflash_tui import cli
from dflash_tui.application.session import LoadRequest
from dflash_tui.application.settings.config import config_folder
from dflash_tui.application.settings.presets import FOLDER_NAME, Preset, PresetError, Presets, Profile
from dflash_tui.application.starting import arguments_again
from dflash_tui.cli.options import Command, Invocation
from support.homes import work_at_home

CODING = """\
# mine
target = "/a/b.gguf"
draft = "mtp"
context = 65536
kv = "q8_0/q4_0"

  [knobs]
  budget = 15  # measured
"""
NEAR = 'target = "sub/x.gguf"\ndraft = "ngram+sub/d"\n'


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return work_at_home(tmp_path, monkeypatch)


def folder() -> Path:
    return config_folder() / FOLDER_NAME


def profile_of(name: str, text: str) -> Path:
    folder().mkdir(parents=True, exist_ok=True)
    path = folder() / f"{name}.toml"
    path.write_text(text)
    return path


@pytest.fixture
def mine(home: Path) -> Presets:
    profile_of("coding", CODING)
    profile_of("near", NEAR)
    return Presets()


def test_what_a_file_says(mine: Presets) -> None:
    coding, near = mine.profiles.values()
    assert mine.problems == []
    entries = {"target": Path("/a/b.gguf"), "draft": Path("mtp"), "context": 65536, "kv": "q8_0/q4_0"}
    assert coding == Profile("coding", changes={"drafting": "tree 15"}, **entries)
    assert coding.knobs.budget == 15
    assert coding.words == "b.gguf + mtp · 65,536 positions · q8_0/q4_0 · drafting tree 15"
    assert (near.target, str(near.draft)) == (folder() / "sub" / "x.gguf", f"ngram+{folder()}/sub/d")
    assert near.gone() == folder() / "sub" / "x.gguf"


def test_changes_leave_the_files_of_others_as_they_stand(mine: Presets) -> None:
    by_hand = "# mine\ntarget = 'demo'  # why\n[knobs]\nbudget = 3  # measured\n"
    path = profile_of("new", by_hand)
    mine.rename("new", "newer")
    assert (mine.folder / "newer.toml").read_text() == by_hand
    assert not path.exists()
    gone = mine.delete("newer")
    assert "newer" not in mine.profiles
    mine.save(gone)
    assert mine.profile("newer") == gone
    assert Presets().profile("newer") == gone, "from the disk"
    assert (folder() / "coding.toml").read_text() == CODING
    mine.delete("coding")
    assert [*Presets().profiles] == ["near", "newer"]


def test_a_name_is_that_of_a_preset_or_of_a_profile(mine: Presets) -> None:
    mine.save(Profile("plain"))
    assert mine["plain"].changes, "the program's own preset stays"
    mine.save(Preset("fast", changes={"drafting": "tree 3"}))
    for other in (Preset("plain"), Profile("fast")):
        with pytest.raises(PresetError, match="already; take another name, or delete"):
            mine.save(other)
    with pytest.raises(PresetError, match="already"):
        mine.rename("coding", "fast")
    with pytest.raises(PresetError, match="that is a profile: /profile loads its model"):
        mine["coding"]
    assert mine.profile("plain") == Profile("plain")
    assert mine["fast"].changes == {"drafting": "tree 3"}


def test_the_last_used_is_the_first(mine: Presets) -> None:
    mine.used("near")
    assert [*Presets().profiles] == ["near", "coding"]
    mine.used("coding")
    assert [*Presets().profiles] == ["coding", "near"]
    mine.rename("coding", "code")
    assert [*Presets().profiles] == ["code", "near"]


@pytest.mark.parametrize(
    ("entry", "why", "stays"),
    [
        ("target = 3", "x.toml, line 1: target: found 3, expected a GGUF file", False),
        ("target = 'demo'\ndraft = 3", "draft: found 3", False),
        ("target = '~nobody-of-that-name/x'", "it is left out", False),
        ("target = 'demo'\ncontext = 'many'", "line 2: context: context=many", True),
        ("target = 'demo'\nkv = 'q9'", "line 2: kv: ", True),
        ("target = 'demo'\ntraget = '\\u001b[2J'", "line 2: traget: unknown; expected about", True),
        ("target = 'demo'\n[knobs]\nbudgte = 3", "line 3: knobs.budgte", True),
        ("target = 'demo'\nknobs = 3", "expected a table", True),
        ("[target", "left out", False),
    ],
)
def test_what_is_wrong_is_named_with_its_line(home: Path, entry: str, why: str, *, stays: bool) -> None:
    profile_of("x", entry)
    presets = Presets()
    [problem] = presets.problems
    assert why in problem
    assert "\n" not in problem
    assert "\x1b" not in problem
    assert ("x" in presets.profiles) is stays


def test_a_file_that_cannot_be_written_stays(mine: Presets, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.unlink", full)
    monkeypatch.setattr("os.rename", full)
    for change in (lambda: mine.delete("coding"), lambda: mine.rename("coding", "code")):
        with pytest.raises(PresetError, match="No space left on device"):
            change()
    assert (folder() / "coding.toml").read_text() == CODING
    assert "coding" in mine.profiles


@pytest.mark.parametrize("name", ["", "A", "../x", "a b", "x" * 49, "-"])
def test_names_are_simple(mine: Presets, name: str) -> None:
    with pytest.raises(PresetError, match="expected a name"):
        mine.save(Profile(name))
    with pytest.raises(PresetError, match="expected a name"):
        mine.rename("coding", name)
    with pytest.raises(PresetError, match="already"):
        mine.rename("coding", "near")
    assert [*Presets().profiles] == ["coding", "near"]


def test_a_files_new_place(home: Path) -> None:
    profile = Profile("x", target=Path("/a/m.gguf"), draft=Path("ngram+/a/d"))
    assert profile.moved(Path("/a/m.gguf"), Path("/b/m.gguf")).target == Path("/b/m.gguf")
    assert str(profile.moved(Path("/a/d"), Path("/b/d")).draft) == "ngram+/b/d"


# The command line


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[LoadRequest]:
    """What commands would load."""
    found: list[LoadRequest] = []

    def run(command: Command, call: Invocation) -> int:
        found.append(call.request)
        return 0

    monkeypatch.setattr(Command, "run", run)
    return found


def test_a_profile_on_the_command_line(asked: list[LoadRequest], home: Path) -> None:
    target = demo_target_path()
    profile_of("tiny", f"target = '{target}'\ndraft = 'text'\ncontext = 1024\nkv = 'q8_0'\n[knobs]\nbudget = 15\n")
    for command in ("ask", "bench", "plan"):
        assert cli.main([command, "--profile", "tiny", *(["hi"] if command == "ask" else [])]) == 0
    for one in asked:
        assert (one.target, one.draft, one.context, one.kv) == (target, Path("ngram"), 1024, "q8_0")
        assert one.knobs.budget == 15
    asked.clear()
    profile_of("another", "target = 'demo'\n")
    assert next(iter(Presets().profiles)) == "tiny"
    cli.main(["ask", "--profile", "another", "hi"])
    assert [*Presets().profiles] == ["another", "tiny"], "the last used first"
    asked.clear()
    words = ["--kv", "q4_0", "--context", "512", "--set", "budget=7", "--draft", "text"]
    assert cli.main(["--profile", "tiny", "ask", *words, "hi"]) == 0, "what is named beside it counts more"
    [one] = asked
    assert (one.target, one.context, one.kv, one.knobs.budget) == (target, 512, "q4_0", 7)
    asked.clear()
    again = arguments_again(["--profile", "tiny"], LoadRequest(), "")
    assert cli.main(["ask", *again, "hi"]) == 0, "so are the defaults, which a restart names"
    assert [(one.target, one.draft, one.context, one.kv) for one in asked] == [(None, None, 0, "auto")]


def test_it_counts_over_the_settings(asked: list[LoadRequest], monkeypatch: pytest.MonkeyPatch) -> None:
    target = demo_target_path()
    profile_of("tiny", f"target = '{target}'\n")
    monkeypatch.setenv("DFLASH_TUI_KV", "q4_0")
    monkeypatch.setenv("DFLASH_TUI_TARGET", "/none.gguf")
    monkeypatch.setenv("DFLASH_TUI_DRAFT", "/none")
    assert cli.main(["--profile", "tiny", "ask", "hi"]) == 0
    [one] = asked
    assert (one.target, one.draft, one.kv) == (target, None, "auto")


def test_an_unknown_profile_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    profile_of("tiny", "target = 'demo'\n")
    profile_of("bad", "\ntarget = 3\n")
    for name, why in (("tyni", "there are tiny"), ("bad", "line 2: target: found 3")):
        with pytest.raises(SystemExit) as ended:
            cli.main(["--profile", name, "ask", "hi"])
        assert ended.value.code == 2
        assert why in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["--profile", "tiny", "models"])
    assert "not with models" in capsys.readouterr().err


def test_a_profile_whose_files_moved_says_where_it_looked(
    asked: list[LoadRequest], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile_of("tiny", f"target = '{home}/old/m.gguf'\ndraft = 'text'\n")
    assert cli.main(["--profile", "tiny", "ask", "hi"]) == 1
    error = capsys.readouterr().err
    assert f"profile tiny: {home}/old/m.gguf is not there, and no m.gguf where models are looked for" in error
    assert error.count("\n") == 1
    (home / "models").mkdir()
    (home / "models" / "m.gguf").symlink_to(demo_target_path())
    assert cli.main(["--profile", "tiny", "ask", "hi"]) == 1
    error = capsys.readouterr().err
    words = f"--profile tiny --target {home}/models/m.gguf --draft ngram"
    assert f"is not there, but {home}/models/m.gguf is" in error
    assert words in error
    assert error.count("\n") == 1
    assert not asked
    assert cli.main([*words.split(), "ask", "hi"]) == 0, "what it offers works"
    [one] = asked
    assert one.target == home / "models" / "m.gguf"
