"""Models whose options are combined at random, against a reference in float64 that was written from the definitions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dflash_core import load_target
from dflash_core.arch import registry
from support import random_options, reference64
from support.grids import full

SEEDS = [*range(8), *(full(seed) for seed in range(8, 80))]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_logits_are_those_of_the_reference(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64, so that experts whose scores nearly tie are chosen alike; a tree's path sees what a prompt does."""
    rng = np.random.default_rng(seed)
    spec = random_options.drawn(rng)
    monkeypatch.setitem(registry.ARCHITECTURES, random_options.NAME, random_options.architecture(spec))
    target = load_target(random_options.write(spec, tmp_path / "options.gguf", rng), dtype=torch.float64)
    ids = rng.integers(0, random_options.VOCABULARY, 60).tolist()
    expected = reference64.logits(spec, target.file, ids)
    np.testing.assert_allclose(target.logits(ids), expected, rtol=1e-5, atol=2e-5)
    session = target.session()
    session.prefill(ids[:40])
    # Two branches after the same root: the true continuation, with a wrong token beside each of its nodes.
    tokens, parents, path = [ids[40]], [-1], [0]
    for token in ids[41:50]:
        tokens += [(token + 1) % random_options.VOCABULARY, token]
        parents += [path[-1]] * 2
        path.append(len(tokens) - 1)
    np.testing.assert_allclose(session.verify(tokens, parents)[path], expected[40:50], rtol=1e-5, atol=2e-5)
    session.commit(path)
    rest = session.verify(ids[50:], range(-1, len(ids) - 51))
    np.testing.assert_allclose(rest, expected[50:], rtol=1e-5, atol=2e-5)
