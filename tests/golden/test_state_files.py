"""States of conversations on disk: written when an engine is left, read where a prompt goes on from one, and dropped
where a bit of them is wrong."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dflash_core import Engine, Knobs, load_draft
from dflash_core.events import PrefillEvent
from dflash_core.snapshots import folder
from dflash_core.snapshots.base import SnapshotError
from dflash_core.snapshots.folder import StateFolder, look, read
from dflash_core.snapshots.store import SnapshotStore
from support.golden import golden, target

RNG = np.random.default_rng(5)
PROMPTS = [[int(token) for token in RNG.integers(0, 250, 60)] for _ in range(3)]


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    folder.LOG.addHandler(caplog.handler)
    folder.LOG.setLevel("INFO")
    yield caplog
    folder.LOG.removeHandler(caplog.handler)


def engine(where: Path, keep: int, **options: Any) -> Engine:
    """A new one, of which nothing is in memory."""
    drafter = load_draft(golden("tiny-dflash"), target())
    return Engine(target(), drafter, states=SnapshotStore(1 << 30, 32, StateFolder(where, keep)), **options)


def reused(on: Engine, ids: list[int], keep: int = 50) -> int:
    first = next(iter(list(on.generate(ids, Knobs(temperature=0.0, max_tokens=2), keep=[keep]))))
    assert isinstance(first, PrefillEvent)
    return first.reused_tokens


def written(where: Path, keep: int = 2) -> list[Path]:
    """What is on disk of two conversations, the last one first."""
    one = engine(where, keep)
    for ids in PROMPTS[:2]:
        reused(one, ids)
    one.leave()
    return folder.files(where)


def test_the_last_conversations_come_back(tmp_path: Path) -> None:
    paths = written(tmp_path)
    assert len(paths) == 2
    assert not list(tmp_path.glob("*.part"))
    for ids in PROMPTS[:2]:
        again = engine(tmp_path, 2)
        assert reused(again, ids) == 50
        fresh = Engine(target(), load_draft(golden("tiny-dflash"), target()), states=SnapshotStore(0))
        fresh.session.prefill(ids)
        again._rewind([*ids[:51], 1])  # back to the boundary
        again.session.prefill(ids[50:])
        np.testing.assert_allclose(again.session.draft(7, 0), fresh.session.draft(7, 0), rtol=1e-4, atol=2e-4)
    assert reused(engine(tmp_path, 2), PROMPTS[2]) == 0


def test_only_the_last_are_kept_and_each_once(tmp_path: Path) -> None:
    written(tmp_path)
    one = engine(tmp_path, 2)
    reused(one, PROMPTS[2])
    reused(one, [*PROMPTS[2], 9, 8, 7])
    one.leave()
    assert len(folder.files(tmp_path)) == 2
    assert reused(engine(tmp_path, 2), PROMPTS[2]) == 50
    held = StateFolder(tmp_path, 2)
    count, nbytes = held.size()
    assert (count, nbytes) == (2, sum(path.stat().st_size for path in tmp_path.iterdir()))
    assert held.clear() == (count, nbytes)
    assert not list(tmp_path.iterdir())


def test_off_writes_nothing(tmp_path: Path) -> None:
    assert not written(tmp_path / "none", 0)
    assert not (tmp_path / "none").exists()


def flip(path: Path, at: int) -> None:
    held = bytearray(path.read_bytes())
    held[at] ^= 1
    path.write_bytes(held)


@pytest.mark.parametrize("damage", ["tensor", "header", "length", "short", "long", "empty", "version"])
def test_a_damaged_file_is_no_state(damage: str, tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    """One line in the log, and the conversation is read from the start."""
    path = written(tmp_path)[0]
    whole = path.read_bytes()
    if damage == "short":
        path.write_bytes(whole[: len(whole) // 2])
    elif damage == "long":
        path.write_bytes(whole + b"x")
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "version":
        path.write_bytes(whole.replace(b'"version": "2"', b'"version": "3"', 1))
    else:
        header = 8 + int.from_bytes(whole[:8], "little")
        flip(path, {"tensor": header + 999, "header": header // 2, "length": 0}[damage])
    assert reused(engine(tmp_path, 2), PROMPTS[1]) == 0
    [line] = {record.getMessage() for record in said.records}
    assert path.name in line
    assert "\n" not in line


def test_a_folder_or_a_fifo_of_that_name_is_no_state(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").mkdir()
    os.mkfifo(tmp_path / "b.safetensors")
    assert len(written(tmp_path)) == 2
    assert reused(engine(tmp_path, 2), PROMPTS[0]) == 50
    held = StateFolder(tmp_path, 2)
    assert held.clear()[0] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.safetensors", "b.safetensors"]


def test_a_file_that_becomes_a_folder_is_no_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the files were listed."""
    path = written(tmp_path)[0]
    monkeypatch.setattr(folder, "files", lambda _: [path])
    path.unlink()
    path.mkdir()
    assert reused(engine(tmp_path, 2), PROMPTS[1]) == 0


def test_a_state_of_another_pair_is_left_alone(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    written(tmp_path)
    plain = Engine(target(), states=SnapshotStore(1 << 30, 32, StateFolder(tmp_path, 2)))
    assert reused(plain, PROMPTS[0]) == 0
    assert "is of another pair of models" in said.text
    assert len(folder.files(tmp_path)) == 2


def test_a_full_disk_costs_the_state_alone(
    tmp_path: Path, said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    assert not written(tmp_path)
    assert not list(tmp_path.iterdir()), "nothing half written is left"
    assert "the state of a conversation is not stored" in said.text
    assert "No space left on device" in said.text


def test_a_full_disk_leaves_older_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path: path.read_bytes() for path in written(tmp_path)}

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    one = engine(tmp_path, 2)
    for ids in PROMPTS[:2]:
        reused(one, ids, keep=55)
    monkeypatch.setattr("os.replace", full)
    one.leave()
    assert {path: path.read_bytes() for path in folder.files(tmp_path)} == before
    for ids in PROMPTS[:2]:
        assert reused(engine(tmp_path, 2), ids) == 50


def test_every_byte_counts(tmp_path: Path) -> None:
    """Whatever bit is flipped, the file is refused; never another error."""
    path = written(tmp_path)[0]
    space = engine(tmp_path, 2).snapshots.space  # type: ignore[union-attr]
    whole = path.read_bytes()
    assert read(look(path, space)).length == 50
    for at in [*range(0, 200, 7), *RNG.integers(0, len(whole), 40)]:
        held = bytearray(whole)
        held[at] ^= 1 << int(RNG.integers(0, 8))
        path.write_bytes(held)
        with pytest.raises(SnapshotError):
            read(look(path, space))
