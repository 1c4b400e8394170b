"""DFlash 2 and DSpark on a card, emulated and real: logits and scores by the token above are the reference's, trees are
built from these scores, and the text is plain decoding's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tools.bench.replay import GivenCosts

from dflash_core import Knobs
from dflash_core import tree as ddtree
from dflash_core.arch.draft_heads import Convolution, Markov, Selector
from dflash_core.arch.spec import EMBEDDING
from dflash_core.backends.cuda import session as cuda_session
from dflash_core.backends.cuda.launch import Launch
from dflash_core.backends.cuda.step_graphs import TREE_THREADS
from dflash_core.errors import UnsupportedError
from dflash_core.events import StepEvent
from dflash_core.knobs import Value
from dflash_core.policy import best_first
from dflash_core.policy.arm import Arm, PairState
from dflash_core.policy.costs import H200
from dflash_core.policy.queued import QueuedPolicy
from dflash_core.policy.values import CLASSES, FEATURES, Learned, Stated, start_weights
from dflash_core.policy.walked import shown
from dflash_core.runner import Runner
from support.behind import draft_logits
from support.block_device import BlockPair, block_pair
from support.chosen import chosen_path
from support.device_pairs import CONTEXT, close, device_named, prompt
from support.draft_files import LAGUNA
from support.grids import full
from support.planted_device import PlantedDevice

VOCABULARY = 768
KINDS = ("dflash2", "dspark")
HIDDEN = 256  # of the golden target
PAIR_TOLERANCE = 5e-2  # of scores by the token above: a selector multiplies two rounded factors
SHAPES: list[tuple[str, dict[str, Any]]] = [
    ("dflash2", {}), ("dflash2", {"causal": (True, True), "sliding_window": 5}), ("dflash2", {"sliding_window": 5}),
    ("dflash2", {"embedding_scale": 2.0, "logit_scale": 0.5, "softcap": 3.0, "own_embedding": True, "own_head": True}),
    ("dflash2", {"conv": Convolution(4, 4), "selector": Selector(40, 9), "block_size": 5, "sliding": (True, False)}),
    ("dflash2", {"conv": Convolution(2, 64), "block_size": 16}),
    ("dflash2", {"draft_vocab": 300, "own_head": True}),
    ("dflash", {"draft_vocab": 123, "own_head": True, "own_embedding": True}),
    ("dflash", LAGUNA), ("dflash", {**LAGUNA, "head_count": 6, "head_count_kv": 2, "target_layers": (2, EMBEDDING, 1)}),
    ("dspark", {}), ("dspark", {"target_layers": (EMBEDDING, 2)}), ("dflash2", {"target_layers": (3, EMBEDDING, 1)}),
    ("dspark", {"markov": Markov(40), "own_embedding": False, "own_head": False, "block_size": 16}),
    ("dspark", {"markov": Markov(6, confidence=HIDDEN), "anchor_first": False, "block_size": 5}),
    ("dspark", {"draft_vocab": 250, "logit_scale": 0.5, "softcap": 4.0, "embedding_scale": 2.0, "block_size": 2}),
    ("dspark", {"markov": Markov(9, True, HIDDEN + 9, True), "sliding": (True, False), "sliding_window": 5,
                "causal": (True, True), "target_layers": (0, 2)}),
]  # fmt: skip


# Those of one thing that others have too, with `full`.
MORE_SHAPES = (0, 2, 5, 10, 11, 13)


@pytest.mark.parametrize("shape", [full(at) if at in MORE_SHAPES else at for at in range(len(SHAPES))])
def test_drafts_are_the_references(device_name: str, tmp_path: Path, shape: int) -> None:
    kind, changes = SHAPES[shape]
    pair = block_pair(device_named(device_name), tmp_path, kind, **changes)
    ours, theirs = pair.sessions()
    ids = prompt()[:21]
    for session in (ours, theirs):
        session.prefill(ids)
    for _ in range(2):
        same_logits(ours.draft(ids[-1], 0), theirs.draft(ids[-1], 0))
    same_logits(ours.draft(ids[4], 0, 4), theirs.draft(ids[4], 0, 4))
    for knobs in (Knobs(), Knobs(tree_temperature=0.6), Knobs(temperature=0.8, top_p=0.9, seed=3)):
        found, expected = ours.propose(ids[-1], knobs), theirs.propose(ids[-1], knobs)
        assert found.tokens.shape == expected.tokens.shape == (pair.draft.config.depths, found.tokens.shape[1])
        assert (found.given is None) == (kind == "dflash")
        np.testing.assert_allclose(found.log_probs, expected.log_probs, atol=3e-2)
        # Where the last candidate is another one, what they share among them is too.
        same = [set(mine) == set(other) for mine, other in zip(found.tokens.tolist(), expected.tokens.tolist())]
        assert sum(same) >= len(same) // 2
        pairs: list[tuple[float, float]] = []
        markov, swapped = pair.draft.config.heads.markov, 0
        for depth in np.flatnonzero(same).tolist():
            above = [ids[-1]] if depth == 0 else found.tokens[depth - 1].tolist()
            for token in set(above) & set([ids[-1]] if depth == 0 else expected.tokens[depth - 1].tolist()):
                (mine, said), (others, told) = found.below(depth, token), expected.below(depth, token)
                if markov and markov.confidence and mine[:2] == others[1::-1]:
                    # Of two whose scores are all but equal the better one gets the confidence head's probability.
                    others[:2], swapped = mine[:2], swapped + 1
                ranks = dict(zip(others, told))
                assert len(mine) == len(others) == 8
                shared = [(one, ranks[name]) for name, one in zip(mine, said) if name in ranks]
                assert len(shared) >= 6
                pairs += [(said[0], told[0]), *shared]
        assert swapped <= 1
        close(*np.array(pairs).T, PAIR_TOLERANCE)


@pytest.mark.parametrize(("kind", "changes"), [("dspark", {}), ("dflash", LAGUNA)])
def test_a_prompts_chunk_captures_the_embedding_too(
    device_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, changes: dict[str, Any]
) -> None:
    monkeypatch.setattr(cuda_session, "MIN_ROWS", 1)
    pair = block_pair(device_named(device_name), tmp_path, kind, target_layers=(2, EMBEDDING), **changes)
    ours, theirs = pair.sessions()
    for session in (ours, theirs):
        session.prefill(prompt()[:21])
    same_logits(ours.draft(7, 0), theirs.draft(7, 0))


def same_logits(found: np.ndarray, expected: np.ndarray) -> None:
    """They also agree in which tokens the draft vocabulary lacks."""
    assert np.array_equal(np.isneginf(found), np.isneginf(expected))
    live = np.isfinite(expected)
    close(found[live], expected[live])


@pytest.mark.parametrize(
    ("kind", "changes"), [("dflash2", {}), ("dspark", {}), ("dspark", {"draft_vocab": 250}), ("dflash", LAGUNA)]
)
def test_the_greedy_path(tmp_path: Path, device_name: str, kind: str, changes: dict[str, Any]) -> None:
    pair = block_pair(device_named(device_name), tmp_path, kind, **changes)
    draft, reference = pair.draft, pair.target
    ours = replace(draft, model=pair.device_draft, drafter=None, capabilities=pair.device_draft.capabilities)
    features = reference.hidden(list(prompt()[:30]), draft.config.target_layers)
    same_logits(draft_logits(ours, features, 7, pair.device_target), draft_logits(draft, features, 7))
    assert chosen_path(ours, features, 7, pair.device_target) == chosen_path(draft, features, 7)


def runner(pair: BlockPair) -> Runner:
    return Runner(pair.sessions()[0], frozenset(), CONTEXT, VOCABULARY)


def answer(one: Runner, tokens: int = 10, **knobs: Value) -> tuple[list[int], list[StepEvent]]:
    asked = Knobs().replace(**{"temperature": 0.0, "max_tokens": tokens, "ignore_eos": True, **knobs})  # type: ignore[arg-type]
    events = list(one.generate(prompt()[:7], asked))
    return [token for event in events for token in event.tokens], [one for one in events if isinstance(one, StepEvent)]


WAYS: list[dict[str, Value]] = [
    {"mode": "tree", "budget": 31}, {"mode": "tree", "budget": 12, "chain_seed": True, "tree_width": 3},
    {"mode": "tree", "budget": 22, "p_min": 0.02}, {"mode": "chain", "budget": 7}, {"mode": "auto"},
    {"mode": "tree", "budget": 15, "by_parent": False},
]  # fmt: skip


BUDGETS = [1, 2, 5, 22, 63, 64, 100, 255]
GRID: list[dict[str, Value]] = [
    {"mode": "tree", "budget": budget, "p_min": p_min} for budget in BUDGETS for p_min in (0.0, 0.02, 0.3)
]
SAMPLED: dict[str, Value] = {"temperature": 0.8, "top_k": 20, "seed": 7}
EVERY_BUDGET: list[dict[str, Value]] = [{"mode": "tree", "budget": budget} for budget in range(1, 65)]


FEW: list[dict[str, Value]] = [
    {"mode": "tree", "budget": 22, "p_min": 0.02}, {"mode": "tree", "budget": 9, "by_parent": False},
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "ways"),
    [("dflash2", WAYS[1:4:2]), ("dspark", FEW), *(pytest.param(kind, WAYS, marks=pytest.mark.full) for kind in KINDS),
     *(pytest.param(kind, [*GRID, *EVERY_BUDGET], marks=pytest.mark.full) for kind in KINDS)],
    ids=["dflash2", "dspark", "dflash2-ways", "dspark-ways", "dflash2-grid", "dspark-grid"],
)  # fmt: skip
def test_trees_are_best_first_over_scores_by_the_token_above(
    device_name: str, tmp_path: Path, kind: str, ways: list[dict[str, Value]]
) -> None:
    """The card's tree is the one that the reference code builds from the same proposals. All modes give one text."""
    one = runner(block_pair(device_named(device_name), tmp_path, kind, half=False))
    expected, _ = answer(one, mode="plain")
    for way in ways:
        one.reset()
        found, steps = answer(one, **way)
        assert found == expected, way
        text = [*prompt()[:7], found[0]]
        for step in steps[:2]:
            drafts = one.propose(text[:-1], text[-1], step.knobs)
            assert (drafts.given is None) == (not step.knobs.by_parent)
            if way["mode"] != "auto":
                drafts = drafts.cut(len(drafts.tokens), 1 if way["mode"] == "chain" else int(way.get("tree_width", 8)))
                twin = ddtree.build(
                    text[-1], drafts, int(way["budget"]), p_min=step.knobs.p_min, chain_seed=step.knobs.chain_seed
                )
                left = 10 - (len(text) - 7) - 1
                if max(twin.depths) <= left:
                    assert step.tree.tokens == twin.tokens, way
                    assert step.tree.parents == twin.parents
            text += step.tokens


@pytest.mark.parametrize(
    ("kind", "ways"),
    [("dspark", [{"budget": 1}, {"budget": 23, "p_min": 0.02}]),
     *(pytest.param(kind, [{"budget": budget, "p_min": p_min} for budget in BUDGETS for p_min in (0.0, 0.02, 0.3)],
                    marks=pytest.mark.full) for kind in KINDS)],
    ids=["dspark", "dflash2-grid", "dspark-grid"],
)  # fmt: skip
def test_draws_are_those_of_plain_decoding(
    device_name: str, tmp_path: Path, kind: str, ways: list[dict[str, Value]]
) -> None:
    """With p_min the confidence head is used too."""
    one = runner(block_pair(device_named(device_name), tmp_path, kind, half=False))
    plain, _ = answer(one, 6, mode="plain", **SAMPLED)
    for way in ways:
        one.reset()
        assert answer(one, 6, mode="tree", **way, **SAMPLED)[0] == plain, way


@pytest.mark.emulator
@pytest.mark.parametrize("kind", KINDS)
def test_learned_values_over_scores_by_the_token_above(tmp_path: Path, rng: np.random.Generator, kind: str) -> None:
    """tree_build adds nodes in the policy's own order for any weights."""
    pair = block_pair(device_named("emulated"), tmp_path, kind)
    session, _ = pair.sessions()
    session.prefill(prompt()[:12])
    knobs, root = Knobs(), 9
    drafts = session.propose(root, knobs)
    for _ in range(6):
        learned = Learned(start_weights() + rng.normal(0, 0.4, (CLASSES, FEATURES)))
        stated = Stated(drafts.tokens, drafts.log_probs, drafts, root)
        twin = best_first.build(stated, learned, None, root, (), 23)
        state = session.state.host
        state["root"], state["by_parent"], state["by_value"], state["rows"] = root, 1, 1, 24
        state["weights"], state["budget"], state["width"], state["draft_depth"] = learned.weights, 23, 8, 7
        state["max_tokens"], state["context_length"], state["prompt_length"], state["answered"] = 500, 500, 12, 1
        state["stop_ids"] = -1
        session.state.push()
        defines, inputs = session.drafter.tree_inputs  # type: ignore[union-attr]
        args = [session.state.pointer, session.stamps, *inputs]
        session.device.bind([Launch("tree.cu", "tree_build", defines, 1, TREE_THREADS, args)])()
        session.state.pull()
        n = int(state["n"])
        assert n == len(twin.tokens)
        np.testing.assert_allclose(np.array(state["value"][:n]), twin.values, rtol=2e-4)
        assert tuple(state["token"][: n // 2]) == tuple(twin.tokens[: n // 2])


@pytest.mark.emulator
@pytest.mark.parametrize("kind", KINDS)
def test_auto_learns_from_what_was_built(tmp_path: Path, kind: str) -> None:
    pair = block_pair(device_named("emulated"), tmp_path, kind, half=False)
    expected, _ = answer(runner(pair), 14, mode="plain")
    session = pair.sessions()[0]
    policy = QueuedPolicy(Arm(session.capabilities, PairState(), GivenCosts(H200)))
    one = Runner(session, frozenset(), CONTEXT, VOCABULARY, policy=policy)
    found, steps = answer(one, 14)
    assert found == expected
    built = [step for step in steps if step.choice is not None and step.mode != "plain"]
    assert built
    classes, features, outcomes = shown(built[0], ())
    assert len(classes) == len(features) == len(outcomes) >= 1
    assert classes[0] == 0
    policy._teach("answer")  # a few steps wait for the next answer
    assert not np.array_equal(policy.arm.state.parts["answer"].learned.weights, start_weights())


@pytest.mark.emulator
@pytest.mark.parametrize(("kind", "deepest"), [("dflash2", 5), ("dspark", 7)])
def test_long_walks_leave_the_answer_as_it_is(tmp_path: Path, kind: str, deepest: int) -> None:
    """A block that begins with its anchor commits one position more than it has rows."""
    plain = answer(runner(block_pair(device_named("emulated"), tmp_path, kind, half=False)), 28, mode="plain")[0]
    device = PlantedDevice(plain, [0, 1, 0, 0, 2, 0, 0] if kind == "dflash2" else [0] * 7)
    pair = block_pair(device, tmp_path / "again", kind, half=False)
    device.session, _ = pair.sessions()
    one = Runner(device.session, frozenset(), CONTEXT, VOCABULARY)
    found, steps = answer(one, 28, mode="tree", budget=23, by_parent=False)
    assert found == plain
    assert max(step.accepted_depth for step in steps) >= deepest
    # The caches hold after these steps what they hold after a prompt of the same tokens.
    fresh = pair.sessions()[0]
    ids = [*prompt()[:7], *found[:-1]]
    fresh.prefill(ids)
    assert device.session.length == len(ids)
    close(device.session.draft(found[-1], 0), fresh.draft(found[-1], 0))


def test_what_a_card_does_not_run(tmp_path: Path) -> None:
    with pytest.raises(
        UnsupportedError, match="a selector among 20 tokens per position, expected at most 16 on a card"
    ):
        block_pair(device_named("emulated"), tmp_path, "dflash2", selector=Selector(8, 20))
    for kind, size, most in (("dflash2", 65, 64), ("dspark", 64, 63)):
        with pytest.raises(UnsupportedError, match=f"block has {size} positions, expected at most {most} on a card"):
            block_pair(device_named("emulated"), tmp_path / kind, kind, block_size=size)


@pytest.mark.emulator
@pytest.mark.parametrize("kind", KINDS)
def test_candidates_that_are_no_numbers_are_left_out(tmp_path: Path, kind: str) -> None:
    pair = block_pair(device_named("emulated"), tmp_path, kind)
    pair.device_draft.output_norm[:] = float("nan")  # type: ignore[attr-defined]
    one = runner(pair)
    plain, _ = answer(runner(pair), mode="plain")
    found, steps = answer(one, mode="tree")
    assert found == plain
    assert steps[-1].mode == "plain"
    (note,) = one.drafter_notes
    assert note.startswith(f"{kind} is left out: the drafter produced numbers that are not finite")
