"""Folders of Qwen3.5 and Qwen3.6, dense and with experts.

A GGUF file has the value heads of a delta net in another order: head i = t * K + g there is head g * V / K + t here,
with K key heads and V value heads, so that it reads key head i % K.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from dflash_core.arch.folders.form import (
    ATTENTION,
    DENSE,
    EXPERTS,
    Change,
    Form,
    Values,
    changed,
    flat,
    plus_one,
    refused,
)
from dflash_core.arch.folders.settings import check_activation, common, experts, layer_kinds, mtp_blocks, rotary
from dflash_core.formats.folders.layouts import Modules
from dflash_core.formats.folders.parts import Part, columns_in_order, computed, rows_in_order
from dflash_core.formats.metadata import Settings
from dflash_core.formats.quants import Float32


def dense(keys: Settings, modules: Modules) -> Values:
    """Qwen3.5 and later, dense."""
    return _hybrid(keys, modules) | {"feed_forward_length": keys.integer("intermediate_size")}


def moe(keys: Settings, modules: Modules) -> Values:
    """The same with experts and a shared one."""
    normed = keys.flag("norm_topk_prob") is not False
    return _hybrid(keys, modules) | experts(keys, shared=True) | {"expert_weights_norm": normed}


def _hybrid(keys: Settings, modules: Modules) -> Values:
    check_activation(keys, "hidden_act")
    if keys.flag("attn_output_gate") is False:
        raise refused(keys, "attn_output_gate", "true, as all models of the family have")
    if keys.get("mtp_use_dedicated_embeddings"):
        raise refused(keys, "mtp_use_dedicated_embeddings", "false")
    values = common(keys) | rotary(keys)
    layers, head_dim, blocks = values["block_count"], values["attention.key_length"], mtp_blocks(modules)
    heads = keys.integer("linear_num_value_heads")
    values |= {
        "block_count": layers + blocks,
        "rope.dimension_count": int(head_dim * values.pop("rope.partial")),
        "ssm.conv_kernel": keys.integer("linear_conv_kernel_dim"),
        "ssm.state_size": keys.integer("linear_key_head_dim"),
        "ssm.group_count": keys.integer("linear_num_key_heads"),
        "ssm.time_step_rank": heads,
        "ssm.inner_size": heads * keys.integer("linear_value_head_dim"),
    }
    if values["ssm.time_step_rank"] % values["ssm.group_count"]:
        raise refused(keys, "linear_num_value_heads", f"a multiple of {values['ssm.group_count']} key heads")
    if blocks:
        values["nextn_predict_layers"] = blocks
    interval = keys.integer("full_attention_interval", default=4)
    kinds = layer_kinds(keys, layers, ("linear_attention", "full_attention"))
    regular = ["linear_attention" if (at + 1) % interval else "full_attention" for at in range(layers)]
    if kinds and kinds != regular:
        values["attention.recurrent_layers"] = [kind == "linear_attention" for kind in kinds] + [False] * blocks
    else:
        values["full_attention_interval"] = interval
    return values


@functools.cache
def _order(keys: int, count: int, width: int, before: int) -> tuple[int, ...]:
    heads = (group * (count // keys) + turn for turn in range(count // keys) for group in range(keys))
    return (*range(before), *(before + head * width + row for head in heads for row in range(width)))


def _heads(values: Values, width: int = 1, before: int = 0) -> tuple[int, ...]:
    """The order of rows: `before` that stay, then heads of `width` rows, those of a GGUF file by their places here."""
    return _order(values["ssm.group_count"], values["ssm.time_step_rank"], width, before)


def _value_dim(values: Values) -> int:
    return int(values["ssm.inner_size"] // values["ssm.time_step_rank"])


def _values(values: Values) -> tuple[int, ...]:
    return _heads(values, _value_dim(values))


def _mixed(values: Values) -> tuple[int, ...]:
    """Rows of queries and keys before those of values."""
    return _heads(values, _value_dim(values), int(2 * values["ssm.group_count"] * values["ssm.state_size"]))


def _check(modules: Modules, part: Part, what: str, found: int, expected: int) -> None:
    if found != expected:
        raise modules.file.damaged(part.name, f"has {found:,} {what}", f"{expected:,} from the config's heads")


def _rows(order_of: Callable[[Values], tuple[int, ...]]) -> Change:
    def change(part: Part, values: Values, modules: Modules) -> Part:
        order = order_of(values)
        _check(modules, part, "rows", part.shape[0], len(order))
        return part if order == tuple(range(len(order))) else rows_in_order(part, order)

    return change


def _out(part: Part, values: Values, modules: Modules) -> Part:
    heads = _heads(values)
    _check(modules, part, "inputs", part.shape[1], values["ssm.inner_size"])
    return part if heads == tuple(range(len(heads))) else columns_in_order(part, heads, _value_dim(values))


def _convolution(part: Part, values: Values, modules: Modules) -> Part:
    """(channels, 1, taps) to (channels, taps), its channels in order."""
    (rows, taps), order = part.shape, _mixed(values)
    _check(modules, part, "rows", rows, len(order))
    return computed(part.name, (rows, taps), lambda: modules.file.float32(part.name).reshape(rows, taps)[list(order)])


def _of_heads(change: Callable[[Float32], Float32]) -> Change:
    def made(part: Part, values: Values, modules: Modules) -> Part:
        heads = list(_heads(values))
        _check(modules, part, "numbers", part.shape[1], len(heads))
        return changed(part, modules, lambda stored: change(stored[heads]))

    return made


DELTA = {
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
    "post_attention_layernorm": "post_attention_norm",
}
NORMS = (
    "attn_norm", "post_attention_norm", "attn_q_norm", "attn_k_norm", "output_norm",
    "nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm",
)  # fmt: skip
CHANGES = dict.fromkeys(NORMS, plus_one) | {
    "attn_qkv": _rows(_mixed),
    "attn_gate": _rows(_values),
    "ssm_alpha": _rows(_heads),
    "ssm_beta": _rows(_heads),
    "ssm_conv1d": _convolution,
    "ssm_a": _of_heads(lambda stored: -np.exp(stored)),
    "ssm_dt.bias": _of_heads(lambda stored: stored),
    "ssm_out": _out,
    "ffn_gate_inp_shexp": flat,
}
HARMLESS = frozenset({"full_attention_interval", "mlp_only_layers", "norm_topk_prob"})

DENSE_FORM = Form("qwen35", dense, ATTENTION | DENSE | DELTA, CHANGES, harmless=HARMLESS)
MOE_FORM = Form("qwen35moe", moe, ATTENTION | EXPERTS | DELTA, CHANGES, harmless=HARMLESS)
