"""The policy's steps on recorded answers: those of an independent program, and the figures that the policy must reach.

`data/policy/steps.npz` holds 20 answers of the demo pair to HumanEval prompts (10 greedy, 10 at temperature 0.8) with
the drafts after every position, and the steps that an independent implementation of the policy takes on them, for two
cost curves.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tools.bench import replay
from tools.bench.recorded import Recorded, load, save

from dflash_core.knobs import Knobs
from dflash_core.policy.arm import PairState
from dflash_core.policy.costs import CostTable
from support.grids import full

STEPS = Path(__file__).parent / "data" / "policy" / "steps.npz"
STOPS = frozenset({8186})


@pytest.fixture(scope="module")
def texts() -> list[Recorded]:
    return load(STEPS)


@pytest.mark.parametrize("curve", ["h200", "cpu"])
def test_steps_are_those_of_an_independent_program(texts: list[Recorded], curve: str) -> None:
    with np.load(STEPS) as file:
        expected = file[f"{curve}_batch"]  # text, position, nodes, tokens of each step
    ran = replay.learned(texts, replay.CURVES[curve], STOPS)
    assert len(texts) == 20
    assert np.array_equal(np.array(ran.log), expected)


@pytest.mark.parametrize(("name", "least"), [("h200", 0.15), full("consumer", 0.12), ("cpu", 0.60)])
def test_it_beats_a_fixed_tree_on_every_curve(texts: list[Recorded], name: str, least: float) -> None:
    """On this one set; `python -m tools.bench.replay` checks the required figures on six sets."""
    shape: CostTable = replay.CURVES[name]
    budgets = replay.fixed(texts, shape, replay.BUDGETS)
    auto = replay.learned(texts, shape, STOPS, pausing=name == "cpu")
    assert auto.tok_s >= (1 + least) * budgets[22].tok_s
    assert auto.tok_s >= 0.99 * max(ran.tok_s for ran in budgets.values())
    assert auto.tok_s >= 0.99 * replay.plain(texts, shape).tok_s


def test_siblings_that_are_understated_cost_little(texts: list[Recorded]) -> None:
    bent = replay.understated(texts)
    fixed = replay.fixed(texts, replay.H200)[22].tok_s
    assert replay.learned(bent, replay.H200, STOPS).tok_s >= 1.12 * fixed
    untaught = replay.learned(bent, replay.H200, STOPS, knobs=Knobs(learn=False, from_text=False))
    assert replay.learned(bent, replay.H200, STOPS, knobs=Knobs(from_text=False)).tok_s > 1.01 * untaught.tok_s


def test_every_knob_of_the_policy_counts(texts: list[Recorded]) -> None:
    def speed(knobs: Knobs) -> float:
        return replay.learned(texts[:8], replay.H200, STOPS, knobs=knobs).tok_s

    auto = speed(Knobs())
    assert auto > speed(Knobs(from_text=False))
    assert auto > speed(Knobs(learn=False))
    capped = replay.learned(texts[:2], replay.H200, STOPS, knobs=Knobs(drafting="auto up to 5"))
    assert max(nodes for _, _, nodes, _ in capped.log or ()) == 5


def test_what_was_learned_helps_the_next_texts(texts: list[Recorded]) -> None:
    state = PairState()
    first = replay.learned(texts[:10], replay.H200, STOPS, state=state)
    again = replay.learned(texts[:10], replay.H200, STOPS, state=state)
    assert again.tok_s > first.tok_s


def test_recordings_are_read_as_they_were_written(texts: list[Recorded], tmp_path: Path) -> None:
    save(tmp_path / "some.npz", texts[:3])
    for one, other in zip(load(tmp_path / "some.npz"), texts[:3], strict=True):
        assert (one.prompt, one.answer) == (other.prompt, other.answer)
        assert np.array_equal(one.tokens, other.tokens)
        assert np.array_equal(one.log_probs, other.log_probs)
