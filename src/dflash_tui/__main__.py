"""The entry point: `dflash-tui` and `python -m dflash_tui`. Imports next to nothing, so that Ctrl+C is handled before
anything else is imported."""

import contextlib
import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130


def run() -> int:
    """Run the command line of this process; returns its exit code."""
    # A SIGINT that the parent has set to be ignored stays ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    try:
        from dflash_tui.cli import main

        return main()
    finally:
        # The work is done, and its exit code says how: nothing is left to interrupt.
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _end(_number: int, _frame: FrameType | None) -> None:
    """End at once. A KeyboardInterrupt would pass through half-imported modules and native code, which turn it into
    other errors or crash; whatever has to survive is on the disk at every moment."""
    with contextlib.suppress(OSError):
        os.write(2, b"\ninterrupted\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(run())
