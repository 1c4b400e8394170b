"""The learned policy's parts: values, the tree by value, how many rows pay, costs, and the drafter switched off."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from tools.bench.replay import AlwaysDrafting, GivenCosts

from dflash_core.drafters.capabilities import Capabilities
from dflash_core.drafters.ngram_table import NgramTable
from dflash_core.events import StageTimes, StepEvent, StepTree
from dflash_core.knobs import Knobs
from dflash_core.policy.arm import Arm, Pace, PairState
from dflash_core.policy.auto import AFTER, MAX_TREE_NODES, AutoPolicy
from dflash_core.policy.best_first import DEEPEST, ValueTree, build, trials
from dflash_core.policy.choosing import ALL, FIRST, Found
from dflash_core.policy.copying import Copies, chain
from dflash_core.policy.costs import CPU, H200, MIN_STEPS, NEWEST, StepCosts, min_slopes, paying, rising
from dflash_core.policy.queued import LEARNED_AT_ONCE
from dflash_core.policy.values import CLASSES, COPIED, Learned, Stated, start_weights
from support import drafted
from support.counting import CountingBackend
from support.deciding import decoded

VOCAB = 30


def stated(rng: np.random.Generator, depths: int = 15, width: int = 8) -> Stated:
    tokens = np.stack([rng.choice(VOCAB, width, replace=False) for _ in range(depths)]).astype(np.int64)
    p = np.sort(rng.dirichlet(np.full(width + 3, rng.uniform(0.05, 2)), depths), axis=-1)[:, ::-1][:, :width]
    with np.errstate(divide="ignore"):
        return Stated(tokens.reshape(depths, width), np.log(p))


@st.composite
def settings_of_trees(draw: st.DrawFn) -> tuple[Stated, Learned, NgramTable, frozenset[int], int, int]:
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    learned = Learned(start_weights() + rng.normal(0, draw(st.sampled_from([0.0, 0.5, 3.0])), (CLASSES, 5)))
    text = NgramTable(rng.integers(0, VOCAB, draw(st.integers(1, 200))).tolist())
    stops = frozenset(rng.integers(0, VOCAB, draw(st.integers(0, 3))).tolist())
    drafts = stated(rng, draw(st.integers(1, 15)), draw(st.integers(1, 8)))
    return drafts, learned, text, stops, draw(st.integers(0, 63)), draw(st.integers(0, 60))


@given(settings_of_trees())
@settings(max_examples=150)
def test_trees_by_value(case: tuple[Stated, Learned, NgramTable, frozenset[int], int, int]) -> None:
    drafts, learned, text, stops, most, deepest = case
    root = int(text.tokens[-1])
    tree = build(drafts, learned, text, root, stops, most, deepest)
    assert len(tree) <= most + 1
    pairs = list(zip(tree.parents, tree.tokens))[1:]
    assert len(set(pairs)) == len(pairs), "one child per parent and token"
    for node in range(1, len(tree)):
        parent = tree.parents[node]
        assert 0 <= parent < node
        assert tree.depths[node] == tree.depths[parent] + 1 <= min(deepest, DEEPEST)
        assert tree.values[node] <= tree.values[parent]
        assert not (parent and tree.tokens[parent] in stops), "nothing under a stop token"
        found = tree.found[parent]
        if tree.copied[node]:
            assert found is not None
            assert found.token == tree.tokens[node]
            tail = [*text.tokens.tolist(), *_path(tree, parent)][-12:]
            assert text.after(tail) == found, "what is copied followed the path's last tokens"
        else:
            assert tree.tokens[node] in drafts.below(tree.depths[parent], tree.tokens[parent]).tokens
    smaller = build(drafts, learned, text, root, stops, most // 2, deepest)
    assert smaller.tokens == tree.tokens[: len(smaller)], "trees of growing size are prefixes of each other"
    assert smaller.parents == tree.parents[: len(smaller)]


def _path(tree: ValueTree, node: int) -> list[int]:
    path: list[int] = []
    while node:
        path.insert(0, tree.tokens[node])
        node = tree.parents[node]
    return path


def test_with_start_values_the_best_come_first() -> None:
    """The drafter's probability falls with the rank, so no node is more likely than the one before it."""
    for seed in range(20):
        tree = build(stated(np.random.default_rng(seed)), Learned(), None, 1, (), 63)
        assert tree.values == sorted(tree.values, reverse=True)


@given(st.integers(0, 1 << 30))
@settings(max_examples=40)
def test_any_trials_leave_finite_values(seed: int) -> None:
    rng = np.random.default_rng(seed)
    learned = Learned()
    for _ in range(30):
        count = int(rng.integers(1, 100))
        classes = rng.integers(0, CLASSES, count).tolist()
        x = np.column_stack([np.ones(count), rng.uniform(-9.3, 9.3, count), rng.uniform(-9, 9, (count, 3))])
        learned.learn(classes, [tuple(row) for row in x.tolist()], (rng.random(count) < rng.random()).tolist())
    assert np.isfinite(learned.weights).all()
    assert np.abs(learned.weights).max() < 50
    assert (np.linalg.eigvalsh(learned.covariance) > 0).all()
    assert np.allclose(learned.rows, learned.weights)


def test_values_reach_the_true_rates_of_a_drafter() -> None:
    """Siblings that are right 2.2 times as often as stated, children of siblings a third as often."""
    rng, learned = np.random.default_rng(5), Learned()
    found: dict[int, list[tuple[float, float]]] = {}
    for step in range(400):
        drafts = stated(rng)
        tree = build(drafts, learned, None, 0, (), 24)
        path, said, node = [0], list[int](), 0
        while True:
            depth, off = tree.depths[node], tree.off[node]
            if depth >= drafts.depths:
                break
            p = np.array(drafts.below(depth, 0).p)
            truth = p * (0.33 if off else np.array([0.8, *[2.2] * (len(p) - 1)]))
            truth /= max(1.0, truth.sum())
            rank = int(rng.choice(len(p) + 1, p=[*truth, max(0.0, 1 - truth.sum())]))
            if step >= 200:
                for r in range(2):
                    cls = (0 if off == 0 else 3) + r
                    if off < 2:
                        x = drafts.off_spine(depth, r, tree.log_probs[node]) if off else drafts.on_spine(depth, r)
                        found.setdefault(cls, []).append((learned.value(cls, x), float(truth[r])))
            token = drafts.below(depth, 0).tokens[rank] if rank < len(p) else VOCAB + 1
            said.append(token)
            child = next((c for c in range(1, len(tree)) if (tree.parents[c], tree.tokens[c]) == (node, token)), None)
            if child is None:
                break
            path.append(child)
            node = child
        learned.learn(*trials(tree, drafts, path, said, ()))
    for cls in (0, 1, 3):
        mine, true = np.mean(found[cls], axis=0)
        assert abs(mine - true) < 0.05, (cls, mine, true)


def test_a_stop_token_ends_the_trials() -> None:
    drafts = stated(np.random.default_rng(1))
    stop = drafts.below(0, 0).tokens[0]
    tree = build(drafts, Learned(), None, 0, (stop,), 10)
    node = tree.tokens.index(stop, 1)
    classes, _, _ = trials(tree, drafts, [0, node], [stop, 3], (stop,))
    assert len(classes) == drafts.width


def test_how_many_rows_pay() -> None:
    values, curve = [1.0, 0.9, 0.8, 0.1, 0.05], [1.0, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5]
    assert paying(values, curve, 0.2) == 2
    assert paying(values, curve, 1e-9) == 4, "time is worth nothing"
    assert paying(values, curve, 1e9) == 0, "time is all"
    flat = [1.0] * 3 + [2.0] * 10
    assert paying([1.0, 0.3, 0.0], flat, 0.1) == 1
    assert paying([1.0, 0.3, 0.0, 0.0], [1.0] * 4 + [2.0] * 10, 0.1) == 2, "a width that is paid for is filled"


@given(st.integers(0, 1 << 30), st.sampled_from([CPU, H200]), st.floats(0.01, 2))
@settings(max_examples=60)
def test_a_tree_that_ends_early_is_as_good(seed: int, shape: object, rate: float) -> None:
    curve = StepCosts(shape).curve()  # type: ignore[arg-type]
    slopes = min_slopes(curve)
    drafts = stated(np.random.default_rng(seed))
    whole = build(drafts, Learned(), None, 1, (), 63)
    short = build(drafts, Learned(), None, 1, (), 63, DEEPEST, lambda value, nodes: 2 * value <= rate * slopes[nodes])
    assert paying(short.values, curve, rate) == paying(whole.values, curve, rate)


def test_a_curve_never_falls() -> None:
    assert rising([1, 3, 2, 5], [1, 1, 1, 1]) == [1, 2.5, 2.5, 5]
    assert rising([3, 1], [3, 1]) == [2.5, 2.5]


def _ran(rows: int, ms: float, draft: float = 1.0) -> StepEvent:
    parents, depths = tuple(range(-1, rows - 1)), tuple(range(rows))
    ones = (1.0,) * rows
    tree = StepTree((1,) * rows, parents, depths, ones, ones, (0,))
    return StepEvent((1,), tree, rows - 1, 0, 9, StageTimes(verify=ms - draft, draft=draft, host=99), "tree", "")


def test_costs_follow_what_is_measured() -> None:
    costs = StepCosts(CPU)
    assert costs.curve()[16] == 28.5
    costs.add(_ran(16, 57.0), drafted=True)
    assert costs.curve()[16] == pytest.approx(57), "one step scales the whole shape"
    assert costs.curve()[40] == pytest.approx(80)
    assert costs.plain == pytest.approx(2 * 9.6)
    for _ in range(MIN_STEPS):
        costs.add(_ran(4, 10.0), drafted=True)
        costs.add(_ran(40, 20.0), drafted=True)
    assert costs.measured == {4: 10.0, 40: 20.0}
    assert costs.curve()[4] == pytest.approx(10, rel=0.02)
    assert costs.curve()[40] == pytest.approx(20, rel=0.02)
    assert 10 < costs.curve()[16] < 20
    for _ in range(MIN_STEPS):
        costs.add(_ran(1, 3.0, 0.0), drafted=False)
    assert costs.plain == 3
    assert costs.copying(1)[1] == 3
    assert costs.copying(40)[40] == pytest.approx(19, rel=0.02)
    assert costs.curve() == sorted(costs.curve())


def test_the_curve_is_worked_out_again_where_a_median_moved() -> None:
    costs = StepCosts(CPU)
    for _ in range(NEWEST):
        costs.add(_ran(16, 30.0), drafted=True)
    curve = costs.curve()
    costs.add(_ran(16, 30.1), drafted=True)
    assert costs.curve() is curve, "one of many like it"
    for _ in range(NEWEST):
        costs.add(_ran(16, 31.0), drafted=True)
    assert costs.curve()[16] == pytest.approx(31)
    costs.add(_ran(40, 50.0), drafted=True)
    assert costs.curve() is not curve


def test_a_step_without_time_is_no_measurement() -> None:
    costs = StepCosts(CPU)
    costs.add(_ran(4, 0.0, 0.0), drafted=True)
    assert costs.curve()[16] == 28.5


def test_a_chain_of_copied_text_ends_at_a_stop_and_where_it_is_unlikely() -> None:
    text = NgramTable([*range(20), *range(10)])
    whole = chain(text, Copies(), frozenset(), 63)
    assert [one.token for one in whole.found][:5] == [10, 11, 12, 13, 14]
    assert list(whole.values) == sorted(whole.values, reverse=True)
    assert min(whole.values) >= 0.01
    assert [one.token for one in chain(text, Copies(), frozenset({12}), 63).found] == [10, 11, 12]
    assert len(chain(text, Copies(), frozenset(), 2).found) == 2
    assert chain(NgramTable([1]), Copies(), frozenset(), 63).found == ()


def test_it_learns_what_a_drafter_is_worth() -> None:
    """A drafter whose first three tokens are always right: no row is used for its fourth."""
    backend = CountingBackend(right=3)
    policy = AlwaysDrafting([Arm(backend.capabilities, PairState(), GivenCosts(CPU))])
    steps = decoded(backend, Knobs(from_text=False), policy, 400)
    assert [len(step.tokens) for step in steps[-20:-1]] == [4] * 19
    assert max(len(step.tree.tokens) for step in steps[-20:]) <= 6
    assert "candidates pay" in steps[-2].reason


def test_text_that_repeats_itself_is_copied() -> None:
    """The counting target starts again after 40 tokens: runs are found in its own answer."""
    backend = CountingBackend(right=0)
    policy = AutoPolicy([Arm(backend.capabilities, PairState(), GivenCosts(CPU))])
    steps = decoded(backend, Knobs(), policy, 400)
    late = steps[len(steps) // 2 :]
    assert sum(len(step.tokens) for step in late) / len(late) > 4
    assert any("copied from the text" in step.reason for step in late)
    for step in late:
        if step.mode == "chain":
            assert step.tree.copied == tuple(range(1, len(step.tree.tokens)))
    off = AutoPolicy([Arm(backend.capabilities, PairState(), GivenCosts(CPU))])
    without = decoded(CountingBackend(right=0), Knobs(from_text=False), off, 400)
    assert not any(step.tree.copied for step in without)
    assert sum(step.mode == "plain" for step in without) > 200, "a drafter that is never right is switched off"
    assert any("next try in" in step.reason for step in without)
    assert not any(":" in step.reason for step in (*steps, *without)), "screens write the mode and a colon before it"


def test_nothing_is_drafted_beyond_what_may_be_said() -> None:
    backend = CountingBackend(right=7)
    policy = AutoPolicy([Arm(backend.capabilities, PairState(), GivenCosts(CPU))])
    steps = decoded(backend, Knobs(from_text=False), policy, 60)
    left = 59
    for step in steps:
        assert max(step.tree.depths) <= max(0, left - 1)
        left -= len(step.tokens)


def test_learning_can_be_switched_off_and_begun_again() -> None:
    policy = AutoPolicy([Arm(Capabilities("counting", 8), PairState(), GivenCosts(CPU))])
    decoded(CountingBackend(), Knobs(learn=False), policy, 60)
    assert np.array_equal(policy.arm.state.parts["answer"].learned.weights, start_weights())
    decoded(CountingBackend(), Knobs(), policy, 60)
    assert not np.array_equal(policy.arm.state.parts["answer"].learned.weights, start_weights())
    assert policy.arm.state.parts["answer"].learned.trials[:COPIED].sum() > 0
    policy.reset([PairState()])
    assert np.array_equal(policy.arm.state.parts["answer"].learned.weights, start_weights())


def test_reasoning_and_answers_are_learned_apart() -> None:
    backend = CountingBackend()
    policy = AutoPolicy([Arm(backend.capabilities, PairState(), GivenCosts(CPU))], think_ids=(1, 20))
    steps = decoded(backend, Knobs(from_text=False), policy, 30)
    parts = policy.arm.state.parts
    assert parts["thinking"].learned.trials.sum() > 0
    assert parts["answer"].learned.trials.sum() > 0
    assert parts["thinking"].drafts[ALL].steps < len(steps)
    assert parts["thinking"].drafts.keys() & parts["answer"].after.keys()
    assert parts["answer"].drafts == {}, "what follows reasoning says nothing of other answers"


def test_reasoning_of_an_earlier_answer_is_none_of_this_one() -> None:
    policy = AutoPolicy([Arm(Capabilities("counting", 8), PairState(), GivenCosts(CPU))], think_ids=(1, 20))
    places = []
    for prompt in ([1, 2], [1, 2, 20, 3], [4]):
        policy.begin(prompt, frozenset())
        places.append(policy.place)
        policy.injected([1, 5])
        policy.injected([20, 6])
        places.append(policy.place)
    assert places == ["thinking", AFTER, "answer", AFTER, "answer", AFTER]


def test_the_same_step_is_decided_once() -> None:
    policy = AutoPolicy([Arm(Capabilities("counting", 8), PairState(), GivenCosts(CPU))])
    policy.begin([1, 2, 3], frozenset())
    assert policy.next(Knobs()) is policy.next(Knobs())
    assert policy.next(Knobs(drafting="plain")).mode == "plain"
    assert policy.next(Knobs()).budget == MAX_TREE_NODES
    assert policy.next(Knobs(drafting="auto up to 5")).budget == 5


def test_a_value_is_a_chance() -> None:
    learned = Learned()
    assert learned.value(0, (1.0, math.log(3), 0.0, 0.0, 0.0)) == pytest.approx(0.75)
    assert 0 <= learned.value(0, (1.0, -1e6, 0.0, 0.0, 0.0)) < 1e-9


def test_a_card_learns_from_many_steps_at_once_while_it_has_others_to_run() -> None:
    policy = drafted.proven(drafted.policy_for(late=True))
    policy.begin([1, 2], frozenset())
    learned = []
    for number in range(200):
        decision = policy.next(drafted.KNOBS)
        policy.observe(drafted.step(policy, decision, H200.curve(), H200, number, right=3, wait=0.0))
        if number < MIN_STEPS:
            assert decision.mode == "plain", "to see what it costs"
            continue
        before = policy.weights(drafted.KNOBS)
        policy.next(drafted.KNOBS)
        assert policy.weights(drafted.KNOBS) is before is not None
        policy.spare()
        if policy.weights(drafted.KNOBS) is not before:
            learned.append(number)
    assert set(np.diff([MIN_STEPS - 1, *learned])) == {LEARNED_AT_ONCE}


@pytest.mark.parametrize(("brings", "mode"), [(2.9, "tree"), (2.5, "plain")])
def test_a_drafter_has_to_be_faster_than_plain_decoding(brings: float, mode: str) -> None:
    """However fast the easy places of a text before were: its hard places have to be decoded too."""
    state = PairState()
    state.pace = Pace(tokens=9.0, steps=100)
    state.parts["answer"].drafts = {name: Found(brings * 90, 2.7 * 90, 90) for name in (ALL, FIRST)}
    policy = AutoPolicy([Arm(Capabilities("counting", 8), state, GivenCosts(CPU))])
    policy._chooser.allowance(("answer", True), "counting").spare = 0.01
    policy.begin([1, 2], frozenset())
    decision = policy.next(Knobs(from_text=False))
    assert decision.mode == mode
    assert "tried" not in decision.reason.split(";")[0]


def test_chains_of_copied_text_are_worth_what_they_brought() -> None:
    """What follows below right nodes are right; chains that begin a step are wrong."""
    text, copies = NgramTable(), Copies()
    text.become([7, 8, 9, 10, 11] * 3)
    first = chain(text, copies, frozenset(), 4)
    for _ in range(30):
        for one in first.found:
            copies.add(one.match, True)
        copies.weigh(chain(text, copies, frozenset(), 4), 4, 0)
    wrong = chain(text, copies, frozenset(), 4)
    assert sum(wrong.values[1:]) < 0.4 * sum(first.values[1:])
    assert wrong.values[2] / wrong.values[1] > first.values[2] / first.values[1], "only the first one is doubted"
    for _ in range(60):
        copies.weigh(chain(text, copies, frozenset(), 4), 4, 4)
    assert sum(chain(text, copies, frozenset(), 4).values[1:]) > sum(first.values[1:])
