"""A file with a line of JSON for each request; with the texts of prompts and answers only where the user wants them."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from dflash_core.errors import DFlashError


class RequestLog:
    """Lines at the end of the file at `path`, which nobody else may read. `prompts`: with the texts of each request."""

    def __init__(self, path: Path, *, prompts: bool = False) -> None:
        """Raises DFlashError where the file cannot be written."""
        self.prompts = prompts
        try:
            # Not blocking: a pipe without a reader is refused in place of waited for.
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o600)
            os.set_blocking(self._file, True)
            if stat.S_ISREG(os.fstat(self._file).st_mode):
                os.fchmod(self._file, 0o600)
        except OSError as error:
            raise DFlashError(f"--log {path} cannot be written: {error.strerror}; name another file") from None

    def write(self, line: Mapping[str, Any], texts: Mapping[str, Any]) -> None:
        """A request is over. A full disk does not end the server."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        with suppress(OSError):
            os.write(self._file, msgspec.json.encode({"time": time, **line, **texts}) + b"\n")
