"""A slice of the kill loop, and that lost text is noticed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from abuse import kills


def test_a_slice(tmp_path: Path) -> None:
    report = kills.run(1, tmp_path, kills=3)
    assert report.faults == []
    assert report.counts["kills"] == 3


def test_text_that_is_gone_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def use(terminal: kills.Terminal, rng: random.Random, mark: str) -> str:
        terminal.send(f"t{mark}x0x")
        assert terminal.shows(f"t{mark}x0x")
        return ""

    monkeypatch.setattr(kills, "_use", use)
    assert kills.run(1, tmp_path / "sound", kills=1).faults == []
    monkeypatch.setattr(kills, "kept", lambda folder: (set(), ""))
    [found] = kills.run(1, tmp_path / "lost", kills=1).lost
    assert found.kind == "seen on the screen, and gone"
    assert found.detail == "t1y0x0x"
