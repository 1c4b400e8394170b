"""Folders of Gemma 3 and 4, and of Gemma 4's assistants: windows on most layers, norms on both sides of each branch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dflash_core.arch.assistant import CELLS_USED
from dflash_core.arch.folders.form import ATTENTION, DENSE, Form, Maker, Values, bare_name, plus_one, refused
from dflash_core.arch.folders.settings import (
    DIVISORS,
    WINDOW,
    check_activation,
    common,
    rope_by_kind,
    sliding,
    whole_rotary,
)
from dflash_core.arch.gemma import BLOCKS_OF_27B, PERIOD, WINDOW_ROPE_BASE
from dflash_core.arch.rope import SCALING
from dflash_core.errors import FormatError
from dflash_core.formats.folders.layouts import Modules
from dflash_core.formats.folders.parts import Part, computed
from dflash_core.formats.metadata import Settings

GELU = ("gelu_pytorch_tanh",)
STILL = 1e30
"""The divisor of a frequency whose pair does not turn."""


def gemma3(keys: Settings, modules: Modules) -> Values:
    """Gemma 3, text."""
    values = _common(keys)
    layers, head_dim = values["block_count"], values["attention.key_length"]
    scalar = keys.number("query_pre_attn_scalar", default=head_dim)
    of_27b = layers == BLOCKS_OF_27B
    expected = values["embedding_length"] / values["attention.head_count"] if of_27b else head_dim
    if scalar != expected:
        raise refused(keys, "query_pre_attn_scalar", f"{expected:g}")
    period = keys.integer("sliding_window_pattern", "_sliding_window_pattern", default=PERIOD)
    both = rope_by_kind(keys)
    if both is None:
        base = keys.number("rope_local_base_freq", default=WINDOW_ROPE_BASE)
        rope = whole_rotary(keys, 1e6)
    else:
        base, rope = _window_base(both[1], WINDOW_ROPE_BASE), whole_rotary(both[0], 1e6)
    return values | rope | {
        "feed_forward_length": keys.integer("intermediate_size"),
        "rope.freq_base_swa": base,
        "attention.sliding_window_pattern": sliding(keys, [(at + 1) % period != 0 for at in range(layers)]),
    }  # fmt: skip


def gemma4(keys: Settings, modules: Modules) -> Values:
    """Gemma 4, text: E2B and E4B, 12B and 31B, and with experts 26B-A4B."""
    bare = {bare_name(module) for module in modules.modules}
    values = _gemma4(keys)
    windows, layers = values["attention.sliding_window_pattern"], values["block_count"]
    shared = keys.integer("num_kv_shared_layers", low=0, high=layers, default=0)
    keys_as_values = keys.flag("attention_k_eq_v") is True
    for index, window in enumerate(windows[: layers - shared]):
        name = f"layers.{index}.self_attn.v_proj"
        if (name in bare) == (keys_as_values and not window):
            raise FormatError(
                f"{modules.file.path} has {'a' if name in bare else 'no'} {name} and attention_k_eq_v is"
                f" {keys_as_values}, expected {'none' if name in bare else 'it'}; download the folder again"
            )
    wide = keys.flag("use_double_wide_mlp") is True
    width, with_inputs = keys.integer("intermediate_size"), "embed_tokens_per_layer" in bare
    values |= {
        "attention.shared_kv_layers": shared,
        "feed_forward_length": [width * (1 + (wide and at >= layers - shared)) for at in range(layers)],
        "embedding_length_per_layer_input": keys.integer(
            "hidden_size_per_layer_input", low=0, default=256 if with_inputs else 0
        ),
    }
    for name in ("num_experts", "top_k_experts", "moe_intermediate_size"):
        keys.find(name)
    if keys.flag("enable_moe_block"):
        values |= {
            "expert_count": keys.integer("num_experts"),
            "expert_used_count": keys.integer("top_k_experts"),
            "expert_feed_forward_length": keys.integer("moe_intermediate_size"),
        }
    return values


def assistant(keys: Settings, modules: Modules) -> Values:
    """An assistant of Gemma 4: all of its layers read keys of the target's."""
    for name in ("attention_k_eq_v", "num_kv_shared_layers", "num_centroids"):
        keys.find(name)  # it has neither keys nor values; the tensors have the centroids
    return _gemma4(keys) | {
        "feed_forward_length": keys.integer("intermediate_size"),
        "embedding_length_out": keys.integer("backbone_hidden_size"),
        "centroids_used": keys.integer("centroid_intermediate_top_k", default=CELLS_USED),
    }


def _common(keys: Settings) -> Values:
    check_activation(keys, "hidden_activation", "hidden_act", expected=GELU)
    if keys.get("use_bidirectional_attention") not in (None, False, "vision"):
        raise refused(keys, "use_bidirectional_attention", "none, or only of images")
    return common(keys) | {
        "attention.sliding_window": keys.integer("sliding_window"),
        "final_logit_softcapping": keys.get("final_logit_softcapping") or 0.0,
    }


def _window_base(window: Settings, default: float) -> float:
    """The rotary base of layers with a window, whose positions are not scaled."""
    found = whole_rotary(window, default)
    if SCALING in found:
        raise refused(window, "rope_parameters", f"{WINDOW} without scaling")
    return float(found["rope.freq_base"])


def _gemma4(keys: Settings) -> Values:
    """What an assistant has too."""
    values = _common(keys)
    windows = sliding(keys, [(at + 1) % PERIOD != 0 for at in range(values["block_count"])])
    windows[-1] = False  # as Hugging Face does, whatever the config lists
    heads, full_dim = _key_heads(keys, windows, values)
    base, divisors = _proportional(keys, full_dim)
    both = rope_by_kind(keys)
    return values | {
        "attention.sliding_window_pattern": windows,
        "attention.head_count_kv": heads,
        "attention.key_length_swa": values["attention.key_length"],
        "attention.key_length": full_dim,
        "attention.value_length": full_dim,
        "rope.dimension_count_swa": values["attention.key_length"],
        "rope.dimension_count": full_dim,
        "rope.freq_base": base,
        "rope.freq_base_swa": _window_base(both[1], WINDOW_ROPE_BASE) if both else WINDOW_ROPE_BASE,
        DIVISORS: divisors,
    }


def _key_heads(keys: Settings, windows: list[bool], values: Values) -> tuple[list[int], int]:
    """Heads of keys of each layer, and the dimensions of a head of layers without a window. Configs have them as two
    settings of these layers or, newer ones, as what differs from the others, layer by layer."""
    listed = keys.get("per_layer_config")
    if listed is None:
        full: dict[str, Any] = {"head_dim": keys.integer("global_head_dim", default=512)}
        keys.find("num_global_key_value_heads")
        if keys.flag("attention_k_eq_v") and keys.get("num_global_key_value_heads"):
            full["num_key_value_heads"] = keys.get("num_global_key_value_heads")
        listed = {str(index): full for index, window in enumerate(windows) if not window}
    if not isinstance(listed, Mapping):
        raise refused(keys, "per_layer_config", "an object with settings of layers")
    heads, dims = list[int](), dict[bool, set[int]]({True: set(), False: set()})
    for index, window in enumerate(windows):
        own = listed.get(str(index), {})
        if not isinstance(own, Mapping) or own.keys() - {"head_dim", "num_key_value_heads"}:
            raise refused(keys, "per_layer_config", "only head_dim and num_key_value_heads of layers")
        inner = keys.part(values=own)
        heads.append(inner.integer("num_key_value_heads", default=values["attention.head_count_kv"]))
        dims[window].add(inner.integer("head_dim", default=values["attention.key_length"]))
    if len(dims[False]) != 1 or dims[True] - {values["attention.key_length"]}:
        raise refused(
            keys, "per_layer_config", "one head_dim of all layers without a window, and head_dim of the others"
        )
    return heads, dims[False].pop()


def _proportional(keys: Settings, head_dim: int) -> tuple[float, tuple[float, ...]]:
    """The rotary base of layers without a window, and the divisors of their frequencies: only the first pairs of a
    head turn, by the angles that they would have if all did."""
    both = rope_by_kind(keys)
    found = both[0].get("rope_parameters") if both else {"rope_type": "proportional", "partial_rotary_factor": 0.25}
    inner, pairs = keys.part(values=found if isinstance(found, Mapping) else {}), head_dim // 2
    kind = inner.get("rope_type", "type") or "default"
    if kind not in ("default", "proportional"):
        raise refused(keys, "rope_parameters", "rotary positions of rope_type proportional or default")
    share = inner.number("partial_rotary_factor", high=1.0001, default=1.0) if kind == "proportional" else 1.0
    factor = inner.number("factor", default=1.0) if kind == "proportional" else 1.0
    turning = int(share * head_dim // 2)
    return inner.number("rope_theta", default=1e6), (factor,) * turning + (STILL,) * (pairs - turning)


def _ordering(modules: Modules, module: str) -> Mapping[str, Part]:
    count = modules.file.tensors[module].n_elements
    found = computed(module, (count,), lambda: modules.file.int64(module).astype(np.float32))
    return {"masked_embd_ordering": found}


GEMMA3 = ATTENTION | DENSE | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip
GEMMA4 = GEMMA3 | {
    "layer_scalar": "layer_output_scale",
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "router.proj": "ffn_gate_inp",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_proj": "ffn_gate_exps",
    "experts.up_proj": "ffn_up_exps",
    "experts.gate_up_proj": "ffn_gate_up_exps",
    "experts.down_proj": "ffn_down_exps",
}  # fmt: skip
GEMMA3_NORMS = (
    "attn_norm", "attn_q_norm", "attn_k_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "output_norm",
)  # fmt: skip
_DEFAULTS = {
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
}  # fmt: skip
"""Published configs state only what differs from these, of Hugging Face's classes."""
_ORDERING: dict[str, Maker] = {"masked_embedding.token_ordering": _ordering}

FORM3 = Form(
    "gemma3", gemma3, GEMMA3, dict.fromkeys(GEMMA3_NORMS, plus_one), defaults=_DEFAULTS | {"sliding_window": 4096}
)  # fmt: skip
FORM4 = Form("gemma4", gemma4, GEMMA4, defaults=_DEFAULTS | {"sliding_window": 512})
ASSISTANT = Form("gemma4-assistant", assistant, GEMMA4, made=_ORDERING, defaults=FORM4.defaults)
