"""Folders of Hugging Face models against Hugging Face: random models, saved as bf16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dflash_core import load_target
from support import random_family, random_model
from support.folders import PRE, changed, in_shards, quantised, saved, wide, with_fused_experts
from support.grids import full
from support.quantised import LAYOUTS
from support.random_files import drawn
from support.random_model import VOCAB

NAMES = ("qwen35", *random_family.MODELS)


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


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("turn", range(3))
def test_quantised_models(name: str, turn: int, tmp_path: Path) -> None:
    """Layouts mixed per matrix; a third of them in each turn."""
    model = saved(wide(name, turn), tmp_path, PRE.get(name, "qwen2"))
    layouts = [layout for layout in LAYOUTS if layout != "gptq-v2"][turn::3]
    assert len(quantised(tmp_path, model, layouts, turn)) > 2
    check(tmp_path, model, turn)


def test_zeros_as_they_are(tmp_path: Path) -> None:
    """The second version of GPTQ, which the config names."""
    model = saved(wide("qwen3", 0), tmp_path)
    quantised(tmp_path, model, ["gptq-v2"], 0)
    method = {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"}
    check(changed(tmp_path, config=lambda found: found | {"quantization_config": method}), model, 0)


def test_experts_of_a_layer_as_one_tensor(tmp_path: Path) -> None:
    model = saved(wide("qwen35moe", 1), tmp_path, "qwen35")
    check(changed(tmp_path, with_fused_experts), model, 1)


def test_a_language_model_within_another(tmp_path: Path) -> None:
    """As published: the prefix of a model of images, its tower, and nested settings."""
    model = saved(wide("qwen35", 1), tmp_path, "qwen35")

    def renamed(found: dict[str, Tensor]) -> dict[str, Tensor]:
        kept = {name.replace("model.", "model.language_model.", 1): one for name, one in found.items()}
        return kept | {"model.visual.patch_embed.proj.weight": torch.zeros(4, 3, 2, 2, 2)}

    def nested(found: dict[str, Any]) -> dict[str, Any]:
        return {"model_type": "qwen3_5", "text_config": found, "vision_config": {"depth": 2}, "image_token_id": 3}

    check(changed(tmp_path, renamed, nested), model, 1)
