"""The candidates that a tree left out equal the builder's own heap, for every budget, p_min and seed."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_core import tree as ddtree
from dflash_core.draft_quality import FirstRejection, Rejected, first_rejection, rejected
from dflash_core.events import StageTimes, StepDrafts, StepEvent, StepTree
from dflash_core.knobs import Knobs
from dflash_core.tree import Candidates
from support.turns import DRAFTS, step_of, tree_of


def built(drafts: Candidates, knobs: Knobs, mode: str = "tree") -> StepEvent:
    """A step whose tree is the builder's own; the target agreed with nothing."""
    used = Candidates(drafts.tokens[:, :1], drafts.log_probs[:, :1]) if mode == "chain" else drafts
    tree = ddtree.build(99, used, knobs.budget, p_min=knobs.p_min, chain_seed=knobs.chain_seed)
    probs, paths = (tuple(map(math.exp, row)) for row in (tree.log_probs, tree.path_log_probs))
    shown = StepTree(tree.tokens, tree.parents, tree.depths, probs, paths, (0,))
    said = StepDrafts(tuple(map(tuple, drafts.tokens.tolist())), tuple(map(tuple, drafts.log_probs.tolist())))
    return StepEvent((98,), shown, max(tree.depths), 0, 9, StageTimes(), mode, "", drafts=said, bonus=98, knobs=knobs)  # type: ignore[arg-type]


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10_000), budget=st.integers(1, 40), p_min=st.sampled_from([0.0, 0.02, 0.1, 0.4]),
    chain_seed=st.booleans(), depths=st.integers(1, 7), width=st.integers(1, 5),
    mode=st.sampled_from(["tree", "chain"]),
)  # fmt: skip
def test_one_more_budget_takes_the_best_of_those_rejected_by_it(
    seed: int, budget: int, p_min: float, chain_seed: bool, depths: int, width: int, mode: str
) -> None:
    rng = np.random.default_rng(seed)
    drafts = ddtree.candidates(rng.standard_normal((depths, 12)).astype(np.float32) * 2, width)
    knobs = Knobs(drafting=f"auto up to {budget}", p_min=p_min, chain_seed=chain_seed)
    step = built(drafts, knobs, mode)
    left_out = rejected(step)
    assert [one.path_prob for one in left_out] == sorted((one.path_prob for one in left_out), reverse=True)
    more = built(drafts, knobs.replace(budget=budget + 1), mode)
    by_budget = [one for one in left_out if one.why == "budget"]
    if len(more.tree.tokens) == len(step.tree.tokens):
        assert not by_budget, "the tree is complete, so nothing is left that only lacked room"
    else:
        taken = (more.tree.parents[-1], more.tree.tokens[-1], more.tree.depths[-1])
        assert taken in {(one.parent, one.token, one.depth) for one in by_budget}
        on_spine = chain_seed and more.tree.depths[-1] == len(more.tree.tokens) - 1
        if not on_spine:
            assert taken == (by_budget[0].parent, by_budget[0].token, by_budget[0].depth)
    free = built(drafts, knobs.replace(p_min=0.0, budget=256), mode)
    paths = _paths(free.tree)
    for one in left_out:
        assert one.why in ("budget", "p_min")
        if one.why == "p_min":
            assert one.prob < p_min
        path = [one.token]
        node = one.parent
        while node:
            path.insert(0, step.tree.tokens[node])
            node = step.tree.parents[node]
        assert path[-1] == drafts.tokens[one.depth - 1, one.rank]
        assert path in paths or len(paths) > 256, "only a tree of all there is must hold it"


def _paths(tree: StepTree) -> list[list[int]]:
    paths: list[list[int]] = [[]]
    for token, parent in zip(tree.tokens[1:], tree.parents[1:]):
        paths.append([*paths[parent], token])
    return paths


def test_by_hand() -> None:
    step = step_of(tree_of((0, 0), (1, 0), (0, 1)), knobs=Knobs(drafting="auto up to 3", p_min=0.15))
    shown = [(one.parent, one.depth, one.rank, one.token, one.why) for one in rejected(step)]
    assert shown[0] == (3, 2, 0, 4, "budget")
    assert set(shown[1:3]) == {(2, 3, 0, 7, "budget"), (1, 2, 1, 5, "budget")}, "both have a path probability of 0.12"
    assert shown[3:] == [(0, 1, 2, 3, "p_min")]
    first = rejected(step)[0]
    assert (first.prob, first.path_prob) == (pytest.approx(0.5), pytest.approx(0.15))
    assert isinstance(first, Rejected)


def test_a_chain_looks_at_no_sibling() -> None:
    step = step_of(tree_of((0, 0), (1, 0), (2, 0)), knobs=Knobs(drafting="chain 22"))
    object.__setattr__(step, "mode", "chain")
    assert rejected(step) == ()
    assert first_rejection(step) == FirstRejection(0, 7, None, None, "not drafted")


def test_only_a_full_tree_leaves_out_for_the_budget() -> None:
    tree = tree_of((0, 0), (1, 0), (2, 0), accepted=(0, 1))
    learned = replace(tree, values=(1.0, 0.6, 0.3, 0.1))

    def why(tree: StepTree, knobs: Knobs) -> set[str]:
        return {one.why for one in rejected(step_of(tree, knobs=knobs))}

    assert why(tree, Knobs(drafting="auto up to 3")) == {"budget"}
    assert why(learned, Knobs(drafting="auto")) == {"value"}, "auto took no more, though it might have"
    assert why(learned, Knobs(drafting="auto up to 3")) == {"budget"}


def test_what_is_behind_the_end_of_an_answer_is_not_over_the_budget() -> None:
    tree = tree_of((0, 0), (1, 0), (0, 1), accepted=(0, 1, 2))
    for knobs in (Knobs(drafting="auto up to 3"), Knobs(drafting="auto")):
        step = replace(step_of(tree, knobs=knobs), stop="stop token", tokens=(1, 4))
        assert {one.why for one in rejected(step) if one.parent == 2} == {"stop"}


@pytest.mark.parametrize(
    ("bonus", "accepted", "knobs", "expected"),
    [
        (2, (0,), Knobs(drafting="auto up to 3"), (0, 1, 0.3, "budget")),
        (3, (0,), Knobs(p_min=0.1), (0, 2, 0.05, "p_min")),
        (55, (0,), Knobs(), (0, None, None, "not drafted")),
        (6, (0, 1), Knobs(drafting="auto up to 3"), (1, 2, 0.1, "budget")),
        (7, (0, 1, 2, 3), Knobs(), (3, None, None, "no depth left")),
    ],
)
def test_the_first_rejection(bonus: int, accepted: tuple[int, ...], knobs: Knobs, expected: tuple[object, ...]) -> None:
    step = step_of(tree_of((0, 0), (1, 0), (2, 0), accepted=accepted), bonus=bonus, knobs=knobs)
    node, rank, prob, why = expected
    left = first_rejection(step)
    assert left is not None
    assert (left.node, left.token, left.rank, left.why) == (node, bonus, rank, why)
    assert left.prob == (None if prob is None else pytest.approx(prob))
    assert first_rejection(step_of(bonus=None)) is None  # type: ignore[arg-type]


def test_the_drafts_of_the_helpers_are_what_they_say() -> None:
    assert len(DRAFTS.tokens) == len(DRAFTS.log_probs) == 3
