"""Trace files: whole, cut off anywhere, of another version, or no trace at all."""

from __future__ import annotations

import dataclasses
import errno
import gzip
import zlib
from pathlib import Path

import msgspec
import pytest

from dflash_core.events import PrefillEvent
from dflash_core.memory import Component, MemoryBreakdown
from dflash_core.record import Line, Loaded, Step, assemble, encode, lines, pack, unpack
from dflash_core.trace import HEADER, Trace, TraceError, TraceWriter, read_trace
from support.turns import step_of, turn_of

LOADED = Loaded("a pair", 4096, MemoryBreakdown("this machine", (Component("target", 5, "1 layer"),), 10, 5, 6))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.trace"


def write(path: Path, turns: int = 2, steps: int = 3, *, close: bool = True) -> list[Line]:
    """Write a trace; its lines."""
    written: list[Line] = [LOADED]
    for number in range(turns):
        written += lines(turn_of([step_of()] * steps, prompt=f"question {number}"))
    writer = TraceWriter(path)
    for line in written:
        writer(line)
    if close:
        writer.close()
    return written


def test_a_trace_holds_what_was_written(path: Path) -> None:
    written = write(path)
    trace = read_trace(path)
    assert read_trace(str(path)) == trace
    assert trace == Trace(tuple(assemble(written[1:])), LOADED, "")
    assert [turn.start.prompt for turn in trace.turns] == ["question 0", "question 1"]
    first = gzip.decompress(path.read_bytes()).splitlines()[0]
    assert first == b'{"trace":"dflash-tui","version":2}'


def test_each_line_is_on_the_disk_before_the_next(path: Path) -> None:
    """What a process that is killed after any line leaves behind: that line and all before it."""
    writer = TraceWriter(path)
    record = turn_of([step_of()] * 5)
    for count, line in enumerate(lines(record), -1):
        writer(line)
        if isinstance(line, Step):
            [turn] = read_trace(path).turns
            assert len(turn.steps) == count
    writer.close()
    assert read_trace(path).turns == (record,)


def test_a_trace_that_is_cut_anywhere_is_read_as_far_as_it_goes(path: Path) -> None:
    write(path, turns=2, steps=4)
    whole, data = read_trace(path), path.read_bytes()
    start = min(size for size in range(40, len(data)) if _readable(path, data[:size]))
    counts = []
    for size in range(len(data) - 9, 40, -7):
        path.write_bytes(data[:size])
        if size < start:
            with pytest.raises(TraceError, match="no turn in this trace"):
                read_trace(path)
            counts.append(0)
            continue
        trace = read_trace(path)
        for turn, full in zip(trace.turns, whole.turns):
            assert turn.pieces == full.pieces[: len(turn.pieces)]
        assert bool(trace.problem) == (not trace.turns[-1].ended or "cut off" in trace.problem)
        counts.append(sum(len(turn.pieces) for turn in trace.turns))
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == 10
    assert counts[-1] == 0
    assert len(set(counts)) > 5


def _readable(path: Path, data: bytes) -> bool:
    path.write_bytes(data)
    try:
        return bool(read_trace(path).turns)
    except TraceError:
        return False


def test_a_cut_is_said_with_its_place(path: Path) -> None:
    write(path, turns=1, steps=4, close=False)
    data = path.read_bytes()
    path.write_bytes(data[:-120])
    trace = read_trace(path)
    steps = len(trace.turns[0].steps)
    assert (
        f"a.trace is incomplete: it is cut off; what comes before is shown, turn 1 after {steps} steps" == trace.problem
    )


def test_damage_in_the_middle_is_where_it_ends(path: Path) -> None:
    write(path, turns=3, steps=20)
    data = bytearray(path.read_bytes())
    data[len(data) * 3 // 4] ^= 0xFF
    path.write_bytes(data)
    trace = read_trace(path)
    assert 1 <= len(trace.turns) <= 3
    assert "is incomplete: " in trace.problem


def test_lines_in_the_wrong_place(path: Path) -> None:
    step = next(line for line in lines(turn_of([step_of()])) if isinstance(line, Step))
    with TraceWriter(path) as writer:
        writer(step)
    with pytest.raises(TraceError, match="no turn in this trace: line 2: a step without its turn"):
        read_trace(path)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not a trace: it is empty, expected gzip"),
        (b"# Notes\n", "not a trace: it begins with '# ', expected gzip; name a file that was written as one"),
        (b"GGUF\x03\x00", "not a trace: it begins with 'GG', expected gzip"),
        (gzip.compress(b"hello\n", mtime=0), "not a trace: it begins with 'hello'"),
        (gzip.compress(b'{"a":1}\n', mtime=0), "not a trace"),
        (gzip.compress(b'{"trace":"\xff","version":2}\n', mtime=0), "not a trace"),
        (gzip.compress(b'{"trace":"other","version":2}\n', mtime=0), "a trace of 'other'"),
        (
            gzip.compress(b'{"trace":"dflash-tui","version":9}\n', mtime=0),
            "a trace of version 9, expected 2; replay it with",
        ),
        (gzip.compress(b'{"trace":"dflash-tui","version":2}\n', mtime=0), "no turn in this trace"),
        (gzip.compress(b'{"trace":"dflash-tui","version":2}\nnot json\n', mtime=0), "no turn in this trace: line 2: "),
        (gzip.compress(b'{"trace":' * 100_000, mtime=0), "no turn in this trace: it is cut off"),
        (gzip.compress(b'{"trace":' * 100_000 + b"\n", mtime=0), "not a trace"),
        (gzip.compress(b'{"trace":"dflash-tui","version":2}\n' + b'{"line":' * 100_000 + b"\n", mtime=0), "too deeply"),
        (gzip.compress(b"", mtime=0)[:6], "no turn in this trace: it is empty"),
    ],
)
def test_a_file_that_is_no_trace_is_one_line(path: Path, data: bytes, says: str) -> None:
    path.write_bytes(data)
    with pytest.raises(TraceError) as refusal:
        read_trace(path)
    assert says in str(refusal.value)
    assert str(refusal.value).startswith(f"{path}: ")
    assert "\n" not in str(refusal.value)


def bomb(path: Path, line: bytes, times: int) -> Path:
    """A trace that unpacks to `line` so many times after its header, packed in pieces of a thousand."""
    packer = zlib.compressobj(1, wbits=31)
    data = packer.compress(b'{"trace":"dflash-tui","version":2}\n')
    for _ in range(times // 1000):
        data += packer.compress(line * 1000)
    path.write_bytes(data + packer.flush())
    return path


def test_a_line_without_end_is_not_followed(path: Path) -> None:
    bomb(path, bytes(1000), 400_000)
    with pytest.raises(TraceError, match="line 2 has more than 33,554,432 bytes, the limit"):
        read_trace(path)


def test_lines_without_end_are_not_followed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash_core.record.FREE_BYTES", 2_000_000)
    bomb(path, encode(LOADED) + b"\n", 30_000)
    with pytest.raises(
        TraceError, match="no turn in this trace: it unpacks to more than 2,000,000 bytes, the limit for "
    ):
        read_trace(path)
    bomb(path, b"".join(encode(line) + b"\n" for line in lines(turn_of([step_of()] * 4))), 1_000)
    trace = read_trace(path)
    assert trace.turns, "what stands before the limit is shown"
    assert "is incomplete: it unpacks to more than 2,000,000 bytes, the limit for " in trace.problem


def test_a_long_trace_is_not_cut(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sound ones pack so much less that they may be of any length."""
    monkeypatch.setattr("dflash_core.record.FREE_BYTES", 0)
    write(path, turns=3, steps=2)
    trace = read_trace(path)
    assert trace.problem == ""
    assert [unpack(pack(turn)) for turn in trace.turns] == list(trace.turns)


def test_lines_that_do_not_fit_end_the_trace_there(path: Path) -> None:
    record = turn_of([step_of()] * 3)
    [start, prefill, first, second, *_] = lines(record)
    assert isinstance(second, Step)
    forged = msgspec.structs.replace(second, event=dataclasses.replace(second.event, drafted_depth=2**53))
    with TraceWriter(path) as writer:
        for line in (*lines(record), start, prefill, first, forged, second):
            writer(line)
    trace = read_trace(path)
    assert [len(turn.steps) for turn in trace.turns] == [3, 1]
    assert trace.problem == (
        "a.trace is incomplete: line 11: a drafted depth of 9,007,199,254,740,992; expected the tree's 3; "
        "what comes before is shown, turn 2 after 1 step"
    )


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"does not exist; check the path$"):
        read_trace(tmp_path / "none")
    with pytest.raises(TraceError, match="is a folder"):
        read_trace(tmp_path)


def test_a_trace_is_never_written_over(path: Path, tmp_path: Path) -> None:
    path.write_bytes(b"precious")
    with pytest.raises(TraceError, match="exists; a trace needs a new file"):
        TraceWriter(path)
    assert path.read_bytes() == b"precious"
    with pytest.raises(TraceError, match="cannot be written: No such file"):
        TraceWriter(tmp_path / "no" / "folder")


def test_a_full_disk_ends_the_trace_and_not_the_turn(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = TraceWriter(path)
    [*written] = lines(turn_of([step_of()] * 3))
    for line in written[:3]:
        writer(line)

    class Full:
        closed = False

        def write(self, data: bytes) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    file = writer._file
    monkeypatch.setattr(writer, "_file", Full())
    for line in written[3:]:
        writer(line)
    assert writer.problem == f"{path}: the trace ends here: No space left on device; the turns themselves continue"
    file.close()
    [turn] = read_trace(path).turns
    assert isinstance(turn.events[0], PrefillEvent)
    assert len(turn.steps) == 1


def test_the_header_is_the_version_of_the_records() -> None:
    from dflash_core.record import VERSION

    assert HEADER.version == VERSION
