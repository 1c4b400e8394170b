"""The entry point: `dflash-tui` and `python -m dflash_tui`. Handles Ctrl+C before anything is imported."""

# Built in, while `signal` imports the whole of enum first.
import _signal as signal  # type: ignore[import-not-found]
import gc
import os
import sys

INTERRUPTED = 130


def run() -> int:
    """Run the command line of this process; returns its exit code."""
    # A SIGINT that the parent has set to be ignored stays ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    # Nearly all that a start makes stays, and walking it again and again takes an eighth of the time to the first
    # frame. It works again after the load: `collector.calm`.
    gc.disable()
    try:
        from dflash_tui.cli import main

        return main()
    finally:
        # The work is done, and its exit code says how: nothing is left to interrupt.
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _end(_number: int, _frame: object) -> None:
    """End at once. A KeyboardInterrupt would pass through half-imported modules and native code, which turn it into
    other errors or crash; whatever has to survive is on the disk at every moment."""
    try:
        os.write(2, b"\ninterrupted\n")
    finally:
        os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(run())
