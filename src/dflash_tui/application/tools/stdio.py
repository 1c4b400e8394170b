"""A server of tools as a process: JSON messages by line over its input and output.

The transport of the package `mcp` buffers a line of any length, copying it with each piece, and writes to stderr, where
the app draws. This one refuses a line that is too long, skips lines that are no messages, and keeps the end of what the
process writes to its stderr.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from dflash_core.clean import one_line
from dflash_core.errors import DFlashError
from dflash_tui.application.tools.streams import MAX_LINE, Streams

LEAVE_S = 1.0
"""How long a process has to end by itself, and then after SIGTERM."""
_TAIL = 20  # lines of stderr that are stored
_PIECE = 64 * 1024
_LOOK_S = 0.02


class ServerProcess:
    """`problem`: what has gone wrong with it, one line."""

    def __init__(self) -> None:
        self.problem = ""
        self.skipped = 0
        """Lines that were no messages."""
        self.gone = asyncio.Event()
        """It writes no more, and was not ended here."""
        self._ending = False
        self._stderr: deque[str] = deque(maxlen=_TAIL)
        self._process: Process | None = None

    @asynccontextmanager
    async def streams(
        self, command: str, args: Sequence[str], env: Mapping[str, str], cwd: Path | None
    ) -> AsyncIterator[Streams]:
        """Start it; it ends with the block. Raises DFlashError where it cannot be started."""
        try:
            process = self._process = await asyncio.create_subprocess_exec(
                command, *args, stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=cwd, limit=MAX_LINE, start_new_session=True,
                env=get_default_environment() | dict(env),
            )  # fmt: skip
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise DFlashError(f"{command} cannot be started: {why}") from None
        incoming, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        write, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        tasks = [
            asyncio.create_task(self._read(process, incoming)),
            asyncio.create_task(self._write(process, outgoing)),
            asyncio.create_task(self._listen(process)),
        ]
        try:
            yield read, write
        finally:
            self._ending = True
            try:
                await asyncio.shield(_end(process))  # a process is ended also where the caller was cancelled
            finally:
                for task in tasks:
                    task.cancel()
                for stream in (incoming, read, write, outgoing):
                    stream.close()

    def kill(self) -> None:
        """End it at once, where there is no time to wait. Usable from any thread."""
        if self._process is not None and self._process.returncode is None:
            _signal(self._process, signal.SIGKILL)

    def ended(self) -> str:
        if self.problem:
            return self.problem
        code = self._process.returncode if self._process is not None else None
        how = "it has ended" if code is None else f"it has ended with {'signal' if code < 0 else 'code'} {abs(code)}"
        last = next((line for line in reversed(self._stderr) if line.strip()), "")
        return one_line(f"{how}: {last}" if last else how)

    async def _read(self, process: Process, incoming: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except (ValueError, RecursionError):
                    self.skipped += bool(line.strip())
                    continue
                await incoming.send(SessionMessage(message))
        except ValueError:  # of readline
            self.problem = f"it sent a message of more than {MAX_LINE // 2**20} MiB"
        except (OSError, anyio.ClosedResourceError, anyio.BrokenResourceError):
            pass
        finally:
            if not self.problem:
                await _exits(process)  # its code is part of the reason
            if not self._ending:
                self.gone.set()
            incoming.close()

    async def _write(self, process: Process, outgoing: MemoryObjectReceiveStream[SessionMessage]) -> None:
        assert process.stdin is not None
        with contextlib.suppress(OSError, anyio.ClosedResourceError):
            async for message in outgoing:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(text.encode() + b"\n")
                await process.stdin.drain()

    async def _listen(self, process: Process) -> None:
        """Read stderr, so that a talkative process does not wait for it."""
        assert process.stderr is not None
        rest = b""
        while piece := await process.stderr.read(_PIECE):
            *lines, rest = (rest + piece).split(b"\n")
            rest = rest[-_PIECE:]
            self._stderr += [line[:400].decode(errors="replace") for line in lines[-_TAIL:]]
        self._stderr.append(rest[:400].decode(errors="replace"))


async def _end(process: Process) -> None:
    """Close its input, then end it and what it has started."""
    if process.stdin is not None:
        process.stdin.close()
    exited = await _exits(process)
    _signal(process, signal.SIGTERM)  # also what a process that has ended by itself has left
    if not exited and not await _exits(process):
        _signal(process, signal.SIGKILL)
        await _exits(process)
    # Its pipes stay open where a child has them. Nothing public closes them.
    if (transport := getattr(process, "_transport", None)) is not None:
        transport.close()


async def _exits(process: Process) -> bool:
    """Whether it ends in time. `Process.wait` would also wait for children that have its pipes."""
    for _ in range(int(LEAVE_S / _LOOK_S)):
        if process.returncode is not None:
            break
        await asyncio.sleep(_LOOK_S)
    return process.returncode is not None


def _signal(process: Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
