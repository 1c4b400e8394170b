"""Reads and changes the TOML files that users write: settings, themes, presets."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dflash_core.errors import DFlashError, InputError, KnobError
from dflash_core.files import read_input, write_whole
from dflash_core.knobs import Value, current, spec_of

MAX_BYTES = 1 << 20
DEEPEST = 20  # levels of nested tables


class TomlError(DFlashError):
    """A file that is not TOML, is nested too deep, or cannot be written; the message is one line."""


def read_toml(path: Path, *, optional: bool = False) -> tuple[str, dict[str, Any]]:
    """The text of a file and its parsed contents; both empty if an `optional` file is missing. Raises TomlError."""
    try:
        data = read_input(path, MAX_BYTES)
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
    except UnicodeDecodeError as error:
        raise TomlError(f"byte {error.start + 1} is not UTF-8; save the file as UTF-8") from None
    except ValueError as error:  # not TOML, or a number of thousands of digits
        raise TomlError(" ".join(str(error).split())) from None
    if _deeper(table, DEEPEST):
        raise TomlError(f"tables nested deeper than {DEEPEST}")
    return text, table


def edit_toml(path: Path, change: Callable[[Any], None]) -> None:
    """Change a file, or make it; its comments and order stay. Raises TomlError, and leaves the file as it was.

    `change` gets the document, and the plain table that the new text must then have.
    """
    import tomlkit.exceptions  # late: few starts change a file

    try:
        text, table = read_toml(path, optional=True)
        document = tomlkit.parse(text)
        change(document)
        change(table)
        new = document.as_string()
        if tomllib.loads(new) != table:  # for example, tables of one name in several places
            raise TomlError("its order of tables does not allow it; edit the file")
    except (TomlError, tomlkit.exceptions.TOMLKitError, ValueError) as error:
        raise TomlError(f"{path} cannot be changed: {' '.join(str(error).split())}") from None
    write_toml(path, new)


def write_toml(path: Path, text: str) -> None:
    """Write a file, all of it or nothing. Raises TomlError."""
    try:
        write_whole(path, text.encode(), sync=True)
    except OSError as error:
        raise TomlError(f"{path} cannot be written: {error.strerror}") from None


def toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(map(toml, value))}]"
    return str(value) if isinstance(value, int | float) else quoted("" if value is None else str(value))


def quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'


def checked_knobs(entry: object, problem: Callable[[str, str], None]) -> dict[str, Value]:
    """The parameters of a table `knobs`. Each invalid field is passed to `problem`, and its default is used."""
    if not isinstance(entry, dict):
        problem("knobs", f"found {entry!r}, expected a table")
        return {}
    found: dict[str, Value] = {}
    for name, value in entry.items():
        default = ""
        try:
            spec = spec_of(name)
            default = f"; its default, {spec.show(spec.default)}, is used"
            found[name] = spec.check(value)
        except KnobError as error:
            problem(f"knobs.{name}", f"{error}{default}")
    return current(found)


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
