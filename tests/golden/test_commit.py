"""The state after a commit is what decoding the accepted path one token at a time would have left."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dflash_core import Engine, Knobs, load_draft, load_target
from dflash_core.backends.cpu.session import CpuSession
from dflash_core.events import PrefillEvent
from dflash_core.models.delta_net import DeltaState
from dflash_core.models.kv_cache import KVCache
from support.behind import draft_logits
from support.golden import golden, other_targets, target_path
from support.grids import full

PROMPT = 20


def random_tree(rng: np.random.Generator, nodes: int) -> list[int]:
    """Parents of a bushy random tree in topological order."""
    return [-1, *(int(rng.integers(max(0, node - 6), node)) for node in range(1, nodes))]


def path_to(parents: list[int], node: int) -> list[int]:
    path = [node]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    return path[::-1]


def tensors(state: DeltaState | KVCache, length: int) -> list[torch.Tensor]:
    if isinstance(state, DeltaState):
        return [state.s, state.conv]
    return [state.k[:, :length], state.v[:, :length]]


TINY = golden("tiny-F16.gguf"), golden("tiny-dflash")
OTHERS = [(path, path.with_name(path.name.replace("-F16.gguf", "-dflash"))) for path in other_targets("q3*-F16.gguf")]


SIZES = (1, 2, 16, 23, 41, 65, 129)


def worst_error(dtype: torch.dtype, seed: int, pair: tuple[Path, Path] = TINY, sizes: tuple[int, ...] = SIZES) -> float:
    """The largest error over random trees of `sizes` nodes."""
    target = load_target(pair[0], dtype=dtype)
    drafter = load_draft(pair[1], target, dtype=dtype)
    rng = np.random.default_rng(seed)
    worst = 0.0
    prompt = [int(token) for token in rng.integers(0, target.config.vocab_size, PROMPT)]
    plain = target.session(drafter)
    for token in prompt:
        plain.prefill([token])
    after_prompt = plain.checkpoint()
    for nodes in sizes:
        parents = random_tree(rng, nodes)
        drafts = [int(token) for token in rng.integers(0, target.config.vocab_size, nodes)]
        path = path_to(parents, int(rng.integers(0, nodes)))
        tree = target.session(drafter)
        tree.prefill(prompt)
        tree.verify(drafts, parents)
        tree.commit(path)
        plain.restore(after_prompt)
        for node in path:
            plain.prefill([drafts[node]])
        # The drafter's context must be the accepted path's features too, rejected rows never in it.
        tree.draft(5, 0), plain.draft(5, 0)
        for ours, theirs in zip([*tree.states, *tree.drafter.caches], [*plain.states, *plain.drafter.caches]):
            for a, b in zip(tensors(ours, tree.length), tensors(theirs, plain.length)):
                worst = max(worst, float((a - b).norm() / b.norm()))
    return worst


@pytest.mark.parametrize("seed", [0, full(1), full(2)])
def test_state_after_commit_float32(seed: int) -> None:
    assert worst_error(torch.float32, seed) <= 2e-5


def test_state_after_commit_float64() -> None:
    assert worst_error(torch.float64, 0) <= 1e-11


@pytest.mark.parametrize("pair", OTHERS, ids=lambda pair: pair[0].stem)
def test_state_after_commit_with_other_architectures(pair: tuple[Path, Path]) -> None:
    assert worst_error(torch.float32, 0, pair, (2, 23, 65)) <= 2e-5
    assert worst_error(torch.float64, 1, pair, (16, 41)) <= 1e-11


def test_every_path_of_small_trees() -> None:
    target = load_target(golden("tiny-F16.gguf"), dtype=torch.float64)
    rng = np.random.default_rng(4)
    for parents in ([-1, 0, 0, 1, 1, 2], [-1, 0, 1, 2, 0, 4, 1, 6]):
        tokens = [int(token) for token in rng.integers(0, 768, len(parents))]
        for node in range(len(parents)):
            path = path_to(parents, node)
            tree, plain = CpuSession(target.model), CpuSession(target.model)
            for session in (tree, plain):
                session.prefill([1, 2])  # shorter than the convolution: zero padding is still in the state
            tree.verify(tokens, parents)
            tree.commit(path)
            plain.prefill([tokens[at] for at in path])
            assert np.allclose(tree.prefill([9]), plain.prefill([9]), atol=1e-6)


@pytest.mark.parametrize("name", ["tiny-F16", "q3moe-Q8_0", "q35moe-F16"])
def test_verify_logits_equal_sequential_decoding(name: str) -> None:
    target = load_target(target_path(f"{name}.gguf"))
    rng = np.random.default_rng(8)
    parents = random_tree(rng, 40)
    tokens = [int(token) for token in rng.integers(0, target.config.vocab_size, 40)]
    prompt = [int(token) for token in rng.integers(0, target.config.vocab_size, PROMPT)]
    session = CpuSession(target.model)
    session.prefill(prompt)
    ours = session.verify(tokens, parents)
    for node in range(40):
        plain = CpuSession(target.model)
        expected = plain.prefill(prompt + [tokens[at] for at in path_to(parents, node)])
        assert np.abs(ours[node] - expected).max() < 2e-4


def test_checkpoint_returns_to_the_state() -> None:
    target = load_target(golden("tiny-F16.gguf"))
    session = target.session(load_draft(golden("tiny-dflash"), target))
    session.prefill(range(30))
    point = session.checkpoint()
    draft = session.draft(3, 0)
    expected = session.prefill([7, 8, 9])
    session.restore(point)
    assert session.length == 30
    assert np.array_equal(session.draft(3, 0), draft)
    assert np.array_equal(session.prefill([7, 8, 9]), expected)
    session.restore(None)
    assert session.length == 0


def test_the_drafter_sees_the_context_of_the_checkpoint() -> None:
    """After a rewind and other tokens, the drafter's context must hold the features of the new text only."""
    target = load_target(golden("tiny-F16.gguf"))
    drafter = load_draft(golden("tiny-dflash"), target)
    session = target.session(drafter)
    session.prefill(range(30))
    point = session.checkpoint()
    for updated_before in (False, True):
        session.prefill([7, 8, 9, 10])
        if updated_before:
            session.draft(3, 0)
        session.restore(point)
        session.prefill([400, 401])
        features = target.hidden([*range(30), 400, 401], drafter.config.target_layers)
        assert np.abs(session.draft(3, 0) - draft_logits(drafter, features, 3)).max() < 1e-3
        session.restore(point)


def test_any_prefix_is_reused_where_nothing_is_recurrent() -> None:
    """After an edit in the middle of a text only what follows it is read again, and the state is a fresh session's."""
    target = load_target(target_path("q3-F16.gguf"))
    drafter = load_draft(other_targets("q3-dflash")[0], target)
    engine, fresh = Engine(target, drafter), Engine(target, drafter)
    knobs = Knobs(drafting="tree 22", max_tokens=8, ignore_eos=True)
    list(engine.generate(range(60), knobs))
    assert engine.session.checkpoint().nbytes == 0
    for ids, shared in (([*range(40), 7, 8], 40), ([*range(25)], 24), ([9], 0)):
        events = list(engine.generate(ids, knobs))
        assert isinstance(events[0], PrefillEvent)
        assert events[0].reused_tokens == shared
        fresh.reset()
        assert [event.tokens for event in fresh.generate(ids, knobs)] == [event.tokens for event in events]
        assert np.abs(engine.session.draft(5, 0) - fresh.session.draft(5, 0)).max() < 1e-4
