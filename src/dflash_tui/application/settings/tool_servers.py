"""Servers of tools in the settings: tables `[mcp_servers.NAME]`, with a command or with an address."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from dflash_core.damaged import in_words
from dflash_core.errors import DFlashError
from dflash_tui.application.settings.schema import SERVERS
from dflash_tui.application.settings.toml_file import TomlError, edit_toml

ALL = "*"
"""In `allow`: every tool of the server."""
TIMEOUT_S = 60.0
_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")
_Text = Annotated[str, msgspec.Meta(min_length=1)]


class ToolServer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A server. With a `command` it is a program that is started here, with a `url` it is reached over HTTP. `timeout`:
    seconds for a call. `start`: with the app, without being asked for. `allow`: tools that are called without asking;
    ALL is every one. Values of `env`, `headers`, `args` and `url` may name environment variables as ${NAME}. `type` is
    what other programs write beside; the other fields tell it."""

    name: str
    command: _Text = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: Path | None = None
    url: _Text = ""
    headers: dict[str, str] = {}
    timeout: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = TIMEOUT_S
    start: bool = False
    allow: frozenset[_Text] = frozenset()
    type: str = ""

    @property
    def where(self) -> str:
        """Its program or address, for people. Its arguments may be secrets."""
        return self.url or self.command


def tool_server(name: str, value: Any, folder: Path) -> ToolServer:
    """The server of a table. Raises DFlashError."""
    if not _NAME.fullmatch(name):
        raise DFlashError(f"found the name {name!r}, expected up to 40 letters, digits, - and _")
    if not isinstance(value, dict) or "name" in value:
        raise DFlashError("expected a table, without the field `name`")

    def path(kind: type, text: object) -> Path:
        if not isinstance(text, str) or not text:
            raise ValueError(f"found {text!r}, expected a path")
        return folder / Path(text).expanduser()

    try:
        server = msgspec.convert({"name": name, **value}, ToolServer, dec_hook=path)
    except (msgspec.ValidationError, RuntimeError) as error:  # RuntimeError: "~name" of a user that does not exist
        raise DFlashError(in_words(error)) from None
    if bool(server.command) == bool(server.url):
        both = "both" if server.command else "neither"
        raise DFlashError(f"found {both} of command and url, expected one: a program to start, or an address")
    if server.url and not server.url.startswith(("http://", "https://")):
        raise DFlashError(f"found the url {server.url!r}, expected http:// or https://")
    return server


def allow_always(server: str, path: Path) -> None:
    """Write into the user's settings that every tool of a server may be called. Raises TomlError."""

    def change(document: Any) -> None:
        try:
            document[SERVERS][server]["allow"] = [ALL]
        except KeyError:
            raise TomlError(f"it no longer has a table [{SERVERS}.{server}]") from None

    edit_toml(path, change)


def expanded(text: str, environment: Mapping[str, str]) -> str:
    """With the values of the variables that it names. Raises DFlashError for one that is not set."""

    def value(found: re.Match[str]) -> str:
        if found[1] not in environment:
            raise DFlashError(f"the environment variable {found[1]} is not set")
        return environment[found[1]]

    return re.sub(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", value, text)
