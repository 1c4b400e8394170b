"""The worker of `render_process`: compiles and renders one chat template, and does nothing else.

Messages are JSON objects over a connection of `multiprocessing`. `main` runs in a separate process, which has Jinja
loaded and no model. The process ends when the connection is closed, which also happens when the program that started it
ends or is killed.
"""

from __future__ import annotations

import contextlib
import json
import math
import resource
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

from dflash_core.errors import TemplateError
from dflash_core.text.sandbox import Compiled

MAX_BYTES = 2**28  # of one message: a prompt at its limit has 2^24 characters, an escaped one up to six bytes each


def packed(message: dict[str, Any]) -> bytes:
    """The bytes of a message. ASCII: lone surrogates, which UTF-8 has no bytes for, pass as escapes."""
    return json.dumps(message, ensure_ascii=True).encode("ascii")


def unpacked(body: bytes) -> dict[str, Any]:
    """The opposite of `packed`."""
    message: dict[str, Any] = json.loads(body)
    return message


MEMORY = 2**30  # bytes of address space; a prompt of the longest allowed length needs a few hundred MiB
CPU_SECONDS = 5  # per request; the program kills a slow worker before that, unless it has itself been killed


def main() -> None:
    """Answer requests on the connection whose descriptor is the second argument, until it is closed. The first request
    has the `source` and its `variables`; the others render."""
    _limit(resource.RLIMIT_AS, MEMORY)
    _limit(resource.RLIMIT_CORE, 0)
    link = Connection(int(sys.argv[2]))
    link.send_bytes(packed({}))  # ready: from here on time counts as the template's
    compiled: Compiled | None = None
    while True:
        try:
            request = unpacked(link.recv_bytes(MAX_BYTES))
        except (EOFError, OSError):
            return
        _limit(resource.RLIMIT_CPU, math.ceil(time.process_time()) + CPU_SECONDS)
        try:
            if compiled is None:
                compiled = Compiled(**request)
                reply = dict[str, Any]()
            else:
                reply = {"text": compiled.render(**request)}
        except TemplateError as error:
            reply = {"error": str(error)}
        link.send_bytes(packed(reply))


def _limit(what: int, limit: int) -> None:
    """Lower a resource limit of this process, where the platform has it and the user may."""
    with contextlib.suppress(ValueError, OSError):
        _, hard = resource.getrlimit(what)
        resource.setrlimit(what, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
