"""Layers of experts on the CPU: the definition row by row, the same choice at every width, routers that fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dflash_core import Engine, Knobs, load_target
from dflash_core.arch.kinds import Experts
from dflash_core.errors import NumericsError
from dflash_core.formats.gguf import GGUFFile, open_gguf
from dflash_core.models import feed_forward
from dflash_core.models.matrix import Weights
from support.compare import generated
from support.formats import weights, write_gguf
from support.golden import other_targets

HIDDEN, SPEC = 32, Experts(count=7, used=3, width=24, shared=16)
VARIANTS = {
    "plain": SPEC,
    "alone": replace(SPEC, shared=0),
    "fused": replace(SPEC, fused=True),
    "scaled": replace(SPEC, scale=2.5, normalised=False),
    "one of one": Experts(count=1, used=1, width=24),
    "all": replace(SPEC, used=7),
}


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def file_of(path: Path, spec: Experts) -> GGUFFile:
    tensors = weights({f"blk.0.{name}": shape for name, shape in spec.tensors(HIDDEN).items()}, seed=3)
    return open_gguf(write_gguf(path / "a.gguf", {"general.architecture": "none"}, tensors))


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def definition(file: GGUFFile, spec: Experts, x: np.ndarray) -> np.ndarray:
    """One row at a time, in float64."""
    w = {name.removeprefix("blk.0."): file.float32(name).astype(np.float64) for name in file.tensors}
    if spec.fused:
        gate, up = np.split(w["ffn_gate_up_exps.weight"], 2, axis=1)
    else:
        gate, up = w["ffn_gate_exps.weight"], w["ffn_up_exps.weight"]
    rows = []
    for row in x.astype(np.float64):
        share = np.exp(w["ffn_gate_inp.weight"] @ row)
        share /= share.sum()
        best = sorted(range(spec.count), key=lambda e: (-share[e], e))[: spec.used]
        total = share[best].sum() if spec.normalised else 1.0
        y = sum(
            spec.scale * share[e] / total * (w["ffn_down_exps.weight"][e] @ (silu(gate[e] @ row) * (up[e] @ row)))
            for e in best
        )
        if spec.shared:
            inside = silu(w["ffn_gate_shexp.weight"] @ row) * (w["ffn_up_shexp.weight"] @ row)
            y += w["ffn_down_shexp.weight"] @ inside / (1 + np.exp(-w["ffn_gate_inp_shexp.weight"] @ row))
        rows.append(y)
    return np.array(rows)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("packed", [False, True])
def test_the_definition(name: str, packed: bool, tmp_path: Path, rng: np.random.Generator) -> None:
    spec = VARIANTS[name]
    file = file_of(tmp_path, spec)
    layer = feed_forward.Experts(Weights(file, dtype=torch.float64, packed=packed), "blk.0.", spec)
    x = rng.standard_normal((40, HIDDEN)) * 0.3
    np.testing.assert_allclose(layer(torch.from_numpy(x)), definition(file, spec, x), atol=1e-12)


@pytest.mark.parametrize("hidden", [32, 48, 2048])
def test_a_row_chooses_the_same_experts_at_every_width(hidden: int, rng: np.random.Generator, tmp_path: Path) -> None:
    """Bit for bit: a pass of another width may not decide a near-tie otherwise."""
    router = feed_forward.Router(Weights(file_of(tmp_path, SPEC)), "blk.0.", SPEC)
    router.spec = replace(SPEC, count=64, used=8)
    router.ffn_gate_inp = torch.from_numpy(rng.standard_normal((64, hidden)).astype(np.float32))
    rows = torch.from_numpy(rng.standard_normal((70, hidden)).astype(np.float32))
    chosen, shares = router(rows)
    for width in (1, 2, 5, 16, 33):
        for at in range(0, 70, width):
            part, of_part = router(rows[at : at + width].clone())
            assert torch.equal(part, chosen[at : at + width])
            assert torch.equal(of_part, shares[at : at + width])


def test_of_equal_scores_the_lower_expert_is_taken(tmp_path: Path) -> None:
    router = feed_forward.Router(Weights(file_of(tmp_path, SPEC)), "blk.0.", SPEC)
    router.ffn_gate_inp[:] = router.ffn_gate_inp[4].clone()
    chosen, shares = router(torch.ones(2, HIDDEN))
    assert chosen.tolist() == [[0, 1, 2]] * 2
    np.testing.assert_allclose(shares, 1 / 3, rtol=1e-6)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_router_that_is_not_finite_ends_the_turn_and_not_the_session(value: float) -> None:
    target = load_target(other_targets("q3moe-Q8_0.gguf")[0])
    engine, knobs = Engine(target), Knobs(drafting="plain", max_tokens=6, ignore_eos=True)
    sound = generated(engine, [5, 6, 7], knobs)
    router = target.model.blk[1].ffn.router.ffn_gate_inp
    kept = router.clone()
    events = engine.generate([5, 6, 7, *sound, 9], knobs)
    next(events)
    router[3, 2] = value
    with pytest.raises(NumericsError) as caught:
        list(events)
    assert str(caught.value) == (
        "the router blk.1.ffn_gate_inp.weight produced scores that are not finite, expected numbers; the file is"
        " damaged: get it again, or compare it with another conversion"
    )
    router[:] = kept
    assert generated(engine, [5, 6, 7], knobs) == sound
