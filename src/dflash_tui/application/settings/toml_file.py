"""Reads the TOML files that users write: settings, themes, presets, profiles."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dflash_core.errors import DFlashError, InputError, KnobError
from dflash_core.files import read_input
from dflash_core.knobs import SPEC, Value, spec_of

MOST_BYTES = 1 << 20
DEEPEST = 20  # levels of nested tables


class TomlError(DFlashError):
    """A file that is not TOML, or is nested too deep; the message is one line."""


def read_toml(path: Path, *, optional: bool = False) -> tuple[str, dict[str, Any]]:
    """The text of a file and its parsed contents; both empty if an `optional` file is missing. Raises TomlError."""
    try:
        data = read_input(path, MOST_BYTES)
    except InputError as error:
        raise TomlError(error.what) from None
    except OSError as error:
        if optional and isinstance(error, FileNotFoundError | NotADirectoryError):
            return "", {}
        raise TomlError(error.strerror or str(error)) from None
    try:
        text = data.decode("utf-8")
        table = tomllib.loads(text)
    except RecursionError:
        raise TomlError("values nested too deep") from None
    except ValueError as error:  # not UTF-8, not TOML, or a number of thousands of digits
        raise TomlError(" ".join(str(error).split())) from None
    if _deeper(table, DEEPEST):
        raise TomlError(f"tables nested deeper than {DEEPEST}")
    return text, table


def checked_knobs(entry: object, problem: Callable[[str, str], None]) -> dict[str, Value]:
    """The parameters of a table `knobs`. Each invalid field is passed to `problem`, and its default is used."""
    if not isinstance(entry, dict):
        problem("knobs", f"found {entry!r}, expected a table")
        return {}
    found: dict[str, Value] = {}
    for name, value in entry.items():
        try:
            found[name] = spec_of(name).check(value)
        except KnobError as error:
            default = f"; its default, {SPEC[name].show(SPEC[name].default)}, is used" if name in SPEC else ""
            problem(f"knobs.{name}", f"{error}{default}")
    return found


def _deeper(value: object, levels: int) -> bool:
    if not isinstance(value, (dict, list)):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_deeper(one, levels - 1) for one in inner)


def line_of(text: str, name: str) -> int:
    """The line, from 1, that sets `name` (dotted, as in `origins`) or begins a table of that name; 1 for neither.

    tomllib keeps no positions. Tables and keys are matched by line, which is enough to point a reader at the place.
    """
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+([^\]]+)\]+", line):
            table = header[1].replace('"', "").replace("'", "").replace(" ", "")
            if table == name.replace(" ", ""):
                return number
        elif entry := re.match(r"\s*([\w.\"'-]+)\s*=", line):
            key = entry[1].replace('"', "").replace("'", "")
            if f"{table}.{key}".lstrip(".") == name:
                return number
    return 1
