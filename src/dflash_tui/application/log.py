"""The log file: loads, turns and their figures, and every fault with its trace; no text of a conversation."""

from __future__ import annotations

import logging
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path

from dflash_core.clean import lines
from dflash_core.errors import InputError
from dflash_core.files import check_regular
from dflash_core.user_folders import user_folder

FILE_NAME = "dflash-tui.log"
SIZE, OLDER_FILES = 1_000_000, 3  # bytes of one file, number of older files
LOG = logging.getLogger("dflash_tui")
DECODER = logging.getLogger("dflash_core")


class _Format(logging.Formatter):
    """Strips control codes: the log contains names of files and models, and is read in a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return lines(super().format(record))


_FORMAT = _Format("%(asctime)s %(process)d %(levelname)s %(message)s")


def log_file() -> Path:
    return user_folder("state") / FILE_NAME


def begin(level: str, *, verbose: bool = False, path: Path | None = None) -> str:
    """Log to the file, and with `verbose` to stderr too. Returns the problem as one line, or ""."""
    for logger in (LOG, DECODER):
        logger.setLevel(level.upper())
        logger.propagate = False
        for old in list(logger.handlers):
            logger.removeHandler(old)
            old.close()
    problem = ""
    path = path or log_file()
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)] if verbose else []
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        check_regular(path)
        handlers.append(
            RotatingFileHandler(path, maxBytes=SIZE, backupCount=OLDER_FILES, encoding="utf-8", errors="replace")
        )
    except (OSError, InputError) as error:
        what = f"{path} cannot be written: {error.strerror}" if isinstance(error, OSError) else str(error)
        problem = f"{what}; this run leaves no log"
    for handler in handlers or [logging.NullHandler()]:
        handler.setFormatter(_FORMAT)
        LOG.addHandler(handler)
        DECODER.addHandler(handler)
    logging.raiseExceptions = False  # a full disk must not print traces over the app
    return problem
