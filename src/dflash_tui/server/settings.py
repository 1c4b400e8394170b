"""How a server is reached and what it accepts."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

MAX_BODY = 64 * 2**20
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """`keys`: any of them opens the server; none: no key is needed. `origins`: web pages that may call it, "*" is all.
    `hosts`: further names under which a server of this machine alone is called. `queue`: requests that may wait.
    `max_body`: bytes of a request."""

    host: str = "127.0.0.1"
    port: int = 8080
    keys: tuple[str, ...] = field(default=(), repr=False)
    alias: str = ""
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    queue: int = 32
    max_body: int = MAX_BODY

    @property
    def local(self) -> bool:
        """Whether only this machine reaches it."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
