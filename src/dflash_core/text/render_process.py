"""Compiles and renders an unknown chat template in a separate process, which can be killed.

A template can keep the interpreter inside one library call, where Python checks no deadline, or ask for all of the
memory. The worker has a memory limit and is killed when it is late; the next render starts a new one. It has Jinja
loaded and no model, is sent JSON objects, and ends when the connection is closed, as it is when the program ends.

A render through the worker takes 0.05 ms longer than in this process for a first message, 0.2 ms for a conversation of
20 messages of 500 characters, 170 ms for one of 5 MB; starting a worker takes 0.2 s (two busy cores of a server).
"""

from __future__ import annotations

import contextlib
import json
import math
import resource
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_core.errors import LateTemplateError, TemplateError
from dflash_core.text.sandbox import Compiled

if TYPE_CHECKING:
    from dflash_core.text.template_values import Messages, Tools, Variables

SECONDS = 3.0  # wall time of a render, including the compilation in a new worker
START_SECONDS = 60.0  # for Python and Jinja themselves, on a machine that is busy with other things
MAX_BYTES = 2**28  # of a message: a prompt at its limit has 2^24 characters, an escaped one up to six bytes each
MEMORY = 2**30  # bytes of address space; a prompt of the longest allowed length needs a few hundred MiB
CPU_SECONDS = 5  # per request; the program kills a slow worker before that, unless it has itself been killed
_ROOT = str(Path(__file__).parents[2])
# -P and the path: the worker imports this program's modules, not files of the current folder.
_MAIN = "import sys; sys.path.insert(0, sys.argv[1]); from dflash_core.text.render_process import main; main()"


class RenderProcess:
    """Renders as `sandbox.Compiled` does. One caller at a time. Raises TemplateError for what does not compile.

    The worker is started here, ends with this object or the program, and does not see the terminal's Ctrl+C.
    """

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        self._begin = _packed({"source": source, "variables": dict(variables)})
        self._worker: _Worker | None = None
        self._ask(None)

    def render(self, messages: Messages, *, thinking: bool, generate: bool, variables: Variables, tools: Tools) -> str:
        """The text of a prompt. Raises TemplateError."""
        request = {"messages": list(messages), "thinking": thinking, "generate": generate}
        return self._ask(_packed(request | {"variables": dict(variables), "tools": list(tools)}))

    def _ask(self, request: bytes | None) -> str:
        """The text that answers `request`; with None the source is only compiled."""
        worker, self._worker = self._worker, None
        fresh = worker is None or not worker.runs
        if worker is None or fresh:
            worker = _Worker()
        deadline = time.monotonic() + SECONDS
        step = "does not compile"
        try:
            if fresh:
                worker.ask(self._begin, deadline)
            step = "failed"
            text = "" if request is None else worker.ask(request, deadline)
        except TemplateError:
            if step == "failed":  # the messages were refused; the template may take others
                self._worker = worker
            else:
                worker.end()
            raise
        except TimeoutError:
            worker.end()
            raise LateTemplateError(f"the chat template {step}: still running after {SECONDS:g} s") from None
        except EOFError:
            raise TemplateError(f"the chat template {step}: the process that renders it ended {worker.end()}") from None
        except BaseException:  # Ctrl+C too: a later reply would be taken for the next one
            worker.end()
            raise
        self._worker = worker
        return text


class _Worker:
    """One process. `ask` raises TimeoutError where the answer is late and EOFError where the process has ended; `end`
    must be called then, as after any other error.

    `end` kills the process and returns how it ended; a second call returns None. `end` is also called when this
    object is no longer referenced, and at the end of the program.
    """

    def __init__(self) -> None:
        none = subprocess.DEVNULL
        try:
            self._link, theirs = Pipe()
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _MAIN, _ROOT, str(theirs.fileno())],
                    stdin=none, stdout=none, stderr=none, pass_fds=(theirs.fileno(),), start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            raise TemplateError(f"the chat template needs a process to render in: {error.strerror}") from None
        self.end = weakref.finalize(self, _end, self._process, self._link)
        try:
            self._receive(time.monotonic() + START_SECONDS)
        except (TimeoutError, EOFError):
            raise TemplateError(f"the process that renders the chat template did not start: {self.end()}") from None
        except BaseException:
            self.end()
            raise

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: bytes, deadline: float) -> str:
        """Send a request and return the text of the reply. Raises TemplateError if the reply is an error."""
        try:
            self._link.send_bytes(request)  # a worker that waits for a request reads it at once
        except OSError:
            raise EOFError from None
        reply = self._receive(deadline)
        if "error" in reply:
            raise TemplateError(reply["error"])
        return str(reply.get("text", ""))

    def _receive(self, deadline: float) -> dict[str, Any]:
        try:
            if self._link.poll(max(deadline - time.monotonic(), 0.0)):
                return _received(self._link)
        except OSError:
            raise EOFError from None
        raise TimeoutError


def _end(process: subprocess.Popen[bytes], link: Connection) -> str:
    process.kill()
    link.close()
    code = process.wait()
    return f"with code {code}" if code >= 0 else f"by signal {-code}"


def _packed(message: dict[str, Any]) -> bytes:
    """ASCII: lone surrogates, which UTF-8 has no bytes for, pass as escapes."""
    return json.dumps(message, ensure_ascii=True).encode("ascii")


def _received(link: Connection) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(link.recv_bytes(MAX_BYTES))
    return message


def main() -> None:
    """Answer requests on the connection whose descriptor is the second argument, until it is closed. The first request
    has the `source` and its `variables`; the others render."""
    _limit(resource.RLIMIT_AS, MEMORY)
    _limit(resource.RLIMIT_CORE, 0)
    link = Connection(int(sys.argv[2]))
    link.send_bytes(_packed({}))  # ready: from here on time counts as the template's
    compiled: Compiled | None = None
    while True:
        try:
            request = _received(link)
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
        link.send_bytes(_packed(reply))


def _limit(what: int, limit: int) -> None:
    """Lower a resource limit of this process, where the platform has it and the user may."""
    with contextlib.suppress(ValueError, OSError):
        _, hard = resource.getrlimit(what)
        resource.setrlimit(what, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
