"""A text in the user's own editor, which has the terminal meanwhile."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from textual.app import SuspendNotSupported

from dflash_core.clean import encodable
from dflash_core.errors import DFlashError

DEFAULT = "vi"


class EditorError(DFlashError):
    """The editor did not give the text back."""


def edited(
    text: str, suspend: Callable[[], AbstractContextManager[None]], environment: Mapping[str, str] = os.environ
) -> str:
    """The text as $VISUAL or $EDITOR leaves it. `suspend`: leaves the terminal to other programs.

    Raises EditorError; what the editor has written until then stays in a file, which the error names."""
    command = environment.get("VISUAL", "").strip() or environment.get("EDITOR", "").strip() or DEFAULT
    before = encodable(text).encode()
    handle, name = tempfile.mkstemp(prefix="dflash-message-", suffix=".md")
    with os.fdopen(handle, "wb") as file:
        file.write(before)
    path = Path(name)
    try:
        with suspend():
            problem = _run(command, name)  # raises nothing: an error would leave the terminal as it is
    except SuspendNotSupported:
        problem = "no editor can run in this terminal"
    try:
        after = path.read_bytes()
        if not problem:
            written = after.decode().replace("\r\n", "\n")
            path.unlink()
            return written if text.endswith("\n") else written.removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        problem = f"{command} wrote no readable text: {error}"
        after = path.read_bytes() if path.exists() else b""
    if after in (b"", before):
        path.unlink(missing_ok=True)
        raise EditorError(f"{problem}; the prompt is unchanged. $VISUAL or $EDITOR names the editor")
    raise EditorError(f"{problem}; the prompt is unchanged, what was written is in {path}")


def _run(command: str, path: str) -> str:
    """Run the editor; returns what went wrong, or ""."""
    try:
        with _interrupts_ignored():
            code = subprocess.call([*shlex.split(command), path])
    except OSError as error:
        return f"{command} cannot be run: {error.strerror}"
    except ValueError as error:
        return f"{command} is no command: {error}"
    return f"{command} ended with code {code}" if code else ""


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ctrl+C is the editor's. A handler, because a program would inherit a signal that is ignored."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
