"""A whole model on a card: trees have the bits of plain decoding, in logits and in the states that a commit leaves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dflash_core.backends.cuda.session import CudaSession
from support.device_pairs import pair, prompt
from support.steps import random_parents


def path_to(node: int, parents: list[int]) -> list[int]:
    return [*path_to(parents[node], parents), node] if node >= 0 else []


def states(session: CudaSession) -> list[torch.Tensor]:
    return [tensor for kept in session.checkpoint().saved for tensor in kept or ()]


@pytest.mark.parametrize("nodes", [(16, 5, 1, 24), (40,), (70,)])
def test_a_tree_is_plain_decoding_bit_for_bit(
    device_name: str, rng: np.random.Generator, nodes: tuple[int, ...]
) -> None:
    """Step after step, each after the commit of a path: every node's logits, and all states afterwards."""
    tree, _ = pair(device_name, "tiny-F16.gguf").sessions()
    plain, _ = pair(device_name, "tiny-F16.gguf").sessions()
    for session in (tree, plain):
        session.prefill(prompt()[:19])
    for n in nodes:
        parents = random_parents(n, rng)
        tokens = rng.integers(0, 700, n).tolist()
        logits = tree.verify(tokens, parents)
        path = path_to(n - 1 if n > 1 else 0, parents)
        for node in path:
            alone = plain.verify([tokens[node]], [-1])[0]
            np.testing.assert_array_equal(alone, logits[node], f"node {node} of {n}")
            plain.commit([0])
        tree.commit(path)
    np.testing.assert_array_equal(tree.verify([3], [-1]), plain.verify([3], [-1]))
    for session in (tree, plain):
        session.commit([0])
    for a, b in zip(states(tree), states(plain), strict=True):
        assert torch.equal(a, b)
