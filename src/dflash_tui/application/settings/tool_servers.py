"""Servers of tools in the settings: tables `[mcp_servers.NAME]`, with a command or with an address."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from dflash_tui.application.settings.schema import SERVERS, BadValueError
from dflash_tui.application.settings.toml_file import TomlError, edit_toml

ALL = "*"
"""In `allow`: every tool of the server."""
TIMEOUT_S = 60.0
_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")
_Text = Annotated[str, msgspec.Meta(min_length=1)]


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    """A server as it is written in the file. `type` is what other programs write beside; the other fields tell it."""

    command: _Text | None = None
    args: list[str] = []
    env: dict[str, str] = {}
    cwd: _Text | None = None
    url: _Text | None = None
    headers: dict[str, str] = {}
    timeout: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = TIMEOUT_S
    start: bool = False
    allow: list[_Text] = []
    type: str = ""


@dataclass(frozen=True, slots=True)
class ToolServer:
    """A server. With a `command` it is a program that is started here, with a `url` it is reached over HTTP. `timeout`:
    seconds for a call. `start`: with the app, without being asked for. `allow`: tools that are called without asking;
    ALL is every one. Values of `env`, `headers`, `args` and `url` may name environment variables as ${NAME}."""

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float = TIMEOUT_S
    start: bool = False
    allow: frozenset[str] = frozenset()

    @property
    def where(self) -> str:
        """Its program or address, for people. Its arguments may be secrets."""
        return self.url or self.command


def tool_server(name: str, value: Any, folder: Path) -> ToolServer:
    """The server of a table. Raises BadValueError."""
    if not _NAME.fullmatch(name):
        raise BadValueError(f"found the name {name!r}, expected up to 40 letters, digits, - and _")
    try:
        table = msgspec.convert(value, _Table)
    except msgspec.ValidationError as error:
        raise BadValueError(str(error)) from None
    if (table.command is None) == (table.url is None):
        both = "both" if table.command is not None else "neither"
        raise BadValueError(f"found {both} of command and url, expected one: a program to start, or an address")
    if table.url is not None and not table.url.startswith(("http://", "https://")):
        raise BadValueError(f"found the url {table.url!r}, expected http:// or https://")
    return ToolServer(
        name,
        table.command or "",
        tuple(table.args),
        table.env,
        folder / Path(table.cwd).expanduser() if table.cwd is not None else None,
        table.url or "",
        table.headers,
        table.timeout,
        table.start,
        frozenset(table.allow),
    )


def allow_always(server: str, path: Path) -> None:
    """Write into the user's settings that every tool of a server may be called. Raises TomlError."""

    def change(document: Any) -> None:
        try:
            document[SERVERS][server]["allow"] = [ALL]
        except KeyError:
            raise TomlError(f"it no longer has a table [{SERVERS}.{server}]") from None

    edit_toml(path, change)


def expanded(text: str, environment: Mapping[str, str]) -> str:
    """With the values of the variables that it names. Raises BadValueError for one that is not set."""

    def value(found: re.Match[str]) -> str:
        if found[1] not in environment:
            raise BadValueError(f"the environment variable {found[1]} is not set")
        return environment[found[1]]

    return re.sub(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", value, text)
