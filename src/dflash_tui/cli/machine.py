"""What `doctor` knows about a machine, as plain data, and how it is collected. The verdicts are in doctor.py."""

from __future__ import annotations

import json
import locale
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dflash_core.memory import HostMemory, host_memory
from dflash_core.user_folders import KINDS, user_folder
from dflash_tui.cli import probe

Facts = Mapping[str, Any]
PROBE_LIMIT_S = 300
MUCH_FREE = 1 << 62


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that the app writes to, the error if it cannot, and the bytes that are free on its disk."""

    name: str
    path: Path
    error: str = ""
    free: int = MUCH_FREE


@dataclass(frozen=True, slots=True)
class Terminal:
    """The terminal that the app would use. Without a terminal the size is 0 x 0."""

    columns: int = 0
    lines: int = 0
    encoding: str = "utf-8"


@dataclass(frozen=True, slots=True)
class Computer:
    """Everything that the checks read. `probe` has the facts of each stage of probe.py, or its `error`; `refuses`: of
    something that is there, and not that it is missing."""

    python: tuple[int, int, int] = (3, 11, 0)
    system: str = "linux"
    processor: str = "x86_64"
    environment: Mapping[str, str] = field(default_factory=dict)
    nvidia_card: bool = False  # on the PCI bus, driver or not
    memory: HostMemory = field(default_factory=lambda: HostMemory(0, 0, 0))
    folders: tuple[Folder, ...] = ()
    terminal: Terminal = field(default_factory=Terminal)
    probe: Mapping[str, Facts] = field(default_factory=dict)

    def stage(self, name: str) -> Facts:
        return self.probe.get(name, {"error": "was not reached"})


def look() -> Computer:
    """Inspect this machine. Takes a few seconds: another process imports torch and loads the demo pair."""
    return Computer(
        python=sys.version_info[:3],
        system=sys.platform,
        processor=platform.machine(),
        environment=dict(os.environ),
        nvidia_card=any(_is_nvidia_card(device) for device in Path("/sys/bus/pci/devices").glob("*")),
        memory=host_memory(),
        folders=folders(),
        terminal=_terminal(),
        probe=run_probe([sys.executable, "-m", probe.__name__], PROBE_LIMIT_S),
    )


def run_probe(command: list[str], limit_s: float) -> dict[str, Facts]:
    """Run the probe and collect its stages. The first stage missing after a crash or hang gets the error."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
        output, trouble = done.stdout, f"the check ended with code {done.returncode}"
        if done.returncode < 0:
            trouble = f"the check was ended by signal {-done.returncode}"
        last_words = done.stderr.strip().splitlines()[-1:]
        trouble = ": ".join([trouble, *last_words])
    except subprocess.TimeoutExpired as expired:
        partial = expired.stdout or b""
        output = partial.decode(errors="replace") if isinstance(partial, bytes) else partial
        trouble = f"the check gave no answer for {limit_s:g} s"
    stages: dict[str, Facts] = {}
    for line in output.splitlines():
        if line.startswith('{"') and line.endswith("}"):
            stages |= json.loads(line)
    missing = [name for name in probe.STAGES if name not in stages]
    if missing:
        stages[missing[0]] = {"error": trouble, "refuses": True}
    return stages


def folders() -> tuple[Folder, ...]:
    """The app's folders, each checked for writing without being created."""
    return tuple(_folder(kind, user_folder(kind)) for kind in KINDS)


def _folder(kind: str, path: Path) -> Folder:
    """The folder `path`; where it does not exist, its nearest existing parent is checked."""
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        with tempfile.TemporaryFile(dir=there):
            return Folder(kind, path, free=shutil.disk_usage(there).free)
    except OSError as error:
        return Folder(kind, path, f"{there}: {error.strerror}")


def _is_nvidia_card(device: Path) -> bool:
    return _read(device / "vendor").strip() == "0x10de" and re.match("0x030[02]", _read(device / "class")) is not None


def _terminal() -> Terminal:
    encoding = locale.getpreferredencoding(False)
    for stream in (sys.stdout, sys.stderr, sys.stdin):
        try:
            size = os.get_terminal_size(stream.fileno())
        except (OSError, ValueError):
            continue
        return Terminal(size.columns, size.lines, encoding)
    return Terminal(encoding=encoding)


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
