"""StepStates and trees for kernel tests."""

from __future__ import annotations

import numpy as np

from dflash_core import tree as ddtree
from dflash_core.backends.cuda import state
from dflash_core.backends.cuda.state import MAX_WIDTH
from dflash_core.tree import Candidates, Tree
from support.steps import mask_words


def fresh_state() -> np.ndarray:
    """A StepState in which every byte is poison except those that a turn and its knobs set."""
    st = np.frombuffer(bytearray(b"\x7f" * state.STEP_STATE.itemsize), state.STEP_STATE).reshape(()).copy()
    for name in ("stop", "steps", "answered", "accepted", "parity", "pending", "draft_length", "length"):
        st[name] = 0
    st["chain_seed"], st["log_p_min"], st["inv_tree_temperature"] = 1, -np.inf, 1
    st["width"], st["draft_depth"], st["budget"] = MAX_WIDTH, 15, 22
    st["max_tokens"] = st["context_length"] = 1 << 30
    st["prompt_length"] = 0
    st["stop_ids"] = -1
    st["by_value"] = st["draft_noise"] = 0
    return st


def random_candidates(
    rng: np.random.Generator, depths: int, *, ties: bool = False, vocab: int = 5000
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and descending float32 log-probabilities (depths, MAX_WIDTH), tokens distinct within a depth."""
    tokens = np.array([rng.choice(vocab, MAX_WIDTH, replace=False) for _ in range(depths)], np.int32)
    tokens = tokens.reshape(depths, MAX_WIDTH)
    log_probs = np.log(rng.dirichlet(np.full(MAX_WIDTH, rng.uniform(0.05, 2)), depths) + 1e-30)
    if ties:
        log_probs = np.round(log_probs)  # equal sums along many paths
    order = np.argsort(-log_probs, axis=1, kind="stable")
    return tokens, np.take_along_axis(log_probs, order, 1).astype(np.float32)


def put_tree(st: np.ndarray, tree: Tree) -> None:
    """The tree as tree_build leaves it in a StepState."""
    n = len(tree)
    st["n"] = n
    st["token"][:n], st["parent"][:n], st["depth"][:n] = tree.tokens, tree.parents, tree.depths
    st["log_prob"][:n], st["path_log_prob"][:n] = tree.log_probs, tree.path_log_probs
    st["mask"][:n] = mask_words(tree.parents)


def random_tree(rng: np.random.Generator, vocab: int = 5000) -> Tree:
    """A tree of random shape and size over the tokens under `vocab`."""
    depths = int(rng.integers(1, 16))
    tokens, log_probs = random_candidates(rng, depths, vocab=vocab)
    budget = int(rng.choice([1, 5, 22, 63, 100, 255]))
    return ddtree.build(int(rng.integers(vocab)), Candidates(tokens, log_probs.astype(np.float64)), budget)
