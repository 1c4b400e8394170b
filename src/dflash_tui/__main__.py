"""The entry point: `dflash-tui` and `python -m dflash_tui`. Handles Ctrl+C before anything is imported."""

# A built-in module; `signal` would import all of enum first.
import _signal as signal  # type: ignore[import-not-found]
import gc
import os
import sys

INTERRUPTED = 130
LATE = "torch._meta_registrations"


class _Late(type(sys)):  # type: ignore[misc]
    """Stands for the module LATE, which is imported when something in it is asked for."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # asked by importlib and inspect, of each module
            raise AttributeError(name)
        import importlib

        if sys.modules.get(LATE) is self:
            del sys.modules[LATE]
        return getattr(importlib.import_module(LATE), name)


def run() -> int:
    """Run the command line of this process; returns its exit code."""
    # If the parent process set SIGINT to be ignored, it stays ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    # Nearly all objects made at startup stay alive. Collecting among them takes an eighth of the time to the first
    # frame. The collector is enabled again after the load: `collector.calm`.
    gc.disable()
    # A third of the time that torch takes to import: rules for tensors without memory. `meta.py` asks for them.
    sys.modules[LATE] = _Late(LATE)
    try:
        from dflash_tui.cli import main

        return main()
    finally:
        # The work is done and the exit code is set: nothing is left to interrupt.
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _end(_number: int, _frame: object) -> None:
    """Exit at once. A KeyboardInterrupt would pass through half-imported modules and native code, which turn it into
    other errors or crash. Everything that must survive is already on disk."""
    try:
        os.write(2, b"\ninterrupted\n")
    finally:
        os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(run())
