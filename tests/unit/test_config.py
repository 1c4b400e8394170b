"""Settings: the order of their sources, what is wrong with an entry, and a choice that is remembered."""

from __future__ import annotations

import itertools
import json
import tomllib
from pathlib import Path

import pytest

from dflash_tui.application.hub.walk import places
from dflash_tui.application.settings.config import (
    Config,
    ConfigError,
    Settings,
    load_config,
    remember,
    user_file,
)
from dflash_tui.application.settings.toml_file import line_of
from dflash_tui.cli import command_line as cli
from dflash_tui.cli.command_line import key_rules
from dflash_tui.settings.keys import ACTIONS, with_keys

SOURCES = ("user file", "project file", "environment", "command line")


def config(folder: Path, *, user: str = "", project: str = "", environment: dict[str, str] | None = None) -> Config:
    files = {"user": folder / "config.toml", "project": folder / "dflash-tui.toml"}
    files["user"].write_text(user, encoding="utf-8")
    files["project"].write_text(project, encoding="utf-8")
    return load_config({}, environment or {}, key_rules=key_rules, **files)


@pytest.mark.parametrize("given", [given for n in range(5) for given in itertools.combinations(SOURCES, n)], ids=str)
def test_the_order_of_the_sources(tmp_path: Path, given: tuple[str, ...]) -> None:
    """Every combination of sources: the last of the order that is given wins, for a setting and for a parameter."""
    user, project = tmp_path / "config.toml", tmp_path / "dflash-tui.toml"
    if "user file" in given:
        user.write_text('theme = "user file"\n[knobs]\nbudget = 1\n')
    if "project file" in given:
        project.write_text('theme = "project file"\n[knobs]\nbudget = 2\n')
    environment = {"DFLASH_TUI_THEME": "environment", "DFLASH_TUI_BUDGET": "3"} if "environment" in given else {}
    line = {"theme": "command line", "knobs.budget": 4} if "command line" in given else {}
    found = load_config(line, environment, user=user, project=project, key_rules=key_rules)
    winner = next((source for source in reversed(SOURCES) if source in given), None)
    assert found.settings.theme == (winner or Settings().theme)
    assert found.settings.knobs.budget == (SOURCES.index(winner) + 1 if winner else 22)
    for name in ("theme", "knobs.drafting"):
        assert found.origins.get(name, "default").startswith(winner or "default")
    assert found.problems == ()


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("mouse = 1", "line 2: mouse: found 1, expected true or false; the default is used"),
        ('device = "tpu"', "line 2: device: found 'tpu', expected auto, cpu, cuda; the default is used"),
        ("notify_after = -1", "line 2: notify_after: found -1, expected seconds, 0 or more"),
        ("theme = 3", "line 2: theme: found 3, expected text"),
        ("them = 3", "line 2: unknown setting 'them'; did you mean theme?"),
        ("[knobs]\nbudget = 0", "line 3: knobs.budget: budget=0: expected 1 to 256"),
        ("[knobs]\nbudgett = 1", "line 3: unknown setting 'knobs.budgett'; did you mean knobs.budget?"),
        ('[keys]\n"turn.stop" = 4', "line 3: keys.turn.stop: found 4, expected keys by commas"),
    ],
)
def test_a_wrong_entry_is_named_and_the_rest_is_used(tmp_path: Path, entry: str, says: str) -> None:
    found = config(tmp_path, user=f'log_level = "debug"\n{entry}\n')
    [problem] = found.problems
    assert str(tmp_path / "config.toml") in problem
    assert says in problem
    assert found.settings.log_level == "debug"
    assert found.settings.theme == Settings().theme
    assert found.settings.knobs == Settings().knobs


def test_a_wrong_entry_leaves_the_one_below_it(tmp_path: Path) -> None:
    environment = {"DFLASH_TUI_MOUSE": "perhaps", "DFLASH_TUI_X": "1", "DFLASH_TUI_API_KEY": "no setting"}
    found = config(tmp_path, user='theme = "mine"', environment=environment)
    assert found.settings.theme == "mine"
    named = {problem.split(":")[0] for problem in found.problems}
    assert named == {"environment DFLASH_TUI_X", "environment DFLASH_TUI_MOUSE"}
    below = config(tmp_path, user="mouse = false", project="mouse = 3")
    assert not below.settings.mouse
    assert "user file" in below.problems[0].split(";")[-1], "it says what stands instead"


@pytest.mark.parametrize("text", [b"theme = \n", b"\xff\xfe", b"[knobs\n"])
def test_a_broken_file_is_named_and_not_used(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(text)
    found = load_config({}, {}, user=path, project=tmp_path / "none", key_rules=key_rules)
    assert found.settings == Settings()
    [problem] = found.problems
    assert str(path) in problem
    assert len(problem.splitlines()) == 1


def test_paths_are_those_of_the_file(tmp_path: Path) -> None:
    found = config(tmp_path, user='target = "models/x.gguf"\ndraft = ""\n')
    assert found.settings.target == tmp_path / "models" / "x.gguf"
    assert found.settings.draft is None


def test_a_folder_that_is_gone_is_replaced_by_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(folder)
    folder.rmdir()
    (tmp_path / "dflash-tui.toml").write_text('target = "m.gguf"\n')
    assert load_config({}, {}, user=tmp_path / "none").settings.target == tmp_path / "m.gguf"
    assert places(environment={}, home=tmp_path)[0].folder == tmp_path


def test_a_drafter_goes_with_its_target(tmp_path: Path) -> None:
    user = 'target = "a.gguf"\ndraft = "b"\n'
    assert config(tmp_path, user=user).settings.draft == tmp_path / "b"
    other = config(tmp_path, user=user, project='target = "c.gguf"')
    assert other.settings.target == tmp_path / "c.gguf"
    assert other.settings.draft is None, "the drafter of another target"


@pytest.mark.parametrize(
    "before",
    [
        "",
        'theme = "old"\n',
        '# mine\n\ntheme="old" # why\nmouse = false\n\n[knobs]\nbudget = 3\n',
        "[knobs]\nbudget = 3",
    ],
)
def test_a_choice_is_remembered_and_the_rest_stands(tmp_path: Path, before: str) -> None:
    path = tmp_path / "new" / "config.toml"
    if before:
        path.parent.mkdir()
        path.write_text(before)
    remember("theme", 'a "quoted" name', path)
    table = tomllib.loads(path.read_text())
    assert table == {**tomllib.loads(before), "theme": 'a "quoted" name'}
    assert [line for line in before.splitlines() if line.startswith("#")] == [
        line for line in path.read_text().splitlines() if line.startswith("#")
    ]
    assert list(path.parent.iterdir()) == [path], "no partial file is left"


def test_a_choice_that_cannot_be_remembered_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        remember("theme", "x", tmp_path / "file" / "config.toml")
    broken = tmp_path / "config.toml"
    broken.write_text("theme = ")
    with pytest.raises(ConfigError, match="cannot be changed"):
        remember("mouse", True, broken)
    assert broken.read_text() == "theme = "


def test_lines() -> None:
    text = 'a = 1\n\n[knobs]\n# budget = 1\n"budget" = 2\n[ keys ]\n"turn.stop" = "x"\n'
    assert [line_of(text, name) for name in ("a", "knobs.budget", "keys.turn.stop", "nowhere")] == [1, 5, 7, 1]


# Keys


def remapped(folder: Path, keys: dict[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    found = config(folder, user="[keys]\n" + "".join(f'"{id}" = "{key}"\n' for id, key in keys.items()))
    return dict(found.settings.keys), found.problems


def test_keys_are_remapped(tmp_path: Path) -> None:
    keymap, problems = remapped(tmp_path, {"turn.retry": "f10, alt+y", "view.side": ""})
    assert problems == ()
    assert keymap == {"turn.retry": "f10,alt+y", "view.side": ""}
    shown = {one.id: one.shown for one in with_keys(keymap)}
    assert shown["turn.retry"] == "F10  Alt+Y"
    assert shown["view.side"] == ""


def test_keys_may_be_swapped(tmp_path: Path) -> None:
    swapped = {"view.params": "f3", "view.stats": "f2"}
    assert remapped(tmp_path, swapped) == (swapped, ())


@pytest.mark.parametrize(
    ("id", "keys", "says"),
    [
        ("turn.retri", "f7", "turn.retri: no such action; did you mean turn.retry?"),
        ("turn.send", "f7", "turn.send: its keys are fixed"),
        ("turn.retry", "strg-r", "turn.retry: 'strg-r' is no key"),
        ("turn.retry", "strg+r", "turn.retry: 'strg+r' is no key"),
        ("turn.retry", "f10,f25", "turn.retry: 'f25' is no key"),
        ("turn.retry", "ctrl+", "turn.retry: 'ctrl+' is no key"),
        ("turn.retry", "ctrl+i", "turn.retry: terminals send ctrl+i as another key"),
        ("turn.retry", "f7", "turn.retry: the prompt needs f7 for typing"),
        ("turn.retry", "x", "turn.retry: the prompt needs x for typing"),
        ("turn.retry", "f2", "turn.retry: f2 belongs to view.params"),
    ],
)
def test_a_wrong_key_is_named_and_the_default_stays(tmp_path: Path, id: str, keys: str, says: str) -> None:
    keymap, [problem] = remapped(tmp_path, {id: keys})
    assert says in problem
    assert keymap == {}


def test_a_refused_entry_takes_along_what_only_it_made_possible(tmp_path: Path) -> None:
    """F2 would be free if the parameters had moved to F3 and Ctrl+B; they have not, so the stats cannot have it."""
    keymap, problems = remapped(tmp_path, {"view.params": "f3,ctrl+b", "view.stats": "f2"})
    assert keymap == {}
    assert [problem.partition(": keys.")[2] for problem in problems] == [
        "view.params: ctrl+b belongs to view.side; give that one another key first; the default is used",
        "view.stats: f2 belongs to view.params; give that one another key first; the default is used",
    ]


@pytest.mark.parametrize("key", ["backslash", "minus", "full_stop", "alt+up", "ctrl+shift+f5", "space"])
def test_keys_by_their_names(tmp_path: Path, key: str) -> None:
    assert remapped(tmp_path, {"chats.new": key}) == ({"chats.new": key}, ())


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ('"turn.retri" = "f10"', "line 2: keys.turn.retri: no such action; did you mean turn.retry?"),
        ('"turn.retry" = "f99"', "line 2: keys.turn.retry: 'f99' is no key; write it as ctrl+r, f10 or alt+up"),
        ('"turn.retry" = "f10"\n"turn.edit" = "f10"', "line 3: keys.turn.edit: f10 was given to turn.retry too"),
        ('turn.retry = "f2"', "line 2: keys.turn.retry: f2 belongs to view.params; give that one another key first"),
    ],
)
def test_wrong_keys_are_named_with_their_line(tmp_path: Path, entries: str, says: str) -> None:
    found = config(tmp_path, user=f"[keys]\n{entries}\n")
    [problem] = found.problems
    assert problem.startswith(f"user file {tmp_path / 'config.toml'}, {says}")
    assert problem.endswith("the default is used")
    refused = problem.split("keys.")[1].split(":")[0]
    assert refused not in found.settings.keys
    assert f"keys.{refused}" not in found.origins


def test_wrong_keys_leave_those_of_the_file_below(tmp_path: Path) -> None:
    found = config(tmp_path, user='[keys]\n"turn.retry" = "F10"', project='[keys]\n"turn.retry" = "f99"')
    assert found.settings.keys == {"turn.retry": "f10"}
    assert found.problems[0].endswith(f"user file {tmp_path / 'config.toml'}, line 2 is used")


def test_the_table_itself_has_no_double_keys() -> None:
    for scope in {one.scope for one in ACTIONS}:
        keys = [key for one in ACTIONS if one.scope == scope for key in one.keys.split(",") if key]
        assert len(keys) == len(set(keys)), scope


# The command


def test_config_show_names_origins(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    user_file().parent.mkdir(parents=True, exist_ok=True)
    user_file().write_text('theme = "dflash-paper"\nmouse = 3\n[keys]\n"turn.retry" = "f10"\n"turn.edit" = "f7"\n')
    monkeypatch.setenv("DFLASH_TUI_TEMPERATURE", "0.5")
    assert cli.main(["--set", "budget=7", "config", "show", "--origin"]) == 0
    captured = capsys.readouterr()
    lines = {line.split(" = ")[0]: line for line in captured.out.splitlines() if " = " in line}
    assert lines["theme"].endswith(f"# user file {user_file()}, line 1")
    assert lines["drafting"].endswith("# command line")
    assert lines["temperature"].endswith("# environment DFLASH_TUI_TEMPERATURE")
    assert lines["top_k"].endswith("# default")
    assert lines['"turn.retry"'].startswith('"turn.retry" = "f10"')
    assert lines['"turn.retry"'].endswith("line 4")
    assert lines['"turn.edit"'].startswith('"turn.edit" = "alt+e"')
    assert lines['"turn.edit"'].endswith("# default")
    assert "line 2: mouse" in captured.err
    assert "line 5: keys.turn.edit: the prompt needs f7 for typing" in captured.err
    tomllib.loads(captured.out)


def test_config_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "--json", "--set", "budget=7"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["settings"]["knobs.drafting"] == "tree 7"
    assert shown["origins"]["knobs.drafting"] == "command line"
    assert shown["origins"]["theme"] == "default"
    assert shown["problems"] == []


def test_the_theme_that_is_shown_is_the_one_in_effect(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--theme", "nope", "config", "show", "--origin"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[0].split() == ["theme", "=", '"dflash-night"', "#", "default"]
    assert said.err == "dflash-tui: command line: theme 'nope' is unknown; /theme lists them; dflash-night is used\n"


def test_what_is_shown_can_be_put_into_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["config", "--set", "budget=7"])  # every setting and every key, as they are
    user_file().parent.mkdir(parents=True, exist_ok=True)
    user_file().write_text(capsys.readouterr().out)
    found = load_config({}, {}, project=Path("none"), key_rules=key_rules)
    assert found.problems == ()
    assert found.settings.knobs.budget == 7


def test_a_configured_file_that_is_gone_is_named_with_its_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    user_file().parent.mkdir(parents=True, exist_ok=True)
    user_file().write_text(f'\ntarget = "{tmp_path}/gone.gguf"\n')
    assert cli.main(["ask", "hi"]) == 1
    error = capsys.readouterr().err
    assert f"user file {user_file()}, line 2: target {tmp_path}/gone.gguf: no such file" in error
    assert cli.main(["config", "path", "--json"]) == 0  # commands that need no model still work
    assert json.loads(capsys.readouterr().out)["user"] == {"path": str(user_file()), "exists": True}
    assert cli.main(["config", "show"]) == 0
    assert "gone.gguf" in capsys.readouterr().out
    assert cli.main(["inspect"]) == 1
    assert capsys.readouterr().err.count("gone.gguf") == 1
