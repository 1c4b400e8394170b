"""A home of a test's own: nothing of whoever runs the tests is read, and nothing is written there."""

from __future__ import annotations

from pathlib import Path

import pytest


def move_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`folder` is the home, and what programs keep lies in it."""
    monkeypatch.setenv("HOME", str(folder))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(folder / name.lower()))


def work_at_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`folder` is the home; the tests run in its folder "here". Returns it."""
    move_home(folder, monkeypatch)
    (folder / "here").mkdir()
    monkeypatch.chdir(folder / "here")
    return folder
