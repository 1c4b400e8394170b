"""Models whose options are combined at random, against a reference in float64 that was written from the definitions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dflash_core import load_target
from dflash_core.arch import registry
from dflash_core.arch.kinds import Activation, Attention, Experts, Gate, SwiGLU
from dflash_core.arch.rope import LongRope, Scaling, Unrotated
from dflash_core.arch.spec import LayerSpec, ModelSpec
from dflash_core.backends.cuda.layers.split_attention import HEAD_DIMS
from dflash_core.formats.gguf import open_gguf
from support import random_options, reference64
from support.grids import full

SEEDS = [*range(8), *(full(seed) for seed in range(8, 80))]
# Of Qwen and of files; they have tests of their own.
ELSEWHERE = {"nextn", "nextn_predict_layers", "file_type", "notes", "name", "architecture", "context_length",
             "vocab_size", "rms_eps", "eps", "frequent_first", "query_growth"}  # fmt: skip


def options() -> Iterator[tuple[type, Any]]:
    """What the models of all seeds consist of, by the class whose fields are options."""
    for seed in range(len(SEEDS)):
        spec = random_options.drawn(np.random.default_rng(seed))
        yield ModelSpec, spec
        for layer in spec.layers:
            yield LayerSpec, layer
            yield type(layer.mixer), layer.mixer
            yield type(layer.ffn), layer.ffn


def test_every_option_is_drawn() -> None:
    """A field of a spec that all drawn models have the same value of is not tested: it belongs into `drawn`."""
    drawn = list(options())
    for kind in (ModelSpec, LayerSpec, Attention, Experts, SwiGLU):
        for option in fields(kind):
            values = {str(getattr(one, option.name)) for of, one in drawn if of is kind}
            assert option.name in ELSEWHERE or len(values) > 1, f"{kind.__name__}.{option.name} is always {values}"
    mixers = [one for of, one in drawn if of is Attention]
    # Layers without positions, LongRoPE and queries that grow are in test_scaled_positions.
    assert {type(one.scaling) for one in mixers} == {type(None), *Scaling.__args__} - {Unrotated, LongRope}
    assert {one.head_dim for one in mixers} == set(HEAD_DIMS)
    assert {one.gate for one in mixers} == set(Gate.__args__)
    assert any(one.rotary < one.head_dim for one in mixers)
    feed_forward = [one for of, one in drawn if of in (Experts, SwiGLU)]
    assert {one.activation for one in feed_forward} == set(Activation.__args__)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_logits_are_those_of_the_reference(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64, so that experts whose scores nearly tie are chosen alike; a tree's path sees what a prompt does."""
    rng = np.random.default_rng(seed)
    spec = random_options.drawn(rng)
    monkeypatch.setitem(registry.ARCHITECTURES, random_options.NAME, random_options.architecture(spec))
    path = random_options.write(spec, tmp_path / "options.gguf", rng)
    target, ids = load_target(path, dtype=torch.float64), rng.integers(0, random_options.VOCABULARY, 60).tolist()
    expected = reference64.logits(spec, open_gguf(path), ids)
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
