"""A slice of the mutants at every door, and that any other exception is noticed and kept."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from abuse import doors, mutants
from dflash_core.errors import DFlashError

MUTANTS = 360  # each door has its turn


def test_a_slice(tmp_path: Path) -> None:
    report = mutants.run(1, tmp_path, mutants=MUTANTS)
    assert report.faults == []
    assert report.counts["mutants"] == MUTANTS


@pytest.mark.parametrize("door", [door for door in doors.DOORS if "model" not in door.name], ids=lambda door: door.name)
def test_some_mutants_of_every_door_are_wrong(door: doors.Door, tmp_path: Path) -> None:
    """A door that takes everything would test nothing; three doors report in other ways what is wrong with a file."""
    refused = 0
    for seed in range(12):
        folder = tmp_path / str(seed)
        folder.mkdir()
        door.lay(random.Random(seed), folder)
        try:
            door.enter(folder)
        except DFlashError:
            refused += 1
    assert refused or door.name in ("database", "journal", "settings")


def test_a_foreign_exception_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(folder: Path) -> None:
        raise KeyError(len((folder / "a.gguf").read_bytes()))

    monkeypatch.setattr(mutants, "DOORS", (doors.Door("GGUF header", 1, doors.DOORS[0].lay, broken),))
    report = mutants.run(1, tmp_path, mutants=3)
    [found] = report.crashes
    assert report.counts["foreign exceptions"] == 3
    assert found.kind == "GGUF header: KeyError in outside"
    assert (Path(found.kept) / "a.gguf").exists()
    assert "KeyError" in (Path(found.kept) / "trace.txt").read_text()
    assert mutants.try_one(mutants.DOORS[0], found.seed, tmp_path / "again") is not None
