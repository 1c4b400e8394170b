"""The requests of other programs to a server of dflash-tui, for the panels and the list of requests."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from dflash_core.errors import FormatError
from dflash_core.record import End, Line, Loaded, Start, TurnLine, assemble, decode
from dflash_tui.application.attach.reading import text
from dflash_tui.application.attach.server import AttachedServer, AttachError, Stream
from dflash_tui.application.background import Background
from dflash_tui.application.requests import Requests, ServedRequest

AGAIN_S, LOOK_S = 2.0, 0.1  # before a broken stream is asked for again; between looks at whether to stop
PATH = "/dflash/events"


class Watching(Background):
    """Puts the lines of all requests but this app's own into `requests`, until it is stopped. A server that shows them
    to nobody, or sends other records, ends it; a broken connection is tried again."""

    def __init__(self, server: AttachedServer, requests: Requests, taken: Callable[[Line], None]) -> None:
        """`taken` is called with each line, on the thread."""
        super().__init__("dflash-watch")
        self._server, self._requests, self._taken = server, requests, taken
        self._stream: Stream | None = None
        self._asked: dict[str, Any] = {}  # what is known of the request whose lines come next
        self._request: ServedRequest | None = None
        self._lines: list[TurnLine] = []

    def stop(self) -> None:
        super().stop()
        if self._stream is not None:
            self._stream.cut()

    def work(self) -> None:
        while not self.stopping:
            self._stream = stream = Stream(self._server, PATH)
            if self._stop.is_set():  # before there was a stream to cut
                return
            try:
                for name, data in stream:
                    self._event(name, data)
            except FormatError:
                return
            except AttachError as error:
                if error.status:
                    return
            self._gone()
            end = time.monotonic() + AGAIN_S
            while not self.stopping and time.monotonic() < end:
                time.sleep(LOOK_S)

    def _event(self, name: str, data: bytes) -> None:
        if name == "request":
            found = json.loads(data)
            self._asked = found if isinstance(found, dict) else {}
        elif name == "dflash" and text(self._asked, "client") != self._server.agent:
            self._line(decode(data))

    def _line(self, line: Line) -> None:
        if isinstance(line, Loaded):
            return
        if isinstance(line, Start):
            self._gone()
            asked = self._asked
            client, path, model = (text(asked, name) for name in ("client", "path", "model"))
            self._request, self._lines = self._requests.add(client, path, model), []
            self._request.state = "running"
        if self._request is None:
            return  # it began before this was there
        self._lines.append(line)
        self._taken(line)
        self._requests.record(self._request, line)
        if isinstance(line, End):
            record = next(iter(assemble(self._lines)), None)
            why = line.report.stop if line.report is not None else "failed"
            self._requests.over(self._request, why, line.report, record)
            self._request = None

    def _gone(self) -> None:
        """The rest of a request's lines did not come."""
        if self._request is not None:
            self._requests.over(self._request, "not seen to its end")
            self._request = None
