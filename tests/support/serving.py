"""A server in this process, on a thread and a free port."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from dflash_core.engine import Engine
from dflash_tui.server.sampling import Defaults
from dflash_tui.server.service import Served, Service
from dflash_tui.server.serving import Server, bound
from dflash_tui.server.settings import ServerSettings

if TYPE_CHECKING:
    import anthropic
    import openai

WAIT_S = 60.0
LONG: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 1500, "ignore_eos": True,
    "dflash": {"mode": "plain"},
}  # fmt: skip
"""A request that takes long."""


@dataclass(frozen=True)
class Running:
    """A server that listens at `address`."""

    address: str
    service: Service
    server: Server

    # Both clients take a second to import: every worker would pay for it where a module did so. `verify`: each client
    # would read all certificates of the system, 40 ms.
    def openai(self, key: str = "none") -> openai.OpenAI:
        import openai

        http = openai.DefaultHttpxClient(verify=False)
        return openai.OpenAI(
            base_url=f"{self.address}/v1", api_key=key, max_retries=0, timeout=WAIT_S, http_client=http
        )

    def anthropic(self, key: str = "none") -> anthropic.Anthropic:
        import anthropic

        http = anthropic.DefaultHttpxClient(verify=False)
        return anthropic.Anthropic(base_url=self.address, api_key=key, max_retries=0, timeout=WAIT_S, http_client=http)

    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.address, timeout=WAIT_S, verify=False)


@contextmanager
def running(
    engine: Engine, settings: ServerSettings | None = None, defaults: Defaults | None = None
) -> Iterator[Running]:
    """Serve an engine until the block ends."""
    settings = settings or ServerSettings(port=0)
    service = Service(engine, Served("demo", "demo drafter", defaults or Defaults(greedy=True)), settings)
    addresses: list[str] = []
    listening = threading.Event()

    def heard(address: str) -> None:
        addresses.append(address)
        listening.set()

    server = Server(service, heard)
    socket = bound(settings)
    thread = threading.Thread(target=lambda: server.run(sockets=[socket]), name="server")
    thread.start()
    try:
        assert listening.wait(WAIT_S), "the server does not listen"
        yield Running(addresses[0], service, server)
    finally:
        server.should_exit = True
        thread.join(WAIT_S)
        service.close()
        assert not thread.is_alive(), "the server does not end"


def wait_for(true: Callable[[], object]) -> None:
    """Until something is true; how long that takes is not tested."""
    until = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < until, "it never became true"
        time.sleep(0.002)


def place(address: str) -> tuple[str, int]:
    """Host and port of an address."""
    url = httpx.URL(address)
    return url.host, url.port or 0


def place_of(server: Running) -> tuple[str, int]:
    """Where a server listens."""
    return place(server.address)


def raw_request(body: dict[str, Any]) -> bytes:
    """A request for a chat as it goes over a socket."""
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data
