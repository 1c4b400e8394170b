"""Ctrl+C at any moment: exit code 130 and `interrupted`, never a trace, never a crash."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time

import pytest

from support.grids import full

LIMIT_S = 600
# Ctrl+C arrives while this module is being looked up, in the middle of the import.
AT_IMPORT = """
import signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {moment!r}:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Finder())
from dflash_tui.__main__ import run
sys.exit(run())
"""
# Reports when the program has begun; what the interpreter does before that is not tested.
BEGUN = """
import sys
from dflash_tui import __main__
signal = __main__.signal
handled = signal.signal
def told(number, handler):
    before = handled(number, handler)
    print("begun", file=sys.stderr, flush=True)
    signal.signal = handled
    return before
signal.signal = told
sys.exit(__main__.run())
"""
MOMENTS = (
    "argparse",
    "dflash_tui.cli",
    "msgspec._core",
    "dflash_tui.cli.ask",
    full("numpy"),
    "numpy._core.multiarray",
    full("numpy.linalg"),
    "torch._C",
    full("torch.nn"),
    "tokenizers",
)
ASK = ("--demo", "ask", "hi", "--set", "ignore_eos=on", "--set", "max_tokens=3000")
COMMANDS = (
    ASK,
    full(("--demo", "sweep", "budget=4..40", "--prompt", "hi", "--repeats", "9"), id="--demo sweep"),  # as test_sweep
    ("--demo", "bench", "--repeats", "9"),
    ("inspect",),
    ("doctor",),
    ("conversations", "list"),
)


def hear_ctrl_c() -> None:
    """A shell that runs the tests in the background has told its children to ignore Ctrl+C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def begin(program: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, preexec_fn=hear_ctrl_c
    )


@pytest.mark.parametrize("moment", MOMENTS)
def test_during_imports(moment: str) -> None:
    process = begin(AT_IMPORT.format(moment=moment), *ASK)
    _, err = process.communicate(timeout=LIMIT_S)
    assert "Traceback" not in err
    assert (process.returncode, err.strip().splitlines()[-1:]) == (130, ["interrupted"]), err


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]))
def test_at_random_moments(command: tuple[str, ...]) -> None:
    """A command may also complete before the signal arrives."""
    delay = random.Random(" ".join(command)).uniform(0, 3)
    process = begin(BEGUN, *command)
    assert process.stderr is not None
    assert process.stderr.readline() == "begun\n"
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=LIMIT_S)
    assert "Traceback" not in err, f"after {delay:.3f} s"
    finished = process.returncode == 0 and "interrupted" not in err
    assert finished or process.returncode == 130, f"after {delay:.3f} s: {err}"
