"""`config`: the settings in effect, where each came from, and what was left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from textual.theme import BUILTIN_THEMES

from dflash_core.knobs import SPECS
from dflash_tui.application.conversations.history import data_folder
from dflash_tui.application.hub import catalogue
from dflash_tui.application.hub.walk import downloads
from dflash_tui.application.log import log_file
from dflash_tui.application.new_file import here
from dflash_tui.application.settings.config import PLAIN, PROJECT_NAME, Config, config_folder, user_file
from dflash_tui.application.settings.presets import FOLDER_NAME, Presets
from dflash_tui.application.settings.schema import SERVERS
from dflash_tui.application.settings.toml_file import quoted, toml
from dflash_tui.cli.options import Invocation
from dflash_tui.settings.keys import FIXED, with_keys
from dflash_tui.settings.themes import installed, with_known_theme
from dflash_tui.terminal.output import write_err


def run(call: Invocation) -> int:
    """Print the settings, or where their files are. Returns the exit code."""
    return paths(call) if call.args.what == "path" else show(call)


def show(call: Invocation) -> int:
    """Print every setting as TOML, or as one JSON object; with --origin each says where it came from."""
    config, origin = call.config, call.args.origin
    themes = installed()
    known = {*BUILTIN_THEMES, *(theme.name for theme in themes.themes)}
    config, unknown = with_known_theme(config, known)  # what is printed is in effect, not what was asked for
    rows = _rows(config)
    beside = [*unknown, *themes.problems, *Presets().problems, *catalogue.load_catalogue().problems]
    for line in beside:
        write_err(f"dflash-tui: {line}")
    text = table = ""
    for name, value in rows.items():
        section, _, inner = name.rpartition(".") if name.startswith(SERVERS) else name.partition(".")
        if inner and section != table:
            text += f"\n[{section}]\n"
            table = section
        key = quoted(inner) if "." in inner else inner or name
        line = f"{key} = {toml(value)}"
        text += f"{line:<40} # {_origin(config, name)}\n" if origin else f"{line}\n"
    values = {name: _plain(value) for name, value in rows.items()}
    origins = {name: _origin(config, name) for name in rows}
    call.result({"settings": values, "origins": origins, "problems": [*config.problems, *beside]}, text)
    return 0


def paths(call: Invocation) -> int:
    """Print where settings, conversations (`data`) and the log are."""
    found = {
        "user": user_file(), "project": here() / PROJECT_NAME, "presets": config_folder() / FOLDER_NAME,
        "profiles": config_folder() / FOLDER_NAME, "catalogue": config_folder() / catalogue.FILE_NAME,
        "models": downloads(), "data": data_folder(), "log": log_file(),
    }  # fmt: skip
    lines = [f"{name:<10} {path}{'' if path.exists() else '  (not there)'}\n" for name, path in found.items()]
    call.result({name: {"path": str(path), "exists": path.exists()} for name, path in found.items()}, "".join(lines))
    return 0


def _rows(config: Config) -> dict[str, Any]:
    settings = config.settings
    rows: dict[str, Any] = {name: getattr(settings, name) for name in PLAIN}
    rows |= {f"knobs.{spec.name}": getattr(settings.knobs, spec.name) for spec in SPECS}
    actions = with_keys(settings.keys)
    rows |= {f"keys.{one.id}": one.keys for one in actions if one.id not in FIXED}
    # Not their arguments, variables and headers, which may be secrets.
    kinds = {one.name: "url" if one.url else "command" for one in settings.servers}
    rows |= {f"{SERVERS}.{one.name}.{kinds[one.name]}": one.where for one in settings.servers}
    return rows | {f"clients.{name}": preset for name, preset in settings.clients.items()}


def _origin(config: Config, name: str) -> str:
    """Where a setting came from; a server as a whole."""
    return config.origins.get(name) or config.origins.get(name.rpartition(".")[0], "default")


def _plain(value: Any) -> Any:
    """A value in JSON's types."""
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value
