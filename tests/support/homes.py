"""A home folder for each test: the user's own files are neither read nor written."""

from __future__ import annotations

from pathlib import Path

import pytest


def move_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `folder` the home, and the place for files that programs keep."""
    monkeypatch.setenv("HOME", str(folder))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(folder / name.lower()))


def work_at_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make `folder` the home, and its folder "here", which is returned, the working directory."""
    move_home(folder, monkeypatch)
    (folder / "here").mkdir()
    monkeypatch.chdir(folder / "here")
    return folder
