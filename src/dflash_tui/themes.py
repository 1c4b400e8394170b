"""Themes from TOML files. A bad file is named with its fault and left out; the others load."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from textual.color import Color, ColorParseError
from textual.theme import Theme

_COLORS = (
    "primary", "secondary", "warning", "error", "success", "accent", "foreground", "background", "surface", "panel",
    "boost",
)  # fmt: skip
_OPACITY = re.compile(r"\d{1,3}(\.\d+)?%")
_KNOWN = {"name", "dark", "variables", *_COLORS}


@dataclass(frozen=True, slots=True)
class Themes:
    """The themes found, and one line for each file that was left out."""

    themes: tuple[Theme, ...] = ()
    problems: tuple[str, ...] = ()


class _BadThemeError(Exception):
    pass


def load_themes(folders: Iterable[Path]) -> Themes:
    """Read every `*.toml` of the folders; later folders win over earlier ones of the same name."""
    found: dict[str, Theme] = {}
    problems: list[str] = []
    for folder in folders:
        for path in sorted(folder.glob("*.toml")) if folder.is_dir() else ():
            try:
                theme = _read(path)
            except (_BadThemeError, OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
                problems.append(f"{path.name}: {' '.join(str(error).split())}")
            else:
                found[theme.name] = theme
    return Themes(tuple(found.values()), tuple(problems))


def _read(path: Path) -> Theme:
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    unknown = sorted(set(table) - _KNOWN)
    if unknown:
        raise _BadThemeError(f"unknown key {unknown[0]!r}; known: {', '.join(sorted(_KNOWN))}")
    name = table.get("name", path.stem)
    if not isinstance(name, str) or not name:
        raise _BadThemeError(f"name is {name!r}; expected text")
    dark = table.get("dark", True)
    if not isinstance(dark, bool):
        raise _BadThemeError(f"dark is {dark!r}; expected true or false")
    if "primary" not in table:
        raise _BadThemeError("no primary color; expected at least primary")
    colors: dict[str, Any] = {key: _color(key, table[key]) for key in _COLORS if key in table}
    variables = table.get("variables", {})
    if not isinstance(variables, dict) or not all(isinstance(value, str) for value in variables.values()):
        raise _BadThemeError('variables is not a table of texts; expected [variables] with name = "value"')
    _check_variables(variables)
    return Theme(name=name, dark=dark, variables=dict(variables), **colors)


def _color(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise _BadThemeError(f'{key} is {value!r}; expected a color such as "#5ec8b0"')
    try:
        Color.parse(value)
    except ColorParseError:
        raise _BadThemeError(f'{key} is {value!r}; expected a color such as "#5ec8b0"') from None
    return value


def _check_variables(variables: dict[str, str]) -> None:
    """Variables that look like colors must be colors; Textual would stop at them in mid-start."""
    for key, value in variables.items():
        word, _, opacity = value.partition(" ")
        if word.startswith("#"):
            _color(key, word)
            if opacity and not _OPACITY.fullmatch(opacity.strip()):
                raise _BadThemeError(f"{key} is {value!r}; expected a color, or a color and its opacity in percent")


assert {field.name for field in fields(Theme)} >= _KNOWN
