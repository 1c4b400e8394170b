"""Errors in words: what happened, and what a user can do, by options on the command line or by keys in the app.

The decoder names neither. An error carries a code, and the error for a load that does not fit carries the figures.
The trace of a fault of the program goes to a file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from dflash_core.clean import lines, one_line
from dflash_core.errors import MESSAGE, Code, ContextError, DFlashError, KernelError, OutOfMemoryError
from dflash_core.fits import RanOutError
from dflash_tui.application import advice, fits

ON_COMMAND_LINE: Mapping[Code, str] = {
    Code.NO_DRAFTER: "--draft FILE, mtp or ngram adds one",
    Code.NO_DEVICE: "--device cpu",
    Code.NOT_ON_THIS_DEVICE: "--device cpu",
    Code.DEVICE_FULL: "--context N takes less",
    Code.NEEDS_A_CARD: "--device cuda",
    Code.UNKNOWN_ARCHITECTURE: "dflash-tui models lists what runs",
}
IN_APP: Mapping[Code, str] = {
    Code.TURN_NOT_IN_SESSION: "Ctrl+R",
    Code.NO_DRAFTER: "start it with --draft FILE, mtp or ngram",
    Code.NO_DEVICE: "start it with --device cpu",
    Code.NOT_ON_THIS_DEVICE: "start it with --device cpu",
    Code.DEVICE_FULL: "the context is the last row of the parameters, F2",
    Code.NEEDS_A_CARD: "start it with --device cuda",
    Code.UNKNOWN_ARCHITECTURE: "dflash-tui models lists what runs",
}


def on_command_line(error: DFlashError) -> str:
    """The refusal as one line, with the options that help."""
    return _with(error, [*_options(error), *_hint(error, ON_COMMAND_LINE)])


def in_app(error: DFlashError) -> str:
    """The refusal as one line, with the keys and options that help."""
    options = _options(error)
    parts = [f"start it with {' or '.join(options)}"] if options else []
    return _with(error, [*parts, *_hint(error, IN_APP)])


def _hint(error: DFlashError, table: Mapping[Code, str]) -> list[str]:
    return [table[error.code]] if error.code is not None and error.code in table else []


def _options(error: DFlashError) -> list[str]:
    if isinstance(error, RanOutError):
        return [fits.options(one, error.plan.setup) for one in error.plan.remedies]
    if not isinstance(error, OutOfMemoryError) or (short := error.shortage) is None:
        return []
    options = [f"--context {short.context}"] if short.context else []
    options += ["--draft-type q8_0"] if short.pack_drafter else []
    return [*options, *(["--device cpu"] if short.on_card else [])]


def _with(error: DFlashError, hints: list[str]) -> str:
    hint = f" ({', '.join(hints)})" if hints else ""
    return one_line(str(error), MESSAGE - len(hint)) + hint


def explain(error: Exception, trace: str, folder: Path) -> tuple[str, str]:
    """An error as one line, and what to do next. The trace of a bug is written to a file."""
    if isinstance(error, ContextError):
        return str(error), "Nothing is lost. /full shows what can be done; a shorter message may fit."
    if needs_restart(error):
        return str(error), "The conversation is saved. /reload restarts the program and goes on with it."
    if isinstance(error, DFlashError):
        return advice.in_app(error), "The conversation is saved. Ctrl+R tries again; F2 changes parameters."
    return fault(error), f"The conversation is saved; {keep_trace(trace, folder)}. Ctrl+R tries again."


def needs_restart(error: Exception) -> bool:
    """Whether the device is lost for the whole process, so that no other load can help."""
    return isinstance(error, KernelError) and error.reload


def is_final(error: Exception) -> bool:
    """Whether the same files will never load, so that trying again cannot help."""
    return isinstance(error, DFlashError) and error.code == Code.UNKNOWN_ARCHITECTURE


def fault(error: BaseException) -> str:
    return one_line(f"fault in the program: {type(error).__name__}: {error}", MESSAGE)


def at_home(text: str) -> str:
    """`text` for display, with ~ for the user's home in its paths, but not inside other paths."""
    try:
        home = str(Path.home())
    except RuntimeError:  # no home is known
        return text
    return text if home == os.sep else re.sub(rf"(?<![\w./~-]){re.escape(home)}(?={os.sep})", "~", text)


def keep_trace(trace: str, folder: Path) -> str:
    """Write a trace to a file; says where it is."""
    path = folder / "last-error.txt"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(lines(trace), encoding="utf-8", errors="replace")
    except OSError:
        return f"the trace could not be written to {path}"
    return f"the trace is in {path}"
