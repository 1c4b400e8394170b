"""A config.json of each family whose values are odd: it is read, or refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dflash_core.arch.architecture import Head
from dflash_core.arch.folders.form import Form
from dflash_core.arch.folders.opening import FORMS
from dflash_core.arch.folders.settings import frequency_divisors
from dflash_core.arch.registry import ARCHITECTURES
from dflash_core.errors import DFlashError, FormatError
from dflash_core.formats.folders.layouts import Modules
from dflash_core.formats.metadata import Settings
from dflash_core.formats.safetensors import SafetensorsFile

ODD: tuple[Any, ...] = (
    None, -1, 0, 7, 0.5, 1 << 70, float("inf"), "x", True, [], ["x"], [1, None], {}, {"x": {}}, {"type": "x"}, [[]],
)  # fmt: skip
SIZES: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
WINDOWS = ["sliding_attention", "full_attention"] * 2
BOTH = {
    "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": SIZES | {"rope_parameters": LLAMA3, "hidden_act": "silu"},
    "qwen3": SIZES | {"rope_theta": 1e6, "use_sliding_window": False, "hidden_act": "silu"},
    "qwen3_moe": SIZES | EXPERTS | {"rope_theta": 1e6, "num_experts": 5, "norm_topk_prob": True, "rope_scaling": YARN},
    "gemma3_text": SIZES | {
        "sliding_window": 16, "query_pre_attn_scalar": 64, "layer_types": WINDOWS, "sliding_window_pattern": 2,
        "rope_local_base_freq": 1e4, "rope_theta": 1e6, "hidden_activation": "gelu_pytorch_tanh",
        "final_logit_softcapping": None, "use_bidirectional_attention": False,
    },
    "gemma4_text": SIZES | {
        "sliding_window": 16, "layer_types": WINDOWS, "global_head_dim": 128, "num_global_key_value_heads": 1,
        "attention_k_eq_v": True, "num_kv_shared_layers": 0, "rope_parameters": BOTH, "enable_moe_block": True,
        "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 32, "use_double_wide_mlp": False,
        "hidden_size_per_layer_input": 0, "final_logit_softcapping": 30.0, "hidden_activation": "gelu_pytorch_tanh",
    },
    "laguna": SIZES | EXPERTS | {
        "sliding_window": 16, "layer_types": WINDOWS, "num_attention_heads_per_layer": [4, 6, 4, 6], "num_experts": 5,
        "shared_expert_intermediate_size": 64, "moe_routed_scaling_factor": 2.5, "gating": "per-head",
        "gating_types": ["per_head"] * 4, "mlp_only_layers": [0], "mlp_layer_types": ["dense"] + ["sparse"] * 3,
        "rope_parameters": {"full_attention": YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}},
    },
    "gpt_oss": SIZES | {
        "sliding_window": 16, "layer_types": WINDOWS, "num_local_experts": 4, "num_experts_per_tok": 2,
        "rope_parameters": YARN | {"truncate": False}, "attention_bias": True, "swiglu_limit": 7.0,
    },
}  # fmt: skip


def read(name: str, values: dict[str, Any]) -> Any:
    form: Form = FORMS[name]
    layers = [f"model.layers.{at}.self_attn.v_proj" for at, kind in enumerate(WINDOWS) if kind == WINDOWS[0]]
    modules = Modules(SafetensorsFile(Path("folder"), {}, ()), {layer: frozenset({"weight"}) for layer in layers})
    settings = form.settings(Settings("config.json", {**form.defaults, **values}), modules)
    frequency_divisors(settings)
    architecture = ARCHITECTURES[form.architecture]
    found = {f"{form.architecture}.{key}": value for key, value in settings.items()}
    return architecture.read(architecture.settings("config.json", found), Head(320, False))


def replaced(value: Any, path: tuple[Any, ...], odd: Any) -> Any:
    if not path:
        return odd
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], odd)
    return copy


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(one for key, inner in inside for one in paths(inner, (*path, key)))]


@pytest.mark.parametrize("name", CONFIGS)
def test_odd_values_are_read_or_refused(name: str) -> None:
    assert read(name, CONFIGS[name]).block_count == 4
    refusals = list[str]()
    for path in paths(CONFIGS[name])[1:]:
        for odd in ODD:
            try:
                read(name, replaced(CONFIGS[name], path, odd))
            except DFlashError as error:
                refusals.append(str(error))
    assert len(refusals) > 100
    assert not any("\n" in one for one in refusals)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (
            "gemma3_text",
            {"layer_types": WINDOWS[:3]},
            "layer_types is ['sliding_attention', 'full_attention', 'sliding",
        ),
        ("gemma3_text", {"layer_types": ["mamba"] * 4}, "expected 4 of sliding_attention or full_attention; download"),
        (
            "gemma3_text",
            {"layer_types": None, "sliding_window_pattern": [True]},
            "_pattern is [True], expected a whole",
        ),
        (
            "laguna",
            {"num_attention_heads_per_layer": [4, 6, 4]},
            "is [4, 6, 4], expected a whole number, or a list of 4",
        ),
        ("laguna", {"num_attention_heads_per_layer": [4, 6, 4, 5]}, "a layer has 5 heads over 2 heads of keys"),
        (
            "gemma4_text",
            {"intermediate_size": [128] * 4},
            "intermediate_size is [128, 128, 128, 128], expected a whole",
        ),
    ],
)
def test_lists_per_layer(name: str, change: dict[str, Any], words: str) -> None:
    with pytest.raises(FormatError) as caught:
        read(name, CONFIGS[name] | change)
    assert words in str(caught.value)
