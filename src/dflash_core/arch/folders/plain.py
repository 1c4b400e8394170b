"""Folders of models whose layers are alike: Llama and models of its shape, Qwen3."""

from __future__ import annotations

from dflash_core.arch.folders.form import ATTENTION, DENSE, EXPERTS, Form, Values, refused
from dflash_core.arch.folders.settings import check_activation, common, experts, whole_rotary
from dflash_core.arch.mistral3 import GROWTH, LENGTHS
from dflash_core.arch.smollm3 import PERIOD
from dflash_core.formats.folders.layouts import Modules
from dflash_core.formats.metadata import Settings


def llama(keys: Settings, modules: Modules) -> Values:
    """Llama 2 and 3, Mistral, SmolLM2."""
    check_activation(keys, "hidden_act")
    for name in ("attention_bias", "mlp_bias"):
        keys.find(name)  # the tensors say so
    values = common(keys) | whole_rotary(keys, 1e4)
    return values | {"feed_forward_length": keys.integer("intermediate_size"), "attention.rows_in_halves": True}


def qwen3(keys: Settings, modules: Modules) -> Values:
    """Qwen3, dense."""
    return _without_windows(keys) | {"feed_forward_length": keys.integer("intermediate_size")}


def qwen3moe(keys: Settings, modules: Modules) -> Values:
    """Qwen3 with experts."""
    return _without_windows(keys) | experts(keys) | {"expert_weights_norm": keys.flag("norm_topk_prob") is True}


def _without_windows(keys: Settings) -> Values:
    check_activation(keys, "hidden_act")
    _check_no_windows(keys)
    return common(keys) | whole_rotary(keys)


def _check_no_windows(keys: Settings) -> None:
    if keys.flag("use_sliding_window"):
        raise refused(keys, "use_sliding_window", "false")
    for name in ("sliding_window", "layer_types"):
        keys.find(name)  # of no effect without windows


def qwen2(keys: Settings, modules: Modules) -> Values:
    """Qwen2 and 2.5."""
    return _without_windows(keys) | {"feed_forward_length": keys.integer("intermediate_size")}


def smollm3(keys: Settings, modules: Modules) -> Values:
    """SmolLM3."""
    _check_no_windows(keys)
    values = llama(keys, modules)
    rotated = [int((at + 1) % PERIOD > 0) for at in range(values["block_count"])]
    if keys.get("no_rope_layers") not in (None, rotated):
        raise refused(keys, "no_rope_layers", f"0 for each layer of {PERIOD}")
    return values


def granite(keys: Settings, modules: Modules) -> Values:
    """Granite 3 and 4, dense."""
    scales = {
        "embedding_scale": "embedding_multiplier", "residual_scale": "residual_multiplier",
        "logit_scale": "logits_scaling", "attention.scale": "attention_multiplier",
    }  # fmt: skip
    return llama(keys, modules) | {name: keys.number(theirs, default=1.0) for name, theirs in scales.items()}


def seed_oss(keys: Settings, modules: Modules) -> Values:
    """Seed-OSS."""
    for name in ("attention_bias", "attention_out_bias", "mlp_bias"):
        keys.find(name)  # the tensors say so
    return qwen2(keys, modules)


def mistral3(keys: Settings, modules: Modules) -> Values:
    """Ministral 3 and, within a model of images, Mistral Small 3."""
    if keys.get("model_type") not in ("mistral3", "ministral3", "mistral"):  # of the text within
        raise refused(keys, "model_type", "ministral3 or mistral")
    values = llama(keys, modules)
    inner = keys.part(values=keys.get("rope_parameters") or {})
    if inner.get("llama_4_scaling_beta"):
        values[GROWTH] = inner.number("llama_4_scaling_beta")
        values[LENGTHS[0]] = inner.integer("original_max_position_embeddings", high=1 << 40)
    return values


LLAMA = Form("llama", llama, ATTENTION | DENSE)
QWEN2 = Form("qwen2", qwen2, ATTENTION | DENSE)
GRANITE = Form("granite", granite, ATTENTION | DENSE)
SEED_OSS = Form(
    "seed_oss", seed_oss, ATTENTION | DENSE | {"post_attention_layernorm": "post_attention_norm"},
    harmless=frozenset({"residual_dropout"}),
)  # fmt: skip
SMOLLM3 = Form("smollm3", smollm3, ATTENTION | DENSE, harmless=frozenset({"no_rope_layer_interval"}))
MISTRAL3 = Form(
    "mistral3", mistral3, ATTENTION | DENSE,
    harmless=frozenset({
        "spatial_merge_size", "multimodal_projector_bias", "projector_hidden_act", "vision_feature_layer",
    }),
)  # fmt: skip
QWEN3 = Form("qwen3", qwen3, ATTENTION | DENSE)
QWEN3MOE = Form("qwen3moe", qwen3moe, ATTENTION | EXPERTS, harmless=frozenset({"mlp_only_layers"}))
