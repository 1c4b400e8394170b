"""How a server is reached and what it accepts."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, field
from importlib.util import find_spec

from dflash_core.errors import DFlashError
from dflash_tui.server.request_log import RequestLog

KEY_VARIABLE = "DFLASH_TUI_API_KEY"
MAX_BODY = 32 * 2**20


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
