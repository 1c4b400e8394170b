"""Settings of a config.json under GGUF's names: those that all architectures have, and rotary positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dflash_core.arch.folders.form import Values, refused
from dflash_core.arch.folders.quantisation import ENTRIES
from dflash_core.arch.kinds import ROPE_FACTORS
from dflash_core.arch.rope import SCALING, Linear, Llama3, Yarn, json_scaling
from dflash_core.errors import FormatError, UnsupportedError
from dflash_core.formats.folders.layouts import Modules
from dflash_core.formats.folders.parts import Part, computed
from dflash_core.formats.metadata import MAX_EPS, Settings
from dflash_core.formats.quants import Float32

HARMLESS = frozenset({
    "architectures", "model_type", "dtype", "torch_dtype", "transformers_version", "_name_or_path", "name_or_path",
    "auto_map", "use_cache", "initializer_range", "attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop",
    "bos_token_id", "eos_token_id", "pad_token_id", "vocab_size", "pretraining_tp", "rope_theta", "max_window_layers",
    "router_aux_loss_coef", "output_router_logits", "output_attentions", "output_hidden_states", "return_dict",
    "is_decoder", "is_encoder_decoder", "problem_type", "id2label", "label2id", "task_specific_params",
    *ENTRIES, "vision_config", "audio_config", "text_config",
    "chunk_size_feed_forward",
    "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id", "image_token_index",
    "boi_token_index", "eoi_token_index", "mm_tokens_per_image", "boi_token_id", "eoi_token_id", "unsloth_version",
    "unsloth_fixed", "mtp_num_hidden_layers", "num_nextn_predict_layers", "mamba_ssm_dtype", "language_model_only",
    "audio_token_id", "boa_token_id", "eoa_token_id", "eoa_token_index", "vision_soft_tokens_per_image",
    "vocab_size_per_layer_input", "cross_attention_hidden_size", "tie_encoder_decoder", "use_mrope",
    "initializer_factor", "neuron_names",
    # Of generation, which configs within others list in full.
    "temperature", "top_k", "top_p", "typical_p", "num_beams", "num_beam_groups", "num_return_sequences", "do_sample",
    "repetition_penalty", "length_penalty", "diversity_penalty", "no_repeat_ngram_size", "early_stopping", "min_length",
    "encoder_no_repeat_ngram_size", "pruned_heads", "use_return_dict", "loss_type", "_attn_implementation",
    "_commit_hash", "model_max_length", "max_seq_len", "seq_length",
    "is_llama_config", "transformers.js_config", "_attn_implementation_autoset", "attn_implementation",
    "cache_implementation", "use_bfloat16", "tokenizer_class", "max_length", "add_cross_attention", "sep_token_id",
})  # fmt: skip
"""Settings that change nothing for text, or say what tensors and other files say."""
SILU = ("silu", "swish")
WINDOW, FULL = "sliding_attention", "full_attention"
"""Kinds of layers."""
DIVISORS = "rope.divisors"
"""What divides the frequencies of rotary positions: Llama 3's scaling, or a number for each pair."""


def common(keys: Settings) -> Values:
    """Sizes, heads and the epsilon of norms. Raises FormatError or UnsupportedError."""
    heads, hidden = keys.integer("num_attention_heads"), keys.integer("hidden_size")
    head_dim = keys.integer("head_dim", default=max(hidden // heads, 1))
    return {
        "block_count": keys.integer("num_hidden_layers", high=1024),
        "context_length": keys.integer("max_position_embeddings", high=1 << 40),
        "embedding_length": hidden,
        "attention.head_count": heads,
        "attention.head_count_kv": keys.integer("num_key_value_heads", default=heads),
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": keys.number("rms_norm_eps", high=MAX_EPS),
        "rope.dimension_count": head_dim,
    }


def check_activation(keys: Settings, *names: str, expected: tuple[str, ...] = SILU) -> None:
    """Refuse another activation of the feed-forward than the architecture's. Raises UnsupportedError."""
    name = keys.find(*names)
    if name is not None and keys.get(name) not in expected:
        raise refused(keys, name, " or ".join(expected))


def rotary(keys: Settings, default: float | None = None, truncate: bool = True) -> Values:
    """Rotary positions: the base, scaling, and the share of a head that is rotated, as `rope.partial`. `truncate`: see
    `rope.Yarn`; what the architecture does. Raises FormatError or UnsupportedError."""
    inner = keys.part(values=_rope(keys))
    base = inner.number("rope_theta") if inner.find("rope_theta") else keys.number("rope_theta", default=default)
    share = inner if inner.find("partial_rotary_factor") else keys
    found: Values = {"rope.freq_base": base, "rope.partial": share.number("partial_rotary_factor", default=1.0)}
    match json_scaling(keys, base):
        case Yarn(truncate=other) if other != truncate:
            raise UnsupportedError(
                f"{keys.source}: YaRN has truncate {other}, expected {truncate}; use the model's GGUF"
            )
        case Llama3() as scaling:
            found[DIVISORS] = scaling
        case Linear() | Yarn() as scaling:
            found[SCALING] = scaling
    return found


def whole_rotary(keys: Settings, default: float | None = None, truncate: bool = True) -> Values:
    """Like `rotary`, of models that rotate all of a head."""
    found = rotary(keys, default, truncate)
    if found.pop("rope.partial") != 1:
        raise refused(keys, "partial_rotary_factor", "1, all of a head")
    return found


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


def sliding(keys: Settings, default: Sequence[bool]) -> list[bool]:
    """Which layers have a window; `default` where the config lists none. Raises FormatError."""
    kinds = layer_kinds(keys, len(default), (WINDOW, FULL))
    return [kind == WINDOW for kind in kinds] or [*default]


def rope_by_kind(keys: Settings) -> tuple[Settings, Settings] | None:
    """The settings with the rotary positions of layers that see all positions, and with those of layers with a window;
    None where the config has one set for all."""
    both = keys.get("rope_parameters")
    if not isinstance(both, dict) or FULL not in both:
        return None
    parts = (both[FULL], both.get(WINDOW) or {})
    # What stands beside them is of no effect.
    none = dict.fromkeys(("rope_scaling", "rope_theta", "partial_rotary_factor"))
    full, window = (keys.part(values={**keys.values, **none, "rope_parameters": one}) for one in parts)
    return full, window


def _rope(keys: Settings) -> Mapping[str, Any]:
    found = keys.get("rope_parameters") or keys.get("rope_scaling") or {}
    return found if isinstance(found, Mapping) else {}  # `json_scaling` refuses anything else


def frequency_divisors(values: Values) -> dict[str, Part]:
    """The divisors of frequencies as the tensor that GGUF files have for them, those of Llama 3's scaling too; the
    entry leaves `values`."""
    found = values.pop(DIVISORS, None)
    if found is None:
        return {}
    pairs, base = values["rope.dimension_count"] // 2, values["rope.freq_base"]

    def divisors() -> Float32:
        if isinstance(found, Llama3):
            return (1 / np.array(found.shares(pairs, base))).astype(np.float32)
        return np.array(found, np.float32)

    return {ROPE_FACTORS: computed(ROPE_FACTORS, (pairs,), divisors)}


def experts(keys: Settings, shared: bool = False) -> Values:
    """Sizes of experts."""
    found: Values = {
        "expert_count": keys.integer("num_experts", "num_local_experts"),
        "expert_used_count": keys.integer("num_experts_per_tok"),
        "expert_feed_forward_length": keys.integer("moe_intermediate_size"),
    }
    if shared:
        found["expert_shared_feed_forward_length"] = keys.integer("shared_expert_intermediate_size")
    if keys.integer("decoder_sparse_step", default=1) != 1:
        raise refused(keys, "decoder_sparse_step", "1, experts in every layer")
    keys.find("intermediate_size")  # of dense layers, which there are none of
    return found


def mtp_blocks(modules: Modules) -> int:
    """MTP blocks that the folder holds, whatever its config says: quantisers often leave them out."""
    layers = {name.split(".")[2] for name in modules.modules if name.startswith("mtp.layers.")}
    return len(layers)
