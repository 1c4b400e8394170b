"""Folders of models whose mixers are all attention: Llama and models of its shape, Qwen3, Gemma 3."""

from __future__ import annotations

from typing import Any

from dflash_core.arch.folders.form import ATTENTION, DENSE, EXPERTS, Form, Values, plus_one, refused
from dflash_core.arch.folders.settings import check_activation, common, experts, rotary
from dflash_core.arch.gemma3 import BLOCKS_OF_27B, PERIOD, WINDOW_ROPE_BASE
from dflash_core.errors import FormatError
from dflash_core.formats.folders.layouts import Modules
from dflash_core.formats.metadata import Settings

GELU = ("gelu_pytorch_tanh",)


def _rotary(keys: Settings, default: float | None = None) -> Values:
    found = rotary(keys, default)
    if found.pop("rope.partial") != 1:
        raise refused(keys, "partial_rotary_factor", "1, all of a head")
    return found


def llama(keys: Settings, modules: Modules) -> Values:
    """Llama 2 and 3, Mistral, SmolLM2."""
    check_activation(keys, "hidden_act")
    for name in ("attention_bias", "mlp_bias"):
        keys.find(name)  # the tensors say so
    values = common(keys) | _rotary(keys, 1e4)
    return values | {"feed_forward_length": keys.integer("intermediate_size"), "attention.rows_in_halves": True}


def qwen3(keys: Settings, modules: Modules) -> Values:
    """Qwen3, dense."""
    return _qwen3(keys) | {"feed_forward_length": keys.integer("intermediate_size")}


def qwen3moe(keys: Settings, modules: Modules) -> Values:
    """Qwen3 with experts."""
    return _qwen3(keys) | experts(keys) | {"expert_weights_norm": keys.flag("norm_topk_prob") is True}


def _qwen3(keys: Settings) -> Values:
    check_activation(keys, "hidden_act")
    if keys.flag("use_sliding_window"):
        raise refused(keys, "use_sliding_window", "false")
    for name in ("sliding_window", "layer_types"):
        keys.find(name)  # of no effect without windows
    return common(keys) | _rotary(keys)


def gemma3(keys: Settings, modules: Modules) -> Values:
    """Gemma 3, text."""
    check_activation(keys, "hidden_activation", "hidden_act", expected=GELU)
    values = common(keys)
    layers, head_dim = values["block_count"], values["attention.key_length"]
    scalar = keys.number("query_pre_attn_scalar", default=head_dim)
    expected = values["embedding_length"] / values["attention.head_count"] if layers == BLOCKS_OF_27B else head_dim
    if scalar != expected:
        raise refused(keys, "query_pre_attn_scalar", f"{expected:g}")
    if keys.get("use_bidirectional_attention"):
        raise refused(keys, "use_bidirectional_attention", "false")
    return values | _windows(keys, layers) | {
        "feed_forward_length": keys.integer("intermediate_size"),
        "attention.sliding_window": keys.integer("sliding_window"),
        "final_logit_softcapping": keys.get("final_logit_softcapping") or 0.0,
    }  # fmt: skip


def _windows(keys: Settings, layers: int) -> Values:
    """Which layers have a window, and the rotary positions of both kinds."""
    kinds = layer_kinds(keys, layers, ("sliding_attention", "full_attention"))
    period = keys.integer("sliding_window_pattern", "_sliding_window_pattern", default=PERIOD)
    sliding = [kind == "sliding_attention" for kind in kinds] or [(at + 1) % period != 0 for at in range(layers)]
    both = keys.get("rope_parameters")
    if not isinstance(both, dict) or "full_attention" not in both:
        base = keys.number("rope_local_base_freq", default=WINDOW_ROPE_BASE)
        return _rotary(keys, 1e6) | {"rope.freq_base_swa": base, "attention.sliding_window_pattern": sliding}
    inner = keys.part(values={**keys.values, "rope_parameters": both["full_attention"], "rope_scaling": None})
    window = both.get("sliding_attention")
    base = keys.part(values=window if isinstance(window, dict) else {}).number("rope_theta", default=WINDOW_ROPE_BASE)
    return _rotary(inner, 1e6) | {"rope.freq_base_swa": base, "attention.sliding_window_pattern": sliding}


def layer_kinds(keys: Settings, layers: int, known: tuple[str, ...]) -> list[Any]:
    """The kinds of layers that a config lists; [] where it lists none. Raises FormatError."""
    found = keys.get("layer_types")
    if found is None:
        return []
    if not isinstance(found, list) or len(found) < layers or not all(kind in known for kind in found):
        raise FormatError(
            f"{keys.source}: layer_types is {str(found)[:60]}, expected {layers} of {' or '.join(known)}; download it"
            " again"
        )
    return found[:layers]


GEMMA3 = ATTENTION | DENSE | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip
GEMMA3_NORMS = (
    "attn_norm", "attn_q_norm", "attn_k_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "output_norm",
)  # fmt: skip

LLAMA = Form("llama", llama, ATTENTION | DENSE)
QWEN3 = Form("qwen3", qwen3, ATTENTION | DENSE)
QWEN3MOE = Form("qwen3moe", qwen3moe, ATTENTION | EXPERTS, harmless=frozenset({"mlp_only_layers"}))
GEMMA3_DEFAULTS = {
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6, "sliding_window": 4096, "query_pre_attn_scalar": 256,
}  # fmt: skip
"""Published configs of 4B and more state only what differs from these, of Hugging Face's class."""
GEMMA = Form("gemma3", gemma3, GEMMA3, dict.fromkeys(GEMMA3_NORMS, plus_one), defaults=GEMMA3_DEFAULTS)
