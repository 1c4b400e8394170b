"""Themes from TOML files. An invalid file is reported and left out; the others load."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from rich.errors import StyleSyntaxError
from rich.style import Style
from textual.color import Color, ColorParseError
from textual.css.constants import VALID_STYLE_FLAGS
from textual.theme import Theme

from dflash_core.errors import DFlashError
from dflash_core.resources import themes_dir
from dflash_tui.application.settings.config import DEFAULT_THEME, Config, config_folder
from dflash_tui.application.settings.toml_file import TomlError, line_of, read_toml

GROUND = "background"  # the backmost colour: Textual's editor cannot be drawn if it is transparent
OPAQUE = "expected an opaque colour"
_NAME = re.compile(r"[a-zA-Z][\w-]*", re.ASCII)
_REFERENCE = re.compile(r"\$([a-zA-Z][\w-]*)", re.ASCII)
_OPACITY = re.compile(r"(.+?)\s+(\d{1,3}(?:\.\d{1,6})?)%", re.DOTALL | re.ASCII)


class _BadThemeError(Exception):
    """`field` is the dotted name of the invalid entry, if the error concerns one."""

    def __init__(self, what: str, field: str = "") -> None:
        super().__init__(what)
        self.field = field


def _wrong(name: str, value: object, problem: str, table: str = "") -> _BadThemeError:
    return _BadThemeError(f"{name} is {_shown(value)}{problem}", table + name)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


def _variable(name: str, variables: Mapping[str, str], generated: Mapping[str, str]) -> str:
    """The value of a variable, its references resolved. `generated`: the theme's other variables."""
    if not _NAME.fullmatch(name):
        raise _BadThemeError(f"{_shown(name)} is no name; expected letters, digits, - and _", f"variables.{name}")
    text = _followed(name, variables, generated)
    own = generated.get(name, "")
    if text == own or (own.startswith("auto") and _is_auto(text)):
        return text
    # The type follows Textual's own value. A name that Textual does not know may have either type.
    style, color, own_style = _is_style(text), _as_color(text), _is_style(own)
    if color is not None and name == GROUND and Color.parse(color).a < 1:
        raise _wrong(name, variables[name], f"; {OPAQUE}", "variables.")
    if color is not None and not own_style:
        return color
    if style and (own_style or not own):
        return text
    expected = "text styles" if own_style else "a colour, or a colour and its opacity in percent"
    expected += "" if own else ", or text styles"
    raise _wrong(name, variables[name], f"; expected {expected}", "variables.")


def _followed(name: str, variables: Mapping[str, str], generated: Mapping[str, str]) -> str:
    """The value with each `$name` replaced by its variable, recursively."""
    text, seen = variables[name].strip(), {name}
    while (found := _REFERENCE.match(text)) is not None:
        other = found[1]
        if other in seen:
            raise _wrong(name, variables[name], ", which refers back to itself", "variables.")
        value = variables.get(other, generated.get(other))
        if value is None:
            near = difflib.get_close_matches(other, [*variables, *generated], n=1)
            hint = f"; did you mean ${near[0]}?" if near else ""
            raise _wrong(name, variables[name], f"; there is no ${other}{hint}", "variables.")
        seen.add(other)
        text = value.strip() + text[found.end() :]
    return text


def _is_auto(text: str) -> bool:
    match = _OPACITY.fullmatch(text)
    return text == "auto" or (match is not None and match[1] == "auto" and float(match[2]) <= 100)


def _is_style(text: str) -> bool:
    words = text.split()
    if not words or not VALID_STYLE_FLAGS.issuperset(words):
        return False
    try:
        Style.parse(text)
    except StyleSyntaxError:
        return False
    return True


def _as_color(text: str) -> str | None:
    """A colour in Textual's own notation; None if the value is none."""
    match = _OPACITY.fullmatch(text)
    text, opacity = (match[1], float(match[2])) if match is not None else (text, 100.0)
    try:
        color = Color.parse(text)
    except ColorParseError:
        return None
    if opacity > 100:
        return None
    if color.ansi is not None:
        return color.hex if opacity == 100 else f"{color.hex} {opacity:g}%"
    return color.with_alpha(color.a * opacity / 100).hex if opacity < 100 else color.hex


_COLORS = (
    "primary", "secondary", "warning", "error", "success", "accent", "foreground", "background", "surface", "panel",
    "boost",
)  # fmt: skip
_KNOWN = {"name", "dark", "variables", *_COLORS}


@dataclass(frozen=True, slots=True)
class Themes:
    """The themes found, and one line for each file that was left out."""

    themes: tuple[Theme, ...] = ()
    problems: tuple[str, ...] = ()


def installed() -> Themes:
    """The app's themes, and those of the user's configuration folder."""
    own = config_folder() / "themes"
    try:
        return load_themes([themes_dir(), own])
    except DFlashError as error:
        found = load_themes([own])
        return replace(found, problems=(str(error), *found.problems))


def with_known_theme(config: Config, known: Iterable[str]) -> tuple[Config, list[str]]:
    """The settings with the first theme that exists of those that the sources name, else with the default; and a line
    for each that does not."""
    names = sorted(known)
    asked = config.themes or ((config.settings.theme, config.origins.get("theme", "")),)
    place = next((place for place, (name, _) in enumerate(asked) if name in names), len(asked))
    origins = {name: origin for name, origin in config.origins.items() if name != "theme"}
    theme, used = DEFAULT_THEME, DEFAULT_THEME
    if place < len(asked):
        theme, origin = asked[place]
        origins |= {"theme": origin} if origin else {}
        used = f"{theme} of the {origin}" if origin else theme
    problems = []
    for name, origin in asked[:place]:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]}?" if near else "/theme lists them"
        problems.append(f"{origin}{': ' if origin else ''}theme {name!r} is unknown; {hint}; {used} is used")
    return replace(config, settings=replace(config.settings, theme=theme), origins=origins), problems


def load_themes(folders: Iterable[Path]) -> Themes:
    """Read every `*.toml` of the folders; later folders win over earlier ones of the same name."""
    found: dict[str, Theme] = {}
    problems: list[str] = []
    for folder in folders:
        for path in sorted(folder.glob("*.toml")) if folder.is_dir() else ():
            try:
                text, table = read_toml(path)
                theme = _read(table, path.stem)
                found[theme.name] = theme
            except TomlError as error:
                problems.append(f"{path.name}: {error}")
            except _BadThemeError as error:
                line = f", line {line_of(text, error.field)}" if error.field else ""
                problems.append(f"{path.name}{line}: {error}")
    return Themes(tuple(found.values()), tuple(problems))


def _read(table: Mapping[str, Any], stem: str) -> Theme:
    if unknown := sorted(set(table) - _KNOWN):
        raise _BadThemeError(f"unknown key {_shown(unknown[0])}; known: {', '.join(sorted(_KNOWN))}", unknown[0])
    name, dark, variables = table.get("name", stem), table.get("dark", True), table.get("variables", {})
    if not isinstance(name, str) or not name:
        raise _wrong("name", name, "; expected text")
    if not isinstance(dark, bool):
        raise _wrong("dark", dark, "; expected true or false")
    if "primary" not in table:
        raise _BadThemeError("no primary colour; expected at least primary")
    colors: dict[str, Any] = {key: _color(key, table[key]) for key in _COLORS if key in table}
    if not isinstance(variables, dict) or not all(isinstance(value, str) for value in variables.values()):
        raise _BadThemeError('variables is not a table of texts; expected [variables] with name = "value"', "variables")
    theme = Theme(name=name, dark=dark, **colors)
    generated = theme.to_color_system().generate()
    theme.variables = {name: _variable(name, variables, generated) for name in variables}
    return theme


def _color(key: str, value: object) -> str:
    try:
        color = Color.parse(value) if isinstance(value, str) else None
    except ColorParseError:
        color = None
    if color is None or not isinstance(value, str):
        raise _wrong(key, value, '; expected a colour such as "#5ec8b0"')
    if key == GROUND and color.a < 1:
        raise _wrong(key, value, f"; {OPAQUE}")
    return value


assert {field.name for field in fields(Theme)} >= _KNOWN
