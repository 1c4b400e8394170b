"""Scaled rotary positions of random configurations, against Hugging Face's own models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dflash_core import load_target
from dflash_core.arch.kinds import Attention
from support import random_family, random_model
from support.grids import full
from support.random_rope import Scaled

VOCAB = random_model.VOCAB


def made(name: str, seed: int, path: Path) -> Any:
    """A random model of an architecture by Hugging Face, written to `path`."""
    rope = Scaled.random(seed)
    if name == "qwen35":
        shape = random_model.Shape.random(seed)
        model = random_model.hugging_face(shape, seed, rope)
        random_model.write_gguf(model, shape, path, rope)
        return model
    drawn = random_family.Drawn.random(seed)
    model = random_family.hugging_face(name, drawn, seed, rope)
    random_family.write_gguf(name, model, drawn, path, rope)
    return model


@pytest.mark.parametrize("name", ["qwen35", *random_family.MODELS])
@pytest.mark.parametrize("seed", [*range(4), *map(full, range(4, 10))])
def test_random_configurations(name: str, seed: int, tmp_path: Path) -> None:
    model = made(name, seed, tmp_path / "random.gguf")
    target = load_target(tmp_path / "random.gguf")
    ids = np.random.default_rng(seed).integers(0, VOCAB, 150)
    with torch.no_grad():
        expected = model(torch.tensor(ids[None]), use_cache=False).logits[0].numpy()
    ours = target.logits(ids)
    wrong = np.flatnonzero(np.abs(ours - expected).max(-1) >= 2e-3)
    if len(wrong):  # excused, and counted, after a row whose experts were chosen by a tiny margin
        assert wrong[0] >= random_family.first_close(target, ids)
        assert len(wrong) <= 30, f"{len(wrong)} rows of 150 differ after row {wrong[0]}"
    assert all(mixer.scaling for mixer in target.config.of(Attention))
