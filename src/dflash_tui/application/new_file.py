"""A file that the user asks for: its path, and why there can be none. What exists is not overwritten."""

from __future__ import annotations

from pathlib import Path

from dflash_core.errors import DFlashError


def new_path(name: str) -> Path:
    """The path of a file to write. Raises DFlashError if the name cannot be one, or such a file exists."""
    try:
        path = Path(name).expanduser()
        exists = path.exists()
    except (OSError, RuntimeError) as error:
        raise unwritable(name, error) from None
    if exists:
        raise DFlashError(f"{path} exists already; give another name")
    return path


def unwritable(name: str, error: Exception) -> DFlashError:
    """The refusal for a file that cannot be made."""
    return DFlashError(f"{name} cannot be written: {why(error)}; name another place")


def why(error: Exception) -> str:
    """RuntimeError: "~name" of a user that does not exist."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
