"""Files that the user names: where relative paths start, typed pairs, new files."""

from __future__ import annotations

from pathlib import Path

from dflash_core.drafters.registry import missing
from dflash_core.errors import DFlashError


def here() -> Path:
    """The present folder; the user's home if it has been removed since the program began."""
    try:
        return Path.cwd()
    except OSError:
        return Path.home()


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


def typed_pair(target: str, draft: str = "") -> tuple[Path, Path | None]:
    """Both paths with ~ expanded; an empty `draft` means none. Raises DFlashError if one does not exist."""
    there = _path(target)
    if not there.exists():
        raise DFlashError(f"{there}: no such file or folder; check the path")
    if not draft:
        return there, None
    drafts = _path(draft)
    if (gone := missing(drafts)) is not None:
        raise DFlashError(f"{gone}: no such file or folder; check the path")
    return there, drafts


def _path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # ~ of a user that does not exist
        raise DFlashError(f"{text}: {error}") from None
