"""Scaled rotary positions: what files say of them, their frequencies beside Hugging Face's, and every refusal."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from dflash_core.arch.rope import Linear, Llama3, Yarn, gguf_scaling, json_scaling
from dflash_core.errors import DFlashError, FormatError, UnsupportedError
from dflash_core.formats.metadata import Settings
from dflash_core.models.norm import Rotary
from support.random_rope import Scaled

YARN = {"type": "yarn", "factor": 4.0, "original_context_length": 100}


def from_gguf(base: float = 1e6, **told: Any) -> Any:
    keys = {f"qwen3.rope.scaling.{name}": value for name, value in told.items() if "__" not in name}
    keys |= {"qwen3." + name.replace("__", "."): value for name, value in told.items() if "__" in name}
    return gguf_scaling(Settings("a.gguf", {"qwen3.context_length": 4096, **keys}, "qwen3."), base)


def from_json(told: Any, base: float = 1e6, name: str = "rope_scaling") -> Any:
    return json_scaling(Settings("a/config.json", {"max_position_embeddings": 400, name: told}), base)


@pytest.mark.parametrize("seed", range(20))
def test_frequencies_are_those_of_hugging_face(seed: int) -> None:
    from transformers import Qwen3Config
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rng, drawn = np.random.default_rng(seed), Scaled.random(seed)
    dims, base = int(rng.choice([4, 16, 64, 128])), float(rng.choice([1e4, 1e6, 1e7]))
    told = drawn.hugging_face()
    if drawn.kind == "yarn" and drawn.attention is None and rng.integers(2):
        told |= {"mscale": 1.5, "mscale_all_dim": 0.8}
    config = Qwen3Config(
        hidden_size=dims, head_dim=dims, num_attention_heads=1, max_position_embeddings=400,
        rope_parameters=told | {"rope_theta": base},
    )  # fmt: skip
    expected, attention = ROPE_INIT_FUNCTIONS[drawn.kind](config, "cpu")
    files = [from_json(told, base), from_json(told, base, "rope_parameters")]
    if "mscale" not in told:
        keys = {key.removeprefix("qwen3.rope.scaling."): value for key, value in drawn.keys("qwen3").items()}
        files.append(from_gguf(base, **keys))
    for found in files:
        assert found.attention == pytest.approx(attention, rel=1e-6)
        frequencies = Rotary(dims, base, torch.float32, found).frequencies
        assert torch.allclose(frequencies, expected, rtol=2e-6)


def test_what_a_gguf_file_may_say() -> None:
    usual = 0.1 * math.log(4) + 1
    assert from_gguf(**YARN) == Yarn(4.0, 100, usual)
    assert from_gguf(type="yarn", factor=4.0) == Yarn(4.0, 4096, usual), "the length it was trained for is all there is"
    assert from_gguf(**YARN, yarn_attn_factor=1.0) == from_gguf(**YARN, attn_factor=1.0) == Yarn(4.0, 100, 1.0)
    assert from_gguf(**YARN, yarn_beta_fast=8.0, yarn_beta_slow=2.0) == Yarn(4.0, 100, usual, 8.0, 2.0)
    assert from_gguf(**YARN, yarn_ext_factor=1.0, yarn_log_multiplier=0.0, finetuned=True) == from_gguf(**YARN)
    assert from_gguf(**YARN, yarn_log_multiplier=1.0) == Yarn(4.0, 100, 1.0)
    assert from_gguf(**YARN, yarn_log_multiplier=0.5) == Yarn(4.0, 100, usual / (0.05 * math.log(4) + 1))
    assert from_gguf(type="linear", factor=2.0) == from_gguf(factor=2.0) == from_gguf(rope__scale_linear=2.0)
    assert from_gguf(factor=2.0) == Linear(2.0)
    for none in ({}, {"type": "none", "factor": 4.0}, {"type": "linear", "factor": 0.0}, {"factor": 1.0}):
        assert from_gguf(**none) is None
    assert from_gguf(type="yarn", factor=1.0) is None
    assert from_gguf(type="yarn", factor=1.0, yarn_attn_factor=1.25, original_context_length=8) == Yarn(1.0, 8, 1.25)


def test_what_a_config_may_say() -> None:
    assert from_json(None) is from_json({"type": "default"}) is from_json({"rope_theta": 1e6}) is None
    assert from_json({"type": "linear", "factor": 2}) == Linear(2.0)
    yarn = {"rope_type": "yarn", "original_max_position_embeddings": 100}
    assert from_json(yarn) == from_json(yarn | {"factor": 4}), "the two lengths give the factor"
    assert from_json({"type": "yarn", "factor": 4}) == Yarn(4.0, 400, 0.1 * math.log(4) + 1)
    assert from_json(yarn | {"factor": 4, "truncate": False}).truncate is False


@pytest.mark.parametrize(
    ("told", "error", "message"),
    [
        ({"type": "dynamic", "factor": 2.0}, UnsupportedError, "scales its rotary positions by dynamic, expected none"),
        ({"type": "longrope"}, UnsupportedError, "scales its rotary positions by longrope, expected none, linear"),
        ({"type": "e\x1b[2Jvil"}, UnsupportedError, r"by 'e\x1b[2Jvil', expected"),
        ({"type": 7}, UnsupportedError, "by 7, expected none, linear"),
        ({"type": "yarn"}, FormatError, "factor, expected a positive number"),
        ({"type": "yarn", "factor": 0.5}, FormatError, "rotary positions are scaled by 0.5, expected at least 1"),
        ({"type": "yarn", "factor": float("nan")}, FormatError, "factor is nan, expected a positive number"),
    ],
)  # fmt: skip
def test_what_nothing_here_implements(told: dict[str, Any], error: type[DFlashError], message: str) -> None:
    readers = [from_gguf, lambda **told: from_json(told)]
    for reader in readers[: 1 if told == {"type": "yarn"} else 2]:  # there a config has two lengths
        with pytest.raises(error) as caught:
            reader(**told)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


def test_llama_3_has_a_tensor_in_gguf_and_settings_in_json() -> None:
    with pytest.raises(UnsupportedError, match=r"by llama3, expected none, linear or yarn; use the model's plain file"):
        from_gguf(type="llama3")
    with pytest.raises(FormatError, match="has no low_freq_factor, expected a positive number"):
        from_json({"rope_type": "llama3", "factor": 8.0})
    with pytest.raises(FormatError, match="between 4 and 1 turns, expected a range"):
        from_json({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0})


@pytest.mark.parametrize("base", [1e4, 5e5])
def test_llama_3_frequencies_are_those_of_hugging_face(base: float) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    told = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    told["original_max_position_embeddings"] = 96
    config = LlamaConfig(
        hidden_size=128, num_attention_heads=1, max_position_embeddings=400, rope_parameters=told | {"rope_theta": base}
    )
    expected, attention = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    found = from_json(told, base)
    assert found == Llama3(8.0, 96, 1.0, 4.0)
    assert attention == found.attention == 1
    assert torch.allclose(Rotary(128, base, torch.float32, found).frequencies, expected, rtol=2e-6)


@pytest.mark.parametrize(
    ("told", "base", "message"),
    [
        (
            YARN | {"yarn_ext_factor": 0.5},
            1e6,
            "rope.scaling.yarn_ext_factor is 0.5, expected 1; this scaling",
        ),
        (YARN | {"yarn_log_multiplier": -1.0}, 1e6, "rope.scaling.yarn_log_multiplier is -1.0, expected a positive"),
        (YARN | {"yarn_beta_fast": 1.0, "yarn_beta_slow": 2.0}, 1e6, "YaRN scales between 2 and 1 turns, expected"),
        (YARN | {"original_context_length": 0}, 1e6, "original_context_length is 0, expected a whole number"),
        (YARN | {"yarn_attn_factor": -1.0}, 1e6, "yarn_attn_factor is -1.0, expected a positive number"),
        (YARN, 1.0, "YaRN scales with a rotary base of 1, expected a base over 1"),
    ],
)
def test_settings_out_of_range(told: dict[str, Any], base: float, message: str) -> None:
    with pytest.raises(DFlashError) as caught:
        from_gguf(base, **told)
    assert message in str(caught.value)


def test_a_config_that_holds_something_else() -> None:
    with pytest.raises(FormatError, match=r"rope_scaling is \[1\], expected an object|rope_scaling is '\[1\]'"):
        from_json([1])
