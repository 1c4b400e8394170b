"""Recorded answers for the choice among drafters: a file gives back what was recorded, bit by bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tools.train_demo.choice_records import Answered, load, save

from dflash_core.errors import DFlashError
from dflash_core.tree import Candidates


def candidates(rng: np.random.Generator, depths: int, ranks: int | None) -> Candidates:
    return Candidates(rng.integers(0, 500, (depths, 8)), -rng.random((depths, 8)), ranks=ranks)


def answered(rng: np.random.Generator, group: str, length: int) -> Answered:
    drafts = {"near": [candidates(rng, 3, 2) for _ in range(length - 1)],
              "far": [candidates(rng, 7, None) for _ in range(length - 1)]}  # fmt: skip
    tokens = [tuple(rng.integers(0, 500, count).tolist()) for count in (4, length)]
    return Answered(group, tokens[0], tokens[1], drafts, tuple(rng.random(length).tolist()))


def test_a_file_gives_back_what_was_recorded(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    answers = [answered(rng, "held", 5), answered(rng, "code", 9)]
    save(tmp_path / "a.npz", answers, "two kinds")
    found = load(tmp_path / "a.npz", "two kinds", {"near": None, "far": None})
    for got, wanted in zip(found, answers, strict=True):
        assert (got.group, got.prompt, got.answer, got.certain) == (
            wanted.group, wanted.prompt, wanted.answer, wanted.certain
        )  # fmt: skip
        for kind, drafts in wanted.drafts.items():
            for one, other in zip(got.drafts[kind], drafts, strict=True):
                assert np.array_equal(one.tokens, other.tokens)
                assert np.array_equal(one.log_probs, other.log_probs)
                assert one.ranks == other.ranks


def test_answers_of_something_else_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "a.npz", [answered(np.random.default_rng(7), "held", 5)], "part 0")
    with pytest.raises(DFlashError, match="holds answers of part 0, expected part 1; name another file"):
        load(tmp_path / "a.npz", "part 1", {"near": None, "far": None})
