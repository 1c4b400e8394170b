"""Themes: our own two load and are readable; a bad file costs a toast and nothing else."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import textual.widgets
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from textual.color import Color
from textual.css.stylesheet import Stylesheet
from textual.style import Style
from textual.theme import BUILTIN_THEMES, Theme

import dflash_tui
from dflash_core.resources import themes_dir
from dflash_tui.app import DFlashApp
from dflash_tui.application.settings.config import load_config, user_file
from dflash_tui.application.settings.toml_file import quoted
from dflash_tui.cli import command_line as cli
from dflash_tui.settings.themes import Themes, load_themes, with_known_theme
from support.grids import full

from .support import loaded, shows

MakeApp = Callable[..., DFlashApp]
SOURCES = Path(dflash_tui.__file__).parent


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


@pytest.mark.parametrize("name", ["dflash-night", "dflash-paper"])
def test_a_block_of_code_has_a_ground_and_an_edge_that_are_seen(name: str) -> None:
    """Regression: in dflash-night its background differed from the page's by one step of a shade."""
    theme = next(theme for theme in load_themes([themes_dir()]).themes if theme.name == name)
    colors = theme.to_color_system().generate()
    page, ground, head = (Color.parse(colors[part]) for part in ("background", "surface", "panel"))
    sheet = (SOURCES / "app.tcss").read_text()
    [rule] = re.findall(r"\.streamed MarkdownFence \{([^}]*)\}", sheet)
    assert "background: $surface;" in rule
    assert "border-left: outer $primary 60%;" in rule
    assert contrast(ground, page) >= 1.08
    assert contrast(head, ground) >= 1.08
    assert contrast(page.blend(Color.parse(colors["primary"]), 0.6), page) >= 2.0


@cache
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
        ('name = "x"', "no primary colour"),
        ('primary = "#12"', "line 1: primary is '#12'; expected a colour"),
        ("primary = 3", "line 1: primary is 3; expected a colour"),
        ('primary = "#fff"\ndark = "no"', "line 2: dark is 'no'; expected true or false"),
        ('primary = "#fff"\ncolour = "#fff"', "line 2: unknown key 'colour'"),
        ('primary = "#fff"\nvariables = 3', "line 2: variables is not a table"),
        ('primary = "#fff"\n[variables]\nborder = "#zz"', "line 3: border is '#zz'; expected a colour"),
        ('primary = "#fff"\n[variables]\nborder = "#fff most"', "expected a colour, or a colour and its opacity"),
        ('primary = "#fff"\nname = ""', "name is ''; expected text"),
        ('primary = "#fff"\nbackground = "transparent"', "line 2: background is 'transparent'; expected an opaque"),
        (
            'primary = "#fff"\n[variables]\nbackground = "red 90%"',
            "line 3: background is 'red 90%'; expected an opaque colour",
        ),
        ('primary = "#fff"\n[variables]\nscrollbar = "nonsense"', "line 3: scrollbar is 'nonsense'; expected a colour"),
        (
            'primary = "#fff"\n[variables]\nborder = "$acent"',
            "line 3: border is '$acent'; there is no $acent; did you m",
        ),
        ('primary = "#fff"\n[variables]\na = "$b"\nb = "$a"', "line 3: a is '$b', which refers back to itself"),
        ('primary = "#fff"\n[variables]\nborder = "auto"', "line 3: border is 'auto'; expected a colour"),
        ('primary = "#fff"\n[variables]\nlink-style = "red"', "line 3: link-style is 'red'; expected text styles"),
        ('primary = "#fff"\n[variables]\nmine = "{"', "line 3: mine is '{'; expected a colour"),
        ('primary = "#fff"\n[variables]\n"a b" = "red"', "'a b' is no name"),
        ("primary = " + "[" * 5000, "too deep"),
        ("primary = " + "9" * 5000, "digits"),
        ("[" + "a." * 50 + "a]\n", "deeper than 20"),
        ("#" * (1 << 21), "holds more than 1,048,576 bytes"),
        ("\xff\xfe", "is not UTF-8"),
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


FIFO = "FIFO, expected a regular file; write its output to a file first"


def test_a_pipe_among_the_themes_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "bad.toml")
    assert load_themes([tmp_path]).problems == (f"bad.toml: is a {FIFO}",)


def themed(tmp_path: Path, text: str) -> Themes:
    (tmp_path / "mine.toml").write_text(text)
    return load_themes([tmp_path])


def test_variables_may_refer_to_others(tmp_path: Path) -> None:
    text = 'primary = "#fff"\naccent = "#102030"\n[variables]\nink = "$accent"\nborder = "$ink 50%"\ntext = "auto 70%"'
    found = themed(tmp_path, text)
    assert found.problems == ()
    assert found.themes[0].variables == {"ink": "#102030", "border": "#1020307F", "text": "auto 70%"}


def test_every_variable_of_textuals_own_themes_may_be_written(tmp_path: Path) -> None:
    for theme in BUILTIN_THEMES.values():
        if not theme.ansi:
            generated = dict(theme.to_color_system().generate())
            lines = [f"{name} = {quoted(value)}" for name, value in generated.items()]
            found = themed(tmp_path, 'primary = "#88aaff"\n[variables]\n' + "\n".join(lines))
            assert found.problems == ()


OWN = sorted(Theme("any", "#88aaff").to_color_system().generate())
COLORS = [name for name in Theme.__dataclass_fields__ if name not in {"name", "dark", "variables", "ansi"}]
TEXTS = "".join(path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.py"))
USED = sorted(set(OWN).intersection(re.findall(r'"[^"\n]*\$([a-z-]+)', TEXTS)))
VALUES = st.one_of(
    st.sampled_from(
        ["transparent", "auto", "initial", "none", "bold", "not", "not bold", "ansi_default", "ansi_red", ""]
    ),
    st.sampled_from(
        ["#fff", "#12345678", "red", "rgb(1, 2, 3)", "hsl(10,20%,30%)", "$accent", "$text", "$link-style", "$x"]
    ),
    st.from_regex(r"(#[0-9a-f]{3,8}|auto|ansi_blue|\$[a-z]{1,6}|red)( [0-9]{1,4}%)?( [a-z%]{1,5})?", fullmatch=True),
    st.text(max_size=12),
    st.text(alphabet="#$%(){}[];:!,./*'\"\\0aF \n", max_size=8),
)


@pytest.fixture(scope="module")
def sheet() -> Stylesheet:
    """Every rule of the app and of every widget that Textual has."""
    sheet = Stylesheet()
    for name in textual.widgets.__all__:
        sheet.add_source(getattr(textual.widgets, name).DEFAULT_CSS, (name, ""))
    sheet.read(DFlashApp.CSS_PATH)
    for path in SOURCES.rglob("*.py"):
        for number, css in enumerate(re.findall(r'DEFAULT_CSS = """(.*?)"""', path.read_text(), re.DOTALL)):
            sheet.add_source(css, (str(path), str(number)))
    return sheet


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.dictionaries(st.sampled_from(COLORS), VALUES, max_size=2),
    st.dictionaries(st.one_of(st.sampled_from(OWN), st.sampled_from(USED), st.text(max_size=4)), VALUES, max_size=3),
)
def test_whatever_a_theme_says_it_loads_or_is_named(
    tmp_path: Path, sheet: Stylesheet, colors: dict[str, str], variables: dict[str, str]
) -> None:
    """What loads can be drawn with: every rule, and every style that the app writes into its texts."""
    tables = [
        "\n".join(f"{quoted(name)} = {quoted(value)}" for name, value in one.items()) for one in (colors, variables)
    ]
    primary = "" if "primary" in colors else 'primary = "#88aaff"\n'
    found = themed(tmp_path, f"{primary}{tables[0]}\n[variables]\n{tables[1]}")
    assert len(found.themes) + len(found.problems) == 1
    assert all(problem.startswith("mine.toml, line ") for problem in found.problems)
    for theme in found.themes:
        every = theme.to_color_system().generate()
        sheet.set_variables(every)
        sheet.reparse()
        for name in USED:
            for opacity in ("", " 70%"):
                Style.parse(f"${name}{opacity}", every)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (field, value) if field == "background" or value == "$surface" else full(field, value)
        for value in ("ansi_default", "$surface", "#00000001", "red 0%")
        for field in ("background", "panel")
    ],
)
async def test_the_app_starts_with_it_or_without(make_app: MakeApp, tmp_path: Path, field: str, value: str) -> None:
    (tmp_path / "mine.toml").write_text(f'primary = "#88aaff"\n[variables]\n{field} = "{value}"')
    app = make_app(theme_dirs=[themes_dir(), tmp_path], theme="mine")
    async with app.run_test(size=(80, 24)) as pilot:
        await loaded(pilot)
        assert (app.theme == "mine") is (field != "background" or value in ("ansi_default", "$surface"))


async def test_bad_files_make_one_toast_and_the_app_starts(make_app: MakeApp, tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d"):
        (tmp_path / f"{name}.toml").write_text("primary = 1")
    app = make_app(theme_dirs=[themes_dir(), tmp_path])
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await loaded(pilot)
        await shows(
            pilot,
            "Themes left out",
            "These themes cannot be used; the colours are those of",
            "a.toml",
            "b.toml",
            "and 2 more in the log: /log",
        )
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


@pytest.mark.parametrize(
    ("user", "environment", "given", "theme", "said"),
    [
        ("dflash-paper", "nigth", {}, "dflash-paper", ["'nigth'"]),
        ("dflash-paper", "nigth", {"theme": "dusk"}, "dflash-paper", ["'dusk'", "'nigth'"]),
        ("nigth", "dflash-paper", {"theme": "dusk"}, "dflash-paper", ["'dusk'"]),
        ("dflash-paper", "nigth", {"theme": "nord"}, "nord", []),
        ("dusk", "nigth", {}, "dflash-night", ["'nigth'", "'dusk'"]),
    ],
)
async def test_a_theme_that_is_not_there_gives_way_to_that_of_the_next_source(
    make_app: MakeApp, user: str, environment: str, given: dict[str, str], theme: str, said: list[str]
) -> None:
    """In the app and in `config show`."""
    user_file().parent.mkdir(parents=True, exist_ok=True)
    user_file().write_text(f'theme = "{user}"\n')
    config = load_config(given, {"DFLASH_TUI_THEME": environment})
    app = make_app(config=config)
    assert app.theme == app.settings.theme == theme
    found, problems = with_known_theme(config, app.available_themes)
    assert (found.settings.theme, problems) == (theme, app._theme_problems)
    assert [next(word for word in said if word in line) for line in problems] == said
    stands = f"{found.origins['theme']} is used" if "theme" in found.origins else "dflash-night is used"
    assert all(line.endswith(stands) for line in problems)
    assert ("theme" in found.origins) is (theme != "dflash-night")


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


READABLE = 4.5  # WCAG AA
STYLE = re.compile(r"\$(foreground|primary|accent|success|warning|error)\b(?: (\d+)%)?")
LINES_ONLY = {"step_text.py", "slider.py", "strip.py", "plan.py", "table.py"}  # branches, a track, a legend: no text


@pytest.mark.parametrize("name", ["dflash-night", "dflash-paper"])
def test_every_color_that_text_has_is_readable(name: str) -> None:
    """Colors of the sources, as they are drawn: blended with each background that text stands on."""
    theme = next(theme for theme in load_themes([themes_dir()]).themes if theme.name == name)
    colors = theme.to_color_system().generate()
    grounds = [Color.parse(colors[ground]) for ground in ("background", "surface", "panel")]
    used: set[tuple[str, int]] = set()
    for path in sorted(SOURCES.rglob("*.py")):
        for color, share in re.findall(
            r"\$(foreground|primary|secondary|accent|success|warning|error)\b(?: (\d+)%)?", path.read_text()
        ):
            if not (path.name in LINES_ONLY and share and int(share) <= 60):
                used.add((color, int(share or 100)))
    sheet = (SOURCES / "app.tcss").read_text()
    for rule in re.findall(r"\{([^}]*)\}", sheet):
        own = re.search(r"(?<![-\w])background: \$(\w+);", rule)
        for color, share in re.findall(r"(?<![-\w])color: \$(\w+)(?: (\d+)%)?", rule):
            if own and own[1] == "accent":  # a ground of its own: text stands on nothing else there
                assert contrast(Color.parse(colors[color]), Color.parse(colors["accent"])) >= READABLE, rule
            else:
                used.add((color, int(share or 100)))
    assert ("foreground", 75) in used
    for color, share in sorted(used):
        if color not in colors:
            continue
        for ground in grounds:
            drawn = ground.blend(Color.parse(colors[color]), share / 100)
            assert contrast(drawn, ground) >= READABLE, f"${color} {share}% on {ground.hex}"
    footer = Color.parse(colors["footer-background"])
    for part in ("footer-key-foreground", "footer-description-foreground", "footer-foreground"):
        assert contrast(Color.parse(colors[part]), footer) >= READABLE, part
