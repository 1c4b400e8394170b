"""Themes: our own two load and are readable; a bad file costs a toast and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.color import Color

from dflash_core.resources import themes_dir
from dflash_tui import cli
from dflash_tui.app import DFlashApp
from dflash_tui.config import load_config, user_file
from dflash_tui.themes import load_themes

from .support import loaded, shows

MakeApp = Callable[..., DFlashApp]


def test_our_themes_load() -> None:
    found = load_themes([themes_dir()])
    assert found.problems == ()
    assert {theme.name for theme in found.themes} >= {"dflash-night", "dflash-paper"}
    assert {theme.dark for theme in found.themes} == {True, False}


@pytest.mark.parametrize("name", ["dflash-night", "dflash-paper"])
def test_text_stands_out(name: str) -> None:
    theme = next(theme for theme in load_themes([themes_dir()]).themes if theme.name == name)
    grounds = [Color.parse(color) for color in (theme.background, theme.surface, theme.panel) if color]
    strong = [theme.foreground]
    marks = [theme.primary, theme.accent, theme.success, theme.warning, theme.error]
    for ground in grounds:
        for colors, least in ((strong, 7.0), (marks, 4.0)):
            for color in colors:
                assert color is not None
                assert Color.parse(color).get_contrast_text is not None
                assert contrast(Color.parse(color), ground) >= least, f"{color} on {ground.hex}"


def contrast(a: Color, b: Color) -> float:
    """The WCAG contrast ratio."""

    def luminance(color: Color) -> float:
        parts = [part / 255 for part in color.rgb]
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("primary = ", "Invalid value"),
        ('name = "x"', "no primary color"),
        ('primary = "#12"', "line 1: primary is '#12'; expected a color"),
        ("primary = 3", "line 1: primary is 3; expected a color"),
        ('primary = "#fff"\ndark = "no"', "line 2: dark is 'no'; expected true or false"),
        ('primary = "#fff"\ncolour = "#fff"', "line 2: unknown key 'colour'"),
        ('primary = "#fff"\nvariables = 3', "line 2: variables is not a table"),
        ('primary = "#fff"\n[variables]\nborder = "#zz"', "line 3: border is '#zz'; expected a color"),
        ('primary = "#fff"\n[variables]\nborder = "#fff most"', "expected a color, or a color and its opacity"),
        ('primary = "#fff"\nname = ""', "name is ''; expected text"),
        ("\xff\xfe", "codec"),
    ],
)
def test_a_bad_file_is_named_with_its_fault(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "bad.toml").write_bytes(text.encode("latin-1"))
    (tmp_path / "good.toml").write_text('primary = "#8899aa"')
    found = load_themes([tmp_path, tmp_path / "missing"])
    assert [theme.name for theme in found.themes] == ["good"]
    assert len(found.problems) == 1
    assert found.problems[0].startswith("bad.toml")
    assert problem in found.problems[0]
    assert "\n" not in found.problems[0]


async def test_bad_files_make_one_toast_and_the_app_starts(make_app: MakeApp, tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d"):
        (tmp_path / f"{name}.toml").write_text("primary = 1")
    app = make_app(theme_dirs=[themes_dir(), tmp_path])
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await loaded(pilot)
        await shows(pilot, "Themes left out", "a.toml", "b.toml", "and 2 more in the log: /log")
        assert len(app._notifications) == 1
        assert app.theme == "dflash-night"


async def test_an_unknown_theme_is_said(make_app: MakeApp) -> None:
    user_file().parent.mkdir(parents=True, exist_ok=True)
    user_file().write_text('mouse = true\ntheme = "dflash-nigth"\n')
    (user_file().parent / "themes").mkdir()
    (user_file().parent / "themes" / "bad.toml").write_text("primary = 1")
    app = make_app(config=load_config({}, {}))
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await loaded(pilot)
        await shows(pilot, "line 2: theme", "'dflash-nigth' is unknown; did you mean", "bad.toml, line 1: primary is 1")
        assert app.theme == "dflash-night"


def test_config_show_says_what_the_app_says(capsys: pytest.CaptureFixture[str]) -> None:
    user_file().parent.mkdir(parents=True, exist_ok=True)
    user_file().write_text('mouse = true\ntheme = "dflash-nigth"\n')
    for kind, text in (("themes", "primary = 1"), ("presets", "[knobs]\nbudget = 0")):
        (user_file().parent / kind).mkdir()
        (user_file().parent / kind / "bad.toml").write_text(text)
    assert cli.main(["config", "show", "--json"]) == 0
    captured = capsys.readouterr()
    assert all(f"dflash-tui: {problem}\n" in captured.err for problem in json.loads(captured.out)["problems"])
    assert f"{user_file()}, line 2: theme 'dflash-nigth' is unknown; did you mean dflash-night?" in captured.err
    assert "bad.toml, line 1: primary is 1" in captured.err
    assert "bad.toml, line 2: knobs.budget: budget=0: expected 1 to 256" in captured.err


async def test_themes_change_live(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        app.theme = "dflash-paper"
        await pilot.pause()
        assert app.chat.styles.background == Color.parse("#f7f4ec")
