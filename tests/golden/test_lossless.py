"""Tree and chain output equals plain output, token for token, whatever the drafts, budgets and p_min are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tools.bench.replay import GivenCosts

from dflash_core import load_draft, load_target
from dflash_core.backends.cpu.session import CpuSession
from dflash_core.backends.opened import Target
from dflash_core.events import StepEvent
from dflash_core.knobs import Knobs
from dflash_core.models.delta_net import DeltaState
from dflash_core.policy.arm import Arm, PairState
from dflash_core.policy.auto import AutoPolicy
from dflash_core.policy.costs import CPU
from support import golden as whole
from support.golden import golden, goldens, other_models, reference, target_path
from support.grids import full
from support.host_drafts import spoilt
from support.planted import PlantedBackend, decode
from support.shallow import shallow, shallow_draft

TOKENS = 24
LONG = 96
BUDGETS = [*range(1, 65), 100, 128, 256]
FEW_BUDGETS = [1, 2, 7, 15, 16, 22, 63, 256]
P_MINS = [0.0, 0.05, 0.3, 0.9]
# Some budgets at each p_min, those beside a power of two at every second; test_full_grid has all of both.
DEALT = {p_min: sorted({*BUDGETS[at::16], *FEW_BUDGETS[at % 2 :: 2]}) for at, p_min in enumerate(P_MINS)}
NEAR_TIE = 1e-4
BOTH = ["tiny-F16.gguf", "tiny-Q4_K_M.gguf"]
# Weights of another type are other numbers to the same code: the long tests take the first in the default run.
FIRST = [BOTH[0], pytest.param(BOTH[1], marks=pytest.mark.full)]
REST = [path.name for path in goldens("tiny-[!dl]*.gguf") if path.name != BOTH[0]]
OTHERS = [path.name for path in other_models()]
QUICK = [name for name in OTHERS if "mtp" not in name]
# Of an architecture with the same options as another file's of the checkout, in another type or with more layers.
AGAIN = {
    f"{name}.gguf" for name in ("gemma3-62L-F16", "gemma3-F16", "gptoss-F16", "llama-Q8_0", "q3-Q8_0", "q35moe-Q4_K")
}
ARCHITECTURES = [full(name) if name in AGAIN else name for name in QUICK]
SAMPLED = {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "seed": 7}


@cache
def target(name: str = BOTH[0]) -> Target:
    """The first, which most tests take, with two layers only; the others with all of theirs."""
    return load_target(shallow(name)) if name == BOTH[0] else whole.target(name)


@cache
def prompt(name: str) -> list[int]:
    return [int(token) for token in reference(target_path(name))["ids"]]


@cache
def plain(name: str, sampled: bool) -> list[int]:
    """The plain answer, a little longer than any test needs so that drafts reach past the end."""
    long = name in BOTH or (name in QUICK and not sampled)
    knobs = Knobs(drafting="plain", max_tokens=(LONG if long else TOKENS) + 16, **SAMPLED if sampled else {})
    return decode(PlantedBackend(target(name), prompt(name), [], 0), prompt(name), knobs)[0]


def check(
    name: str, knobs: Knobs, seed: int, sampled: bool = False, tokens: int = TOKENS, by_parent: bool = False
) -> list[StepEvent]:
    """Decode with planted drafts and compare. No golden model has a near-tie on these paths, so none is excused."""
    expected = plain(name, sampled)
    backend = PlantedBackend(target(name), prompt(name), expected, seed, by_parent=by_parent)
    answer, steps = decode(backend, prompt(name), knobs.replace(max_tokens=tokens))
    assert answer == expected[:tokens], f"{knobs} seed {seed}"
    assert sum(len(step.tokens) for step in steps) == tokens - 1
    return steps


class Primed(AutoPolicy):
    """The policy of auto with nothing learned; its text begins with `said`, so there is something to copy."""

    said_before: Sequence[int] = ()

    def begin(self, ids: Sequence[int], stops: frozenset[int]) -> None:
        super().begin([*self.said_before, *ids], stops)


def learned(backend: PlantedBackend) -> Primed:
    return Primed([Arm(backend.capabilities, PairState(), GivenCosts(CPU))])


def check_auto(
    name: str, knobs: Knobs, seed: int, sampled: bool, policy: Primed, by_parent: bool = False
) -> list[StepEvent]:
    """As `check`, with a policy that keeps learning from answer to answer, and changes to "fixed" and back."""
    expected = plain(name, sampled)
    fixed, tree = knobs.replace(budget=9, p_min=0.1), knobs.replace(mode="tree", budget=20)
    changes: dict[int, Knobs] = {} if seed % 2 else {2: fixed, 4: knobs, 6: tree, 7: knobs.replace(from_text=False)}
    backend = PlantedBackend(target(name), prompt(name), expected, seed, by_parent=by_parent)
    policy.said_before = spoilt([*prompt(name)[-3:], *expected], 3 + seed) if seed % 3 else ()
    answer, steps = decode(backend, prompt(name), knobs, policy, changes)
    assert answer == expected[: knobs.max_tokens], f"{knobs} seed {seed}"
    return steps


@pytest.mark.parametrize("name", FIRST)
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("answers", [8, pytest.param(16, marks=pytest.mark.full)])
def test_auto_is_lossless(name: str, sampled: bool, answers: int) -> None:
    """Whatever is learned, offered from the text, or changed in mid-turn: the tokens are the plain ones."""
    policy = learned(PlantedBackend(target(name), prompt(name), [], 0))
    shapes, copied, modes = Counter[int](), 0, Counter[str]()
    for seed in range(answers):
        knobs = Knobs(max_tokens=LONG if seed % 4 == 3 else TOKENS, **(SAMPLED if sampled else {}))
        for step in check_auto(name, knobs, seed, sampled, policy):
            shapes[len(step.tree.tokens)] += 1
            copied += len(step.tree.copied)
            modes[step.mode] += 1
            assert step.choice is not None or step.knobs.mode == "tree" or step.mode == "plain"
    assert len(shapes) >= 8, shapes
    assert copied, "the text never offered a token"
    assert modes["tree"]


def by_parent(budgets: Sequence[int], seeds: Sequence[int], sampled: bool) -> None:
    """Trees whose nodes have candidates of their own, and chains and `auto` over them."""
    name, accepted, off = BOTH[0], Counter[int](), 0
    for seed in seeds:
        for budget in budgets:
            for knobs in (Knobs(drafting=f"tree {budget}", p_min=P_MINS[seed % 4], tree_width=1 + budget % 9),
                          Knobs(drafting=f"chain {budget}", chain_seed=bool(seed % 2))):  # fmt: skip
                knobs = knobs.replace(**(SAMPLED if sampled else {}))
                for step in check(name, knobs, seed, sampled, by_parent=True):
                    accepted[step.accepted_depth] += 1
                    path = step.tree.accepted[1:]
                    off += any(node != at + 1 for at, node in enumerate(path))
    policy = learned(PlantedBackend(target(name), prompt(name), [], 0))
    for seed in seeds:
        check_auto(
            name, Knobs(max_tokens=TOKENS, **(SAMPLED if sampled else {})), seed, sampled, policy, by_parent=True
        )
    assert len(accepted) >= 5, accepted
    assert off, "no path ever left the first chain"


@pytest.mark.parametrize("sampled", [full(False), True])
def test_trees_by_parent_are_lossless(sampled: bool) -> None:
    by_parent([7, 63], range(3), sampled)


@pytest.mark.full
@pytest.mark.parametrize("sampled", [False, True])
def test_trees_by_parent_are_lossless_at_every_budget(sampled: bool) -> None:
    by_parent(BUDGETS, range(8), sampled)


def test_a_spoiled_commit_is_seen_under_auto() -> None:
    """The suite above can fail."""
    ids, expected = prompt(BOTH[0]), plain(BOTH[0], False)
    wrong = 0
    for seed in range(6):
        backend = SpoiledBackend(target(), ids, expected, seed)
        knobs = Knobs(drafting="auto", max_tokens=48)
        wrong += decode(backend, ids, knobs, learned(backend))[0] != expected[:48]
    assert wrong


def test_plain_decoding_matches_the_reference() -> None:
    for path in goldens("tiny-[!dlm]*.gguf"):
        expected, model, ids = reference(path), whole.target(path.name), prompt(path.name)
        knobs = Knobs(drafting="plain", max_tokens=len(expected["greedy"]))
        ours = decode(PlantedBackend(model, ids, [], 0), ids, knobs)[0]
        for token, theirs, gap in zip(ours, expected["greedy"], expected["gap"], strict=False):
            if token != theirs:
                assert gap < NEAR_TIE
                break


@pytest.mark.parametrize("name", FIRST)
@pytest.mark.parametrize("p_min", P_MINS)
def test_budgets_are_lossless(name: str, p_min: float) -> None:
    for budget in DEALT[p_min]:
        check(name, Knobs(drafting=f"tree {budget}", p_min=p_min), seed=budget)


@pytest.mark.parametrize("name", FIRST)
def test_no_accepted_path_is_left_out(name: str) -> None:
    """Every accepted length occurs, on the spine and off it. The answer is longer here, since 15 drafts must be left.

    Only a seeded tree numbers a long spine 1, 2, 3, ...; best-first trees branch before they are that deep.
    """
    for chain_seed in (True, False):
        spine, off_spine = Counter[int](), Counter[int]()
        for seed in range(12):
            for step in check(name, Knobs(drafting="tree 64", chain_seed=chain_seed), seed, tokens=LONG):
                path = step.tree.accepted
                (spine if path == tuple(range(len(path))) else off_spine)[step.accepted_depth] += 1
            if len(off_spine) == 15 and (len(spine) == 16 or not chain_seed):
                break
        if chain_seed:
            assert set(spine) == set(range(16)), "an accepted length never occurred"
        assert set(off_spine) == set(range(1, 16)), "an off-spine path of some length never occurred"


@pytest.mark.parametrize("name", FIRST)
def test_every_chain_length_is_lossless(name: str) -> None:
    depths = Counter[int]()
    for length in range(1, 16):
        for seed in range(12 if length == 15 else 2):
            steps = check(name, Knobs(drafting=f"chain {length}"), seed=seed)
            assert all(step.drafted_depth <= length and max(Counter(step.tree.parents).values()) == 1 for step in steps)
            depths.update(step.accepted_depth for step in steps)
    assert set(range(16)) == set(depths)


@pytest.mark.parametrize("name", REST)
def test_other_models_are_lossless(name: str) -> None:
    """Half of the budgets each; test_full_grid has all of them."""
    first = REST.index(name) % 2
    for at, budget in list(enumerate(FEW_BUDGETS))[first::2]:
        check(name, Knobs(drafting=f"tree {budget}", p_min=(0.0, 0.3)[at // 2 % 2]), seed=budget)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_other_architectures_are_lossless(name: str) -> None:
    """Attention alone, and experts: a node's own experts are those of decoding its path one by one. Half of the ways
    each."""
    depths = Counter[int]()
    ways = (
        ((1, "tree", 0.0, False), (7, "tree", 0.3, True), (255, "tree", 0.0, False), (15, "chain", 0.0, False)),
        ((16, "tree", 0.0, False), (22, "tree", 0.0, True), (63, "tree", 0.3, False), (5, "chain", 0.3, True)),
    )
    for budget, mode, p_min, sampled in ways[ARCHITECTURES.index(name) % 2]:
        knobs = Knobs(p_min=p_min, **SAMPLED if sampled else {}).replace(mode=mode, budget=budget)
        depths.update(step.accepted_depth for step in check(name, knobs, seed=budget, sampled=sampled))
    assert len(depths) >= 6, depths


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_auto_is_lossless_with_other_architectures(name: str) -> None:
    policy = learned(PlantedBackend(target(name), prompt(name), [], 0))
    for seed in range(4):
        check_auto(name, Knobs(max_tokens=LONG if seed == 3 else TOKENS), seed, False, policy)


@pytest.mark.parametrize("name", FIRST)
@pytest.mark.parametrize("p_min", [0.0, 0.3])
def test_sampled_tree_equals_sampled_plain(name: str, p_min: float) -> None:
    for at, budget in enumerate(FEW_BUDGETS):
        mode = ("tree", "chain")[(at + (p_min > 0)) % 2]
        check(name, Knobs(p_min=p_min, **SAMPLED).replace(mode=mode, budget=budget), seed=budget, sampled=True)


@cache
def usual(budget: int) -> list[StepEvent]:
    return check(BOTH[0], Knobs(drafting=f"tree {budget}"), seed=budget)


@pytest.mark.parametrize("knob", [{"chain_seed": True}, {"tree_width": 1}, {"tree_width": 3}, {"tree_temperature": 3}])
def test_tree_shapes_are_lossless(knob: dict[str, float]) -> None:
    changed = 0
    for budget in FEW_BUDGETS[2:]:
        steps = check(BOTH[0], Knobs(drafting=f"tree {budget}", **knob), seed=budget)
        changed += [step.tree.parents for step in steps] != [step.tree.parents for step in usual(budget)]
    assert changed >= 3, "the knob has to change the trees that have room for a branch"


def test_p_min_shapes_the_decoders_trees() -> None:
    for step in check(BOTH[0], Knobs(drafting="tree 63", p_min=0.3), seed=5):
        for node in range(2, len(step.tree.tokens)):
            assert step.tree.probs[node] >= 0.3
        assert len(step.tree.tokens) < 64


def test_penalties_follow_the_path() -> None:
    """With penalties, greedy too, the draw depends on the path's own tokens: tree and plain must still agree."""
    penalties = {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.2}
    ids = prompt(BOTH[0])
    for sampling in ({}, SAMPLED):
        knobs = Knobs(drafting="plain", max_tokens=TOKENS + 16, **penalties, **sampling)
        expected = decode(PlantedBackend(target(), ids, [], 0), ids, knobs)[0]
        assert expected != plain(BOTH[0], bool(sampling))
        for budget in FEW_BUDGETS[1::2]:
            backend = PlantedBackend(target(), ids, expected, budget)
            tree = knobs.replace(mode="tree", budget=budget, max_tokens=TOKENS)
            assert decode(backend, ids, tree)[0] == expected[:TOKENS]


class SpoiledBackend(PlantedBackend):
    """Commits the spine instead of the accepted path: the mistake that lossless tests must be able to see."""

    def commit(self, path: object) -> None:
        spine = range(len(path))  # type: ignore[arg-type]
        self.inner._parents = range(-1, len(spine) - 1)  # what is no path of the tree is refused
        self.inner.commit(spine)


class StaleConvBackend(PlantedBackend):
    """Leaves one layer's convolution state where it was."""

    def commit(self, path: object) -> None:
        state = next(state for state in self.inner.states if isinstance(state, DeltaState))
        conv = state.conv
        self.inner.commit(path)  # type: ignore[arg-type]
        state.conv = conv


@pytest.mark.parametrize("broken", [SpoiledBackend, StaleConvBackend])
@pytest.mark.parametrize("budget", [16, pytest.param(63, marks=pytest.mark.full)])
def test_a_spoiled_commit_is_seen(broken: type[PlantedBackend], budget: int) -> None:
    ids, expected = prompt(BOTH[0]), plain(BOTH[0], False)
    wrong = 0
    for seed in range(5):
        backend = broken(target(), ids, expected, seed)
        wrong += decode(backend, ids, Knobs(drafting=f"tree {budget}", max_tokens=48))[0] != expected[:48]
        if wrong == 3:
            break
    assert wrong >= 3, f"budget {budget} hides it: {wrong} of 5"


@pytest.mark.full
@pytest.mark.parametrize("path", [path.name for path in goldens("tiny-[!dl]*.gguf")] + OTHERS)
@pytest.mark.parametrize("sampled", [False, True])
def test_full_grid(path: str, sampled: bool) -> None:
    for budget in BUDGETS:
        for p_min in P_MINS:
            for mode in ("tree", "chain"):
                sampling = SAMPLED if sampled else {}
                check(
                    path,
                    Knobs(p_min=p_min, **sampling).replace(mode=mode, budget=budget),
                    seed=budget + 1,
                    sampled=sampled,
                )


def test_real_drafter_is_lossless() -> None:
    """The random golden drafter through the real session: nothing accepted, nothing changed."""
    ids, expected = prompt(BOTH[0]), plain(BOTH[0], False)
    from dflash_core import Engine

    engine = Engine(target(), load_draft(shallow_draft(), target()))
    events = list(engine.generate(ids, Knobs(drafting="tree 22", max_tokens=TOKENS, ignore_eos=True)))
    assert [token for event in events for token in event.tokens] == expected[:TOKENS]
    assert isinstance(engine.session, CpuSession)
    assert np.isfinite(engine.session.draft(5, 0)).all()


def test_data_is_at_hand() -> None:
    assert all(golden(name).exists() for name in BOTH)
    assert Path(goldens("tiny-F16.gguf")[0]).exists()
