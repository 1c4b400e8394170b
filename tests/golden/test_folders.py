"""Folders of Hugging Face models against Hugging Face: random models, saved as bf16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dflash_core import load_draft, load_target
from support import random_family, random_model
from support.folders import changed, in_shards, saved
from support.grids import full
from support.random_files import drawn
from support.random_model import VOCAB

NAMES = ("qwen35", *random_family.MODELS)
PRE = {"qwen35": "qwen35", "qwen35moe": "qwen35"}


def made(name: str, seed: int, **more: Any) -> Any:
    of = drawn(seed, **more)
    if name == "qwen35":
        return random_model.hugging_face(of.shape, seed)
    return random_family.hugging_face(name, of, seed)


def logits(model: Any, ids: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        found: np.ndarray = model(torch.tensor(ids[None]), use_cache=False).logits[0].numpy()
    return found


def check(folder: Path, model: Any, seed: int) -> None:
    """The folder's logits are those of `model`, up to rounding and a near tie of a router."""
    target = load_target(folder)
    ids = np.random.default_rng(seed).integers(0, VOCAB, 60)
    expected, ours = logits(model, ids), target.logits(ids)
    assert expected.std() > 0.1, "a model that says nothing would pass any test"
    rows = random_family.first_close(target, ids)
    assert rows > 10
    assert np.abs(ours - expected)[:rows].max() < 2e-3


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", [0, 1, *map(full, range(2, 8))])
def test_random_models(name: str, seed: int, tmp_path: Path) -> None:
    model = saved(made(name, seed), tmp_path, PRE.get(name, "qwen2"))
    check(tmp_path if seed % 2 else in_shards(tmp_path), model, seed)
