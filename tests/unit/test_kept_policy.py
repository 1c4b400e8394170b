"""Learned values on disk: a file per pair, replaced atomically, and start values where a file cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dflash_core import demo
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.knobs import Knobs
from dflash_core.policy.arm import Arm, PairState
from dflash_core.policy.auto import AutoPolicy
from dflash_core.policy.choosing import QUEUED, Found
from dflash_core.policy.costs import CPU, StepCosts
from dflash_core.policy.saved import MIN_SAVED_STEPS, SavedValues, fingerprint, pair_of, shipped_beside
from dflash_core.policy.values import Learned, start_weights
from support.counting import CountingBackend
from support.deciding import decoded


def learned(kept: SavedValues) -> AutoPolicy:
    policy = AutoPolicy([Arm(Capabilities("counting", 8), kept.read(), StepCosts(CPU), save=kept.write)])
    decoded(CountingBackend(), Knobs(), policy, 60)
    policy.end()
    return policy


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    kept = SavedValues(tmp_path / "deep" / "folder", "pair")
    state = learned(kept).arm.state
    state.parts["answer"].after = {"all": Found(6.0, 5.0, 4.0)}
    state.parts["answer"].copies.brought = 6.5
    kept.write(state)
    again = kept.read()
    for part, mine in state.parts.items():
        other = again.parts[part]
        assert np.array_equal(mine.learned.weights, other.learned.weights)
        assert np.array_equal(mine.learned.covariance, other.learned.covariance)
        assert np.array_equal(mine.learned.found, other.learned.found)
        assert mine.copies == other.copies
        assert {name: one for name, one in mine.drafts.items() if one.steps >= MIN_SAVED_STEPS} == other.drafts
        assert mine.after == other.after
    assert state.pace == again.pace
    assert kept.note is None
    assert [path.name for path in kept.folder.iterdir()] == ["pair.policy.json"]  # type: ignore[union-attr]


def test_few_drafts_are_not_saved(tmp_path: Path) -> None:
    """One slow draft, the first of a program say, would keep the next start from drafting for hundreds of steps."""
    kept = SavedValues(tmp_path, "pair")
    state = PairState()
    state.parts["answer"].drafts = {"all": Found(2.0, 7.8, 1.0), QUEUED: Found(9.0, 5.0, 4.0)}
    kept.write(state)
    assert kept.read().parts["answer"].drafts == {QUEUED: Found(9.0, 5.0, 4.0)}


def test_nothing_is_written_where_nothing_was_learned(tmp_path: Path) -> None:
    kept = SavedValues(tmp_path, "pair")
    AutoPolicy([Arm(Capabilities("counting", 8), kept.read(), StepCosts(CPU), save=kept.write)]).end()
    assert list(tmp_path.iterdir()) == []


DAMAGE = [
    lambda data: data[: len(data) // 2],
    lambda data: b"",
    lambda data: b"\xff" * 100,
    lambda data: data.replace(b'"pair":"pair"', b'"pair":"\xff"'),
    lambda data: b'{"other":' * 100_000,
    lambda data: data.replace(b'"version":1', b'"version":9'),
    lambda data: data.replace(b'"pair":"pair"', b'"pair":"other"'),
    lambda data: json.dumps({**json.loads(data), "pace": [0.0, 0.0, -1]}).encode(),
    lambda data: _with(data, "weights", [[1.0]]),
    lambda data: _with(data, "weights", [[1e300] * 5] * 16),
    lambda data: _with(data, "weights", [[1.0] * 5] * 15 + [[1.0]]),
    lambda data: _with(data, "covariance", [[[-1.0] * 5] * 5] * 16),
    lambda data: _with(data, "copies", [[1.0] * 5, [2.0] * 5]),
    lambda data: _with(data, "drafts", {"all": [1.0, -2.0, 1.0]}),
    lambda data: _with(data, "drafts", {"all": [1.0, 2.0]}),
    lambda data: _with(data, "after", {"all": [1.0, -2.0, 1.0]}),
]


def _with(data: bytes, field: str, value: object) -> bytes:
    whole = json.loads(data)
    whole["parts"]["answer"][field] = value
    return json.dumps(whole).encode()


def test_a_later_version_is_named_whatever_its_form(tmp_path: Path) -> None:
    kept = SavedValues(tmp_path, "pair")
    learned(kept)
    assert kept.path is not None
    later = _with(kept.path.read_bytes(), "weights", [[0.0] * 7] * 40).replace(b'"version": 1', b'"version": 2')
    kept.path.write_bytes(later)
    kept.read()
    assert "is of version 2, expected 1" in str(kept.note)


def test_sums_of_older_files_are_read(tmp_path: Path) -> None:
    """Their sums have one more field, which is no longer used."""
    kept = SavedValues(tmp_path, "pair")
    learned(kept)
    assert kept.path is not None
    kept.path.write_bytes(_with(kept.path.read_bytes(), "drafts", {"all": [6.0, 5.0, 2.0, 20.0]}))
    assert kept.read().parts["answer"].drafts == {"all": Found(6.0, 5.0, 2.0)}
    assert kept.note is None


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_gives_start_values_and_a_note(tmp_path: Path, damage: object) -> None:
    kept = SavedValues(tmp_path, "pair")
    learned(kept)
    assert kept.path is not None
    kept.path.write_bytes(damage(kept.path.read_bytes()))  # type: ignore[operator]
    state = kept.read()
    assert np.array_equal(state.parts["answer"].learned.weights, start_weights())
    assert kept.note is not None
    assert "start again" in kept.note
    assert "\n" not in kept.note
    learned(kept)
    assert kept.read().parts["answer"].learned.trials.sum() > 0, "the next answer is kept"


def test_where_it_cannot_be_written_the_answer_stands(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    kept = SavedValues(tmp_path / "file", "pair")
    learned(kept)
    assert kept.note is not None
    assert "cannot be saved" in kept.note


def test_pairs_are_told_apart_by_their_bytes(tmp_path: Path) -> None:
    one, other = tmp_path / "a", tmp_path / "b"
    one.write_bytes(bytes(200_000))
    other.write_bytes(bytes(199_999) + b"\1")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x").write_bytes(b"x")
    assert fingerprint(one) == fingerprint(one)
    names = {pair_of(a, b) for a in (one, other) for b in (one, other, "text", tmp_path / "d")}
    assert len(names) == 8


def test_the_demo_pair_ships_with_what_it_has_learned(tmp_path: Path) -> None:
    beside = shipped_beside(demo.demo_draft_path())
    kept = SavedValues(tmp_path, "pair", beside)
    state = kept.read()
    assert kept.note is None
    assert not np.array_equal(state.parts["answer"].learned.weights, start_weights())
    assert np.array_equal(state.parts["answer"].learned.covariance, Learned().covariance), "it goes on learning"
    kept.write(PairState())
    assert np.array_equal(kept.read().parts["answer"].learned.weights, start_weights())
    assert np.array_equal(kept.forget().parts["answer"].learned.weights, state.parts["answer"].learned.weights)
    assert list(tmp_path.iterdir()) == []
