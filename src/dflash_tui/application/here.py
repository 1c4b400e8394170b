"""The folder that relative paths start from."""

from __future__ import annotations

from pathlib import Path


def here() -> Path:
    """The present folder; the user's home if it has been removed since the program began."""
    try:
        return Path.cwd()
    except OSError:
        return Path.home()
