"""The trace file: records of turns as gzip-compressed JSON lines, each flushed when it is written, so a crash loses at
most the step that was being written."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dflash_core.clean import quoted
from dflash_core.damaged import DAMAGED
from dflash_core.errors import DFlashError, FormatError, InputError
from dflash_core.files import open_input, open_output
from dflash_core.record import (
    READABLE,
    VERSION,
    Line,
    Loaded,
    TurnLine,
    TurnRecord,
    assemble,
    decode,
    encode,
    max_unpacked,
)

GZIP = b"\x1f\x8b"
INSTEAD = "name a file that was written as one"
GZIP_WINDOW = 31  # zlib's number for its largest window inside a gzip frame
CHUNK = 1 << 10  # small: a damaged chunk is lost, and no chunk unpacks to much more than 1 MiB
MAX_LINE = 32 * 2**20  # a prompt of a million tokens has some 12 MiB with its ids


class TraceError(DFlashError):
    """A trace that cannot be written, or read."""


class TraceHeader(msgspec.Struct, frozen=True):
    """The first line of a trace."""

    trace: str
    version: int


HEADER = TraceHeader("dflash-tui", VERSION)


class TraceWriter:
    """Writes each line that it is called with. A watcher of conversations: it never raises; `problem` holds the error.

    Raises TraceError if the file cannot be created, or is not empty.
    """

    def __init__(self, path: Path | str) -> None:
        path = Path(path)
        self.path, self.problem = path, ""
        self._lock = threading.Lock()
        self._gzip = zlib.compressobj(level=1, wbits=GZIP_WINDOW)  # the fastest: the decoder waits for it
        try:
            if path.is_file() and path.stat().st_size:
                raise TraceError(f"{path} exists; a trace needs a new file: name another, or remove this one")
            self._file = open_output(path)
        except InputError as error:
            raise TraceError(str(error)) from None
        except OSError as error:
            raise TraceError(f"{path}: the trace cannot be written: {error.strerror}; name another file") from None
        self._write(msgspec.json.encode(HEADER))

    def __call__(self, line: Line) -> None:
        self._write(encode(line))

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the file. Later lines are ignored."""
        with self._lock:
            if not self._file.closed:
                self._put(self._gzip.flush())
                self._file.close()

    def _write(self, line: bytes) -> None:
        with self._lock:
            if not self._file.closed and not self.problem:
                self._put(self._gzip.compress(line + b"\n") + self._gzip.flush(zlib.Z_SYNC_FLUSH))

    def _put(self, data: bytes) -> None:
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            self.problem = f"{self.path}: the trace ends here: {error.strerror}; the turns themselves continue"


@dataclass(frozen=True, slots=True)
class Trace:
    """The content of a trace. `problem`: where and why it ends early, if it does."""

    turns: tuple[TurnRecord, ...]
    loaded: Loaded | None
    problem: str


def read_trace(path: Path | str) -> Trace:
    """Read a trace as far as possible. Raises TraceError for a file that is no trace, or one of another version."""
    path = Path(path)
    reader = _Reader(path)
    records: list[TurnRecord] = []
    try:
        for record in assemble(reader.turn_lines()):
            records.append(record)
    except InputError as error:
        raise TraceError(str(error)) from None
    except FormatError as error:
        reader.problem = f"line {reader.number}: {error}"
    except FileNotFoundError:
        raise TraceError(f"{path} does not exist; check the path") from None
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}") from None
    problem = reader.problem
    if records and not records[-1].ended and not problem:
        problem = "it ends in mid-turn"
    if not records:
        raise TraceError(f"{path}: no turn in this trace{': ' + problem if problem else ''}")
    if problem:
        steps = len(records[-1].steps)
        cut = "" if records[-1].ended else f", turn {len(records)} after {steps} step{'s' if steps != 1 else ''}"
        problem = f"{path.name} is incomplete: {problem}; what comes before is shown{cut}"
    return Trace(tuple(records), reader.loaded, problem)


class _Reader:
    """The lines of a file, up to the first damaged or missing one, which `problem` describes."""

    def __init__(self, path: Path) -> None:
        self.path, self.problem, self.number = path, "", 1
        self.loaded: Loaded | None = None

    def turn_lines(self) -> Iterator[TurnLine]:
        text = self._text()
        self._check_header(next(text, b""))
        for data in text:
            self.number += 1
            try:
                line = decode(data)
            except FormatError as error:
                self.problem = f"line {self.number}: {error}"
                return
            if not isinstance(line, Loaded):
                yield line
            elif self.loaded is None:
                self.loaded = line

    def _check_header(self, data: bytes) -> None:
        if not data:
            raise TraceError(f"{self.path}: no turn in this trace: {self.problem or 'it is empty'}")
        try:
            header = msgspec.json.decode(data, type=TraceHeader)
        except DAMAGED:
            found = f"it begins with {quoted(data[:24])}, expected its header"
            raise TraceError(f"{self.path}: not a trace: {found}; {INSTEAD}") from None
        if header.trace != HEADER.trace:
            raise TraceError(f"{self.path}: a trace of {header.trace!r}, expected one of {HEADER.trace!r}; {INSTEAD}")
        if header.version not in READABLE:
            found = f"a trace of version {header.version}, expected {VERSION}"
            raise TraceError(f"{self.path}: {found}; replay it with the dflash-tui that wrote it")

    def _text(self) -> Iterator[bytes]:
        """Complete lines only: a last line that a crash cut off is dropped. Limits bound what is unpacked."""
        gzip = zlib.decompressobj(wbits=GZIP_WINDOW)
        left: list[bytes] = []  # parts of the line that is not complete yet
        waiting = unpacked = 0
        with open_input(self.path) as file:
            data = magic = file.read(2)
            if magic != GZIP:
                found = f"it begins with {quoted(magic)}" if magic else "it is empty"
                raise TraceError(f"{self.path}: not a trace: {found}, expected gzip; {INSTEAD}")
            while data and not gzip.eof:
                try:
                    text = gzip.decompress(data)
                except zlib.error:
                    self.problem = "its bytes are damaged"
                    return
                data = file.read(CHUNK)
                unpacked += len(text)
                first, *others = text.split(b"\n")
                left.append(first)
                if others:
                    yield b"".join(left)
                    yield from others[:-1]
                    left, waiting = [others[-1]], 0
                waiting += len(left[-1])
                if waiting > MAX_LINE:
                    self.problem = f"line {self.number + 1} has more than {MAX_LINE:,} bytes, the limit"
                    return
                if unpacked > (most := max_unpacked(file.tell())):
                    self.problem = f"it unpacks to more than {most:,} bytes, the limit for {file.tell():,} packed ones"
                    return
        if waiting:
            self.problem = "it is cut off"
