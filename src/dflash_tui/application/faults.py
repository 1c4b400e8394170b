"""Errors and paths in words: what happened and what to do next; the trace of a fault of the program goes to a file."""

from __future__ import annotations

import os
import re
from pathlib import Path

from dflash_core.clean import lines, one_line
from dflash_core.errors import MESSAGE, Code, ContextError, DFlashError, KernelError
from dflash_tui.application import advice


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
