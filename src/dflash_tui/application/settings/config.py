"""Settings of the program. Precedence: command line, profile, environment, project file, user file, defaults.

An invalid entry never prevents a start: it is reported with its file and line, and the next source is used.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from dflash_core.clean import encodable
from dflash_core.drafters.registry import resolved
from dflash_core.errors import DFlashError
from dflash_core.knobs import SPEC, SPEC_FORMER, Knobs
from dflash_core.user_folders import user_folder
from dflash_tui.application.new_file import here
from dflash_tui.application.settings import schema
from dflash_tui.application.settings.schema import SERVERS, Kind
from dflash_tui.application.settings.toml_file import TomlError, edit_toml, line_of, read_toml
from dflash_tui.application.settings.tool_servers import ToolServer, tool_server

PREFIX = "DFLASH_TUI_"
KEY_VARIABLE = f"{PREFIX}API_KEY"  # the key of a server, and no setting
FILE_NAME = "config.toml"
PROJECT_NAME = "dflash-tui.toml"
DEFAULT_THEME = "dflash-night"


class ConfigError(DFlashError):
    """A settings file that cannot be read or written."""


def _setting(default: Any, kind: Kind) -> Any:
    return field(default=default, metadata={"kind": kind})


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings the program runs with. `knobs` apply to the first turn; `keys` maps ids of keys.py to keys,
    `clients` the names of programs that use the server to presets."""

    theme: str = _setting(DEFAULT_THEME, schema.TEXT)
    mouse: bool = _setting(True, schema.SWITCH)  # off leaves the mouse to the terminal, for its own selection
    notify: str = _setting("bell", schema.choice("off", "bell", "desktop"))  # what tells that a long answer has ended
    notify_after: float = _setting(10.0, schema.SECONDS)  # from which on an answer is long
    target: Path | None = _setting(None, schema.PATH)  # the model to open without --target
    draft: Path | None = _setting(None, schema.DRAFTER)
    model_folders: tuple[Path, ...] = _setting((), schema.FOLDERS)  # to look for models in, beside the usual places
    system: str = _setting("", schema.WORDS)  # the system message of new conversations
    device: str = _setting("auto", schema.choice("auto", "cpu", "cuda"))
    kv: str = _setting("auto", schema.CACHE)  # the cache type of keys and values
    embedding: str = _setting("card", schema.choice("card", "host"))  # where a GPU has the token embedding
    keep_states: int = _setting(0, schema.COUNT)  # conversations whose state is stored on disk, to resume fast
    states_memory: str = _setting("auto", schema.SIZE)  # memory for states of conversations; 0 is none
    log_level: str = _setting("info", schema.choice("debug", "info", "warning"))
    knobs: Knobs = field(default_factory=Knobs)
    keys: Mapping[str, str] = field(default_factory=dict)
    servers: tuple[ToolServer, ...] = ()  # of tools
    clients: Mapping[str, str] = field(default_factory=dict)


PLAIN: Mapping[str, Kind] = {one.name: one.metadata["kind"] for one in dataclasses.fields(Settings) if one.metadata}
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
    """A value as a source gives it. `folder`: where its relative paths start; None: a text from the environment."""

    name: str
    origin: str
    value: Any
    folder: Path | None = None


class KeyRules(Protocol):
    """How a front end checks a user's keys."""

    def checked(self, id: str, keys: str) -> str:
        """The keys of an action, normalized. Raises DFlashError."""

    def clashing(self, keymap: Mapping[str, str]) -> Mapping[str, str]:
        """The reasons by id."""


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
    key_rules: Callable[[], KeyRules] | None = None,
) -> Config:
    """Resolve every setting. `command_line` holds checked values by the names of `origins`. So does a `profile`, which
    has a name and ranks just below the command line. `key_rules` is called only where a file names keys; a
    front end without keys has none."""
    problems: list[str] = []
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    themes: list[tuple[str, str]] = []
    knobs = Knobs()

    def take(found: Mapping[str, tuple[Any, str]]) -> None:
        nonlocal knobs
        if "target" in found and "draft" not in found:  # a drafter belongs to the target named by the same source
            values.pop("draft", None)
            origins.pop("draft", None)
        for name, (value, origin) in found.items():
            values[name], origins[_stored(name)] = value, origin
            themes.extend([(value, origin)] if name == "theme" else [])
        # A source at a time: what it names of drafting, by whatever names, replaces that of weaker ones.
        knobs = knobs.replace(**_inside("knobs", {name: value for name, (value, _) in found.items()}))

    for entries in (
        _of_file(user or user_file(), "user file", problems),
        _of_file(project or here() / PROJECT_NAME, "project file", problems),
        _of_environment(environment),
    ):
        found: dict[str, tuple[Any, str]] = {}
        for entry in entries:
            try:
                found[entry.name] = _checked(entry, key_rules), entry.origin
            except KeyError:
                problems.append(f"{entry.origin}: unknown setting {entry.name!r}{_near(entry.name)}")
            except DFlashError as error:
                used = origins.get(_stored(entry.name), "the default")
                problems.append(f"{entry.origin}: {entry.name}: {error}; {used} is used")
        take(found)
    take({name: (value, f"profile {profile[0]}") for name, value in profile[1].items()})
    take({name: (value, "command line") for name, value in (command_line or {}).items()})
    keys = _inside("keys", values)
    for id, why in key_rules().clashing(keys).items() if keys and key_rules is not None else ():
        problems.append(f"{origins.pop(f'keys.{id}')}: keys.{id}: {why}; the default is used")
        del keys[id]
    plain = {name: value for name, value in values.items() if name in PLAIN}
    servers = tuple(_inside(SERVERS, values).values())
    settings = Settings(**plain, knobs=knobs, keys=keys, clients=_inside("clients", values), servers=servers)
    return Config(settings, origins, tuple(problems), tuple(reversed(themes)))


def _stored(name: str) -> str:
    """The name under which a setting is shown: former names of parameters set `drafting`."""
    return "knobs.drafting" if name.removeprefix("knobs.") in SPEC_FORMER else name


def remember(name: str, value: str | bool | Path, path: Path | None = None) -> None:
    """Write one plain setting into the user's file and leave the rest unchanged. Raises ConfigError."""
    if isinstance(value, Path):
        value = str(resolved(value, here()) if name == "draft" else here() / value)
    if isinstance(value, str) and encodable(value) != value:  # TOML cannot hold it
        raise ConfigError(f"{value} is not UTF-8 and cannot be remembered; the choice applies until the app closes")
    _edit(path, lambda table: table.update({name: value}))


def remember_client(name: str, preset: str) -> None:
    """Write the preset of a client into the user's file; "" takes it out. Raises ConfigError."""

    def change(table: Any) -> None:
        clients = table.setdefault("clients", {})
        clients.pop(name, None)
        if preset:
            clients[name] = preset
        if not clients:
            del table["clients"]

    _edit(None, change)


def _edit(path: Path | None, change: Callable[[Any], None]) -> None:
    try:
        edit_toml(path or user_file(), change)
    except TomlError as error:
        raise ConfigError(f"{error}; the choice applies until the app closes") from None


def _of_file(path: Path, kind: str, problems: list[str]) -> Iterator[_Entry]:
    try:
        text, table = read_toml(path, optional=True)
    except TomlError as error:
        problems.append(f"{kind} {path}: {error}; nothing of it is used")
        return
    servers = table.pop(SERVERS, {})
    if servers and kind != "user file":
        # Whoever clones a project must not start its programs by that.
        problems.append(f"{kind} {path}: {SERVERS}: only {user_file()} can name tool servers; none of it is used")
    elif not isinstance(servers, dict):
        problems.append(f"{kind} {path}, line {line_of(text, SERVERS)}: {SERVERS}: expected tables [{SERVERS}.NAME]")
    else:
        for name, value in servers.items():
            place = f"{SERVERS}.{name}"
            yield _Entry(place, f"{kind} {path}, line {line_of(text, place)}", value, path.parent)
    for name, value in _flat(table):
        yield _Entry(name, f"{kind} {path}, line {line_of(text, name)}", value, path.parent)


def _flat(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """`theme`, `knobs.budget`, `keys.turn.stop`: keys of the two tables may be quoted or nested."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{inner}", value) for inner, value in _flat(value))
        else:
            yield name, value


def _of_environment(environment: Mapping[str, str]) -> Iterator[_Entry]:
    for variable in sorted(environment):
        if variable.startswith(PREFIX) and variable != KEY_VARIABLE:
            word = variable.removeprefix(PREFIX).lower()
            yield _Entry(word if word in PLAIN else f"knobs.{word}", f"environment {variable}", environment[variable])


def _checked(entry: _Entry, key_rules: Callable[[], KeyRules] | None) -> Any:
    """The value in the setting's type. Raises DFlashError for a wrong one, KeyError for an unknown setting."""
    table, _, inner = entry.name.partition(".")
    value, folder = entry.value, entry.folder
    spec = (SPEC.get(inner) or SPEC_FORMER[inner]) if table == "knobs" else None
    if folder is None:
        return spec.parse(value) if spec else PLAIN[entry.name].check(value, here(), text=True)
    if spec:
        return spec.check(value)
    if table == "keys" and inner:
        text = schema.KEYS.check(value, folder)
        return key_rules().checked(inner, text) if key_rules is not None else text
    if table == SERVERS:
        return tool_server(inner, value, folder)
    kind = schema.TEXT if table == "clients" and inner else PLAIN[entry.name]
    return kind.check(value, folder)


def _inside(table: str, values: Mapping[str, Any]) -> dict[str, Any]:
    begin = f"{table}."
    return {name.removeprefix(begin): value for name, value in values.items() if name.startswith(begin)}


def _near(name: str) -> str:
    known = [*PLAIN, *(f"knobs.{knob}" for knob in (*SPEC, *SPEC_FORMER))]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    tables = f"[knobs], [keys], [clients], [{SERVERS}.NAME]"
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(PLAIN)}, {tables}"
