"""FIFOs, devices and input without end: refused in one line wherever a file can be named, at once."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dflash_core.bench import prompts
from dflash_core.bench.prompts import read_prompts
from dflash_core.errors import ContextError, DFlashError, InputError
from dflash_core.files import open_output, read_input, read_limited
from dflash_core.trace import TraceWriter, read_trace
from dflash_tui.application.conversations import exchange
from dflash_tui.cli import ask
from support.grids import full

LIMIT_S = 600  # only what waits for ever takes longer
# The command lines that name a file to read or write.
DOORS = {
    "import": ["conversations", "import", "FIFO"],
    "replay": ["replay", "FIFO", "--json"],
    "prompts": ["--demo", "sweep", "budget=4", "--prompts", "FIFO"],
    "packed prompts": ["--demo", "bench", "--prompts", "FIFO.gz"],
    "trace": ["--demo", "ask", "hi", "--trace", "FIFO"],
    "target": ["--target", "FIFO", "ask", "hi"],
    "draft": ["inspect", "--draft", "FIFO"],
    "inspect": ["inspect", "FIFO"],
}


def run(home: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "HOME": str(home)}
    env |= {f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("CONFIG", "DATA", "STATE", "CACHE")}
    command = [sys.executable, "-m", "dflash_tui", *arguments]
    nothing = subprocess.DEVNULL
    return subprocess.run(
        command, stdin=nothing, capture_output=True, text=True, timeout=LIMIT_S, env=env, cwd=home, check=False
    )


# Prompts are packed or not behind one door, and `--draft` opens as `inspect` does.
@pytest.mark.parametrize("door", [full(one) if one in ("packed prompts", "draft") else one for one in DOORS])
def test_a_fifo_is_refused(door: str, tmp_path: Path) -> None:
    for name in ("FIFO", "FIFO.gz"):
        os.mkfifo(tmp_path / name)
    done = run(tmp_path, DOORS[door])
    assert done.returncode == 1, done.stderr
    assert "is a FIFO, expected a regular file" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("config/dflash-tui/config.toml", "is a FIFO"),
        ("dflash-tui.toml", "is a FIFO"),
        ("state/dflash-tui/dflash-tui.log", "is a FIFO"),
    ],
)
def test_a_fifo_where_the_program_has_its_files(place: str, told: str, tmp_path: Path) -> None:
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(tmp_path / place)
    done = run(tmp_path, ["conversations", "list"])
    assert done.returncode == 0, done.stderr
    assert told in done.stderr


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/tty", "."])
@pytest.mark.parametrize("reader", [read_prompts, read_trace, exchange.from_file], ids=lambda reader: reader.__name__)
def test_what_is_no_regular_file(reader: Callable[[Path], object], path: str) -> None:
    with pytest.raises(DFlashError, match=r"expected a (regular )?file"):
        reader(Path(path))


@pytest.mark.parametrize("path", ["/dev/tty", "."])
def test_a_trace_goes_into_a_regular_file(path: str) -> None:
    with pytest.raises(DFlashError, match=r"expected a (regular )?file"):
        TraceWriter(Path(path))


def test_output_replaces_a_regular_file(tmp_path: Path) -> None:
    for _ in range(2):
        with open_output(tmp_path / "new") as file:
            file.write(b"text")
    assert read_input(tmp_path / "new", 4) == b"text"


def test_a_file_of_more_bytes_than_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "long.txt"
    path.write_bytes(b"word " * 30)
    with pytest.raises(InputError, match=r"long\.txt holds more than 149 bytes"):
        read_input(path, 149)
    monkeypatch.setattr(prompts, "MAX_BYTES", 100)
    with pytest.raises(InputError, match="more than 100 bytes"):
        read_prompts(path)
    monkeypatch.setattr(exchange, "MAX_BYTES", 100)
    with pytest.raises(InputError, match="more than 100 bytes"):
        exchange.from_file(path)


class Endless(io.RawIOBase):
    """What `yes` writes."""

    def __init__(self) -> None:
        self.given = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        buffer[:] = b"y\n" * (len(buffer) // 2) + b"y" * (len(buffer) % 2)
        self.given += len(buffer)
        return len(buffer)


def test_a_stream_without_end() -> None:
    stream = Endless()
    with pytest.raises(InputError, match="more than 5,000,000 bytes"):
        read_limited(stream, 5_000_000, "standard input")  # type: ignore[arg-type]
    assert stream.given < 8_000_000


def test_a_prompt_from_a_pipe_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "MAX_PIPED", 1_000_000)
    stream = Endless()
    with pytest.raises(ContextError, match="which fits no context"):
        ask.read_prompt(["-"], io.TextIOWrapper(io.BufferedReader(stream)))
    assert stream.given < 3_000_000


def test_a_prompt_from_a_pipe_that_is_not_text() -> None:
    with pytest.raises(ContextError, match="standard input is not text"):
        ask.read_prompt(["-"], io.TextIOWrapper(io.BytesIO(b"abc\0def"), encoding="utf-8"))


def test_yes_beside_words(tmp_path: Path) -> None:
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as yes:
        done = subprocess.run(
            [sys.executable, "-m", "dflash_tui", "--demo", "ask", "words"],
            stdin=yes.stdout,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        yes.kill()
    assert done.returncode == 1
    assert "which fits no context" in done.stderr
    assert done.stderr.count("\n") == 1
