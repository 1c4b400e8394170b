"""How a server is reached and what it accepts."""

from __future__ import annotations

import ipaddress
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from dflash_core.errors import DFlashError
from dflash_tui.application.settings.config import KEY_VARIABLE

MAX_BODY = 32 * 2**20


class RequestLog:
    """A line of JSON for each request at the end of the file at `path`, which nobody else may read. `prompts`: with the
    texts of each prompt and answer."""

    def __init__(self, path: Path, *, prompts: bool = False) -> None:
        """Raises DFlashError where the file cannot be written."""
        self.prompts = prompts
        try:
            # Not blocking: a pipe without a reader is refused in place of waited for.
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o600)
            os.set_blocking(self._file, True)
            if stat.S_ISREG(os.fstat(self._file).st_mode):
                os.fchmod(self._file, 0o600)
        except OSError as error:
            raise DFlashError(f"--log {path} cannot be written: {error.strerror}; name another file") from None

    def write(self, line: Mapping[str, Any], texts: Mapping[str, Any]) -> None:
        """A request is over. A full disk does not end the server."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        with suppress(OSError):
            os.write(self._file, msgspec.json.encode({"time": time, **line, **texts}) + b"\n")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """`keys`: any of them opens the server; none: no key is needed. `origins`: web pages that may call it, "*" is all.
    `hosts`: further names of a server that only this machine reaches. `queue`: requests that may wait.
    `max_body`: bytes of a request. `share_events`: whoever has a key may watch the requests of all. `log`: a line
    for each request, besides the one in the program's log."""

    host: str = "127.0.0.1"
    port: int = 8080
    keys: tuple[str, ...] = field(default=(), repr=False)
    alias: str = ""
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    queue: int = 32
    max_body: int = MAX_BODY
    share_events: bool = False
    log: RequestLog | None = None

    @property
    def watched(self) -> bool:
        """Whether a client may watch all requests, prompts included: where several have keys, only if that is asked
        for."""
        return self.share_events or len(self.keys) < 2

    @property
    def local(self) -> bool:
        """Whether only this machine reaches it."""
        return is_loopback(self.host)


def keys_given() -> tuple[str, ...]:
    """The key that the environment names."""
    return tuple(filter(None, [os.environ.get(KEY_VARIABLE, "")]))


def needs() -> None:
    """Raises DFlashError where what serving is made of is not installed."""
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise DFlashError("serving needs starlette and uvicorn: pip install 'dflash-tui[serve]'")


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
