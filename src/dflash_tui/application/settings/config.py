"""Settings of the program. Precedence: command line, environment, project file, user file, defaults.

An invalid entry never prevents a start: it is reported with its file and line, and the next source is used.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from dflash_core.cache_types import KV_HELP, checked
from dflash_core.clean import encodable
from dflash_core.drafters.registry import resolved
from dflash_core.errors import DFlashError, KnobError
from dflash_core.files import write_whole
from dflash_core.knobs import SPEC, Knobs, Value
from dflash_core.memory import parse_bytes
from dflash_core.user_folders import user_folder
from dflash_tui.application.here import here
from dflash_tui.application.settings.toml_file import TomlError, line_of, read_toml

PREFIX = "DFLASH_TUI_"
FILE_NAME = "config.toml"
PROJECT_NAME = "dflash-tui.toml"
DEFAULT_THEME = "dflash-night"
MOST_COUNT = 1000
Kind = Literal["text", "words", "path", "folders", "drafter", "switch", "choice", "seconds", "cache", "count", "size"]


class ConfigError(DFlashError):
    """A settings file that cannot be read or written."""


class _BadValueError(Exception):
    pass


def _setting(default: Any, help: str, kind: Kind, choices: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"help": help, "kind": kind, "choices": choices})


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings the program runs with. `knobs` apply to the first turn; `keys` maps ids of keys.py to keys."""

    theme: str = _setting(DEFAULT_THEME, "colours, by the name of a theme", "text")
    mouse: bool = _setting(True, "off leaves the mouse to the terminal, for its own selection", "switch")
    notify: str = _setting("bell", "what tells that a long answer has ended", "choice", ("off", "bell", "desktop"))
    notify_after: float = _setting(10.0, "seconds from which on an answer is long", "seconds")
    target: Path | None = _setting(None, "the model to open without --target", "path")
    draft: Path | None = _setting(None, "its drafter: a file or folder, or text", "drafter")
    model_folders: tuple[Path, ...] = _setting((), "folders to look for models in, beside the usual places", "folders")
    system: str = _setting("", "the system message of new conversations", "words")
    device: str = _setting("auto", "where to decode", "choice", ("auto", "cpu", "cuda"))
    kv: str = _setting("auto", f"how keys and values are kept: {KV_HELP}", "cache")
    embedding: str = _setting("card", "on a GPU: where the token embedding lies", "choice", ("card", "host"))
    keep_states: int = _setting(0, "conversations whose state is kept on disk, so that they resume at once", "count")
    states_memory: str = _setting("auto", "memory for states of conversations: auto, 4GiB; 0 is none", "size")
    log_level: str = _setting("info", "the least that the log file keeps", "choice", ("debug", "info", "warning"))
    knobs: Knobs = field(default_factory=Knobs)
    keys: Mapping[str, str] = field(default_factory=dict)


PLAIN = {one.name: one for one in dataclasses.fields(Settings) if one.metadata}
"""The settings with a single value each, by name."""


@dataclass(frozen=True, slots=True)
class Config:
    """Resolved settings. `origins` says where each entry (`theme`, `knobs.budget`, `keys.turn.stop`) came from.
    `problems` has a line for each entry that was left out. `themes`: every theme that was named, with its origin, the
    strongest first: which of them exist is known once themes are loaded."""

    settings: Settings = field(default_factory=Settings)
    origins: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    themes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class _Entry:
    """A value as one source gives it. `read` converts it to the setting's type or raises _BadValueError."""

    name: str
    origin: str
    read: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class KeyRules:
    """How a front end checks a user's keys. `checked` takes an id and its keys and returns them normalized; it raises
    DFlashError. `clashing` gives the reasons by id."""

    checked: Callable[[str, str], str]
    clashing: Callable[[Mapping[str, str]], Mapping[str, str]]


ANY_KEYS = KeyRules(lambda id, keys: keys, lambda keys: {})
"""For a front end without keys."""


def config_folder() -> Path:
    """The folder of the user's settings, themes and presets."""
    return user_folder("config")


def user_file() -> Path:
    return config_folder() / FILE_NAME


def load_config(
    command_line: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] = os.environ,
    *,
    user: Path | None = None,
    project: Path | None = None,
    profile: tuple[str, Mapping[str, Any]] = ("", {}),
    key_rules: KeyRules = ANY_KEYS,
) -> Config:
    """Resolve every setting. `command_line` holds checked values by the names of `origins`. So does a `profile`, which
    has a name and ranks just below the command line."""
    problems: list[str] = []
    sources = [
        _from_file(user or user_file(), "user file", problems, key_rules),
        _from_file(project or here() / PROJECT_NAME, "project file", problems, key_rules),
        _from_environment(environment, problems, key_rules),
    ]
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    themes: list[tuple[str, str]] = []
    for entry in (entry for source in sources for entry in source):
        try:
            values[entry.name] = entry.read()
        except _BadValueError as error:
            stands = origins.get(entry.name, "the default")
            problems.append(f"{entry.origin}: {entry.name}: {error}; {stands} stands")
        else:
            origins[entry.name] = entry.origin
            themes += [(values["theme"], entry.origin)] if entry.name == "theme" else []
    for origin, given in ((f"profile {profile[0]}", profile[1]), ("command line", command_line or {})):
        for name, value in given.items():
            values[name], origins[name] = value, origin
            themes += [(value, origin)] if name == "theme" else []
    knobs = {name.removeprefix("knobs."): value for name, value in values.items() if name.startswith("knobs.")}
    keys = {name.removeprefix("keys."): value for name, value in values.items() if name.startswith("keys.")}
    plain = {name: value for name, value in values.items() if name in PLAIN}
    if "draft" in plain and _rank(origins.get("target", "")) > _rank(origins["draft"]):
        # A drafter belongs to the target named by the same source.
        del plain["draft"], origins["draft"]
    keys = _without_clashes(keys, key_rules, origins, problems)
    settings = Settings(**plain, knobs=Knobs().replace(**knobs), keys=keys)
    return Config(settings, origins, tuple(problems), tuple(reversed(themes)))


def remember(name: str, value: str | bool | Path, path: Path | None = None) -> None:
    """Write one plain setting into the user's file and leave the rest unchanged. Raises ConfigError."""
    path = path or user_file()
    if isinstance(value, Path):
        value = resolved(value, here()) if name == "draft" else here() / value
    if encodable(str(value)) != str(value):  # TOML cannot hold it
        raise ConfigError(f"{value} is not UTF-8 and cannot be remembered; the choice holds until the app closes")
    shown = "true" if value is True else "false" if value is False else quoted(str(value))
    line = f"{name} = {shown}\n"
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        # Plain settings come before the first table.
        table = re.search(r"^[ \t]*\[", text, re.MULTILINE)
        head, rest = (text[: table.start()], text[table.start() :]) if table else (text, "")
        old = re.compile(rf"^[ \t]*{name}[ \t]*=.*\n?", re.MULTILINE)
        if old.search(head):
            head = old.sub(lambda match: line, head, count=1)
        else:
            head = (head if not head or head.endswith("\n") else head + "\n") + line
        new = head + rest
        if tomllib.loads(new).get(name) != tomllib.loads(line)[name]:
            raise ConfigError(f"{path}: {name} could not be changed; write {line.strip()} into it")
        write_whole(path, new.encode(), sync=True)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}; the choice holds until the app closes"
        ) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is not TOML ({error}); the choice holds until the app closes") from None


def quoted(text: str) -> str:
    """A TOML basic string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'


def _rank(origin: str) -> int:
    kinds = ("user file", "project file", "environment", "profile", "command line")
    return next((rank for rank, kind in enumerate(kinds) if origin.startswith(kind)), -1)


def _from_file(path: Path, kind: str, problems: list[str], key_rules: KeyRules) -> Iterator[_Entry]:
    try:
        text, table = read_toml(path, optional=True)
    except TomlError as error:
        problems.append(f"{kind} {path}: {error}; nothing of it is used")
        return
    for name, value in _flat(table):
        origin = f"{kind} {path}, line {line_of(text, name)}"
        reader = _reader(name, key_rules)
        if reader is None:
            problems.append(f"{origin}: unknown setting {name!r}{_near(name)}")
        else:
            yield _Entry(name, origin, partial(reader, value, path.parent))


def _flat(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """`theme`, `knobs.budget`, `keys.turn.stop`: keys of the two tables may be quoted or nested."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{inner}", value) for inner, value in _flat(value))
        else:
            yield name, value


def _from_environment(environment: Mapping[str, str], problems: list[str], key_rules: KeyRules) -> Iterator[_Entry]:
    for variable in sorted(environment):
        if not variable.startswith(PREFIX):
            continue
        word = variable.removeprefix(PREFIX).lower()
        name = word if word in PLAIN else f"knobs.{word}"
        reader = _reader(name, key_rules)
        if reader is None:
            problems.append(f"environment {variable}: no such setting{_near(word)}")
            continue
        text = environment[variable]
        yield _Entry(name, f"environment {variable}", partial(_parsed, name, text))


def _parsed(name: str, text: str) -> Any:
    """A value from the environment, where everything is text."""
    if name.startswith("knobs."):
        try:
            return SPEC[name.removeprefix("knobs.")].parse(text)
        except KnobError as error:
            raise _BadValueError(str(error)) from None
    kind = PLAIN[name].metadata["kind"]
    value: Any = text
    if kind == "switch":
        value = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}.get(text.lower(), text)
    elif kind == "folders":
        value = [part for part in text.split(os.pathsep) if part]
    elif kind in ("seconds", "count"):
        try:
            value = float(text) if kind == "seconds" else int(text)
        except ValueError:
            value = text
    return _plain(name, value, here())


def _reader(name: str, key_rules: KeyRules) -> Callable[[Any, Path], Any] | None:
    """How a value from a file is checked; None if there is no such setting."""
    if name in PLAIN:
        return lambda value, folder: _plain(name, value, folder)
    table, _, inner = name.partition(".")
    if table == "knobs" and inner in SPEC:
        return lambda value, folder: _knob(inner, value)
    if table == "keys" and inner:
        return lambda value, folder: _keys(inner, value, key_rules)
    return None


def _plain(name: str, value: Any, folder: Path) -> Any:
    kind, choices = PLAIN[name].metadata["kind"], PLAIN[name].metadata["choices"]
    if kind == "switch" and isinstance(value, bool):
        return value
    if kind == "choice" and value in choices:
        return value
    if kind == "cache" and isinstance(value, str):
        try:
            return checked(value)
        except KnobError as error:
            raise _BadValueError(str(error)) from None
    if isinstance(value, str) and (kind == "words" or (kind == "text" and value)):
        return value
    if kind in ("path", "drafter") and isinstance(value, str):
        try:
            if not value:
                return None
            return resolved(value, folder) if kind == "drafter" else folder / Path(value).expanduser()
        except RuntimeError as error:
            raise _BadValueError(f"{value!r}: {error}") from None
    if kind == "folders" and isinstance(value, list) and all(isinstance(one, str) and one for one in value):
        try:
            return tuple(folder / Path(one).expanduser() for one in value)
        except RuntimeError as error:
            raise _BadValueError(f"{value!r}: {error}") from None
    if kind == "seconds" and isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e9:
        return float(value)
    if kind == "count" and isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_COUNT:
        return value
    if kind == "size" and (found := _size(value)) is not None:
        return found
    expected = {
        "switch": "true or false", "choice": ", ".join(choices), "text": "text", "words": "text", "path": "a path",
        "drafter": "a path, or text", "folders": "a list of folders", "seconds": "seconds, 0 or more", "cache": "text",
        "count": f"a whole number up to {MOST_COUNT}", "size": "auto, 0, or an amount such as 4GiB",
    }[kind]  # fmt: skip
    raise _BadValueError(f"found {value!r}, expected {expected}")


def _size(value: Any) -> str | None:
    """`auto`, 0 or an amount of memory as it was written; None for anything else."""
    text = str(value).strip()
    if isinstance(value, (str, int)) and not isinstance(value, bool) and text.lower() in ("auto", "0"):
        return text.lower()
    try:
        parse_bytes(text)
    except KnobError:
        return None
    return text if isinstance(value, str) else None


def _knob(name: str, value: Any) -> Value:
    try:
        return SPEC[name].check(value)
    except KnobError as error:
        raise _BadValueError(str(error)) from None


def _keys(id: str, value: Any, key_rules: KeyRules) -> str:
    if not isinstance(value, str):
        raise _BadValueError(f'found {value!r}, expected keys by commas, such as "ctrl+r,f10"')
    try:
        return key_rules.checked(id, value)
    except DFlashError as error:
        raise _BadValueError(str(error)) from None


def _without_clashes(
    keys: Mapping[str, str], key_rules: KeyRules, origins: dict[str, str], problems: list[str]
) -> dict[str, str]:
    """The keys that do not clash; the others lose their origin and are reported."""
    if not keys:
        return {}
    clashes = key_rules.clashing(keys)
    for id, why in clashes.items():
        problems.append(f"{origins.pop(f'keys.{id}')}: keys.{id}: {why}; the default stands")
    return {id: value for id, value in keys.items() if id not in clashes}


def _near(name: str) -> str:
    known = [*PLAIN, *(f"knobs.{knob}" for knob in SPEC)]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(PLAIN)}, [knobs], [keys]"
