"""The variables of a theme, resolved to values that Textual accepts: a color, `auto`, or text styles.

Textual reads them only while it styles the screen, and a value that it does not understand ends the app.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from rich.errors import StyleSyntaxError
from rich.style import Style
from textual.color import Color, ColorParseError
from textual.css.constants import VALID_STYLE_FLAGS

GROUND = "background"  # the backmost color: Textual's editor cannot be drawn if it is transparent
OPAQUE = "expected an opaque color"
_NAME = re.compile(r"[a-zA-Z][\w-]*", re.ASCII)
_REFERENCE = re.compile(r"\$([a-zA-Z][\w-]*)", re.ASCII)
_OPACITY = re.compile(r"(.+?)\s+(\d{1,3}(?:\.\d{1,6})?)%", re.DOTALL | re.ASCII)


class BadVariableError(Exception):
    """The variable `name` has an unusable value."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(what)
        self.name = name


def shown(value: object) -> str:
    """A value of a file as shown in an error line."""
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


def resolved(variables: Mapping[str, str], generated: Mapping[str, str]) -> dict[str, str]:
    """Resolve the references in `variables`. `generated`: the theme's other variables. Raises BadVariableError."""
    return {name: _value(name, variables, generated) for name in variables}


def _value(name: str, variables: Mapping[str, str], generated: Mapping[str, str]) -> str:
    if not _NAME.fullmatch(name):
        raise BadVariableError(name, f"{shown(name)} is no name; expected letters, digits, - and _")
    text = _followed(name, variables, generated)
    own = generated.get(name, "")
    if text == own or (own.startswith("auto") and _is_auto(text)):
        return text
    # The type follows Textual's own value. A name that Textual does not know may have either type.
    style, color = _is_style(text), _as_color(text)
    if color is not None and name == GROUND and Color.parse(color).a < 1:
        raise BadVariableError(name, f"{name} is {shown(variables[name])}; {OPAQUE}")
    if color is not None and not (own and _is_style(own)):
        return color
    if style and not (own and not _is_style(own)):
        return text
    expected = "a color, or a color and its opacity in percent" if not own or not _is_style(own) else "text styles"
    if not own:
        expected += ", or text styles"
    raise BadVariableError(name, f"{name} is {shown(variables[name])}; expected {expected}")


def _followed(name: str, variables: Mapping[str, str], generated: Mapping[str, str]) -> str:
    """The value with each `$name` replaced by its variable, recursively."""
    text, seen = variables[name].strip(), {name}
    while (found := _REFERENCE.match(text)) is not None:
        other = found[1]
        if other in seen:
            raise BadVariableError(name, f"{name} is {shown(variables[name])}, which refers back to itself")
        value = variables.get(other, generated.get(other))
        if value is None:
            near = difflib.get_close_matches(other, [*variables, *generated], n=1)
            hint = f"; did you mean ${near[0]}?" if near else ""
            raise BadVariableError(name, f"{name} is {shown(variables[name])}; there is no ${other}{hint}")
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
    """A color in Textual's own notation; None if the value is no color."""
    opacity = 100.0
    if (match := _OPACITY.fullmatch(text)) is not None:
        text, opacity = match[1], float(match[2])
    try:
        color = Color.parse(text)
    except ColorParseError:
        return None
    if opacity > 100:
        return None
    if color.ansi is not None:
        return color.hex if opacity == 100 else f"{color.hex} {opacity:g}%"
    return color.with_alpha(color.a * opacity / 100).hex if opacity < 100 else color.hex
