"""Gemma 4 (E2B, E4B, 12B, 26B-A4B, 31B): Gemma 3's order of norms, layers that share keys and values, per-layer inputs,
or experts beside a dense feed-forward."""

from __future__ import annotations

import math
from dataclasses import replace

from dflash_core.arch import reading
from dflash_core.arch.architecture import Architecture, Head
from dflash_core.arch.facts import expert_notes, sizes
from dflash_core.arch.gemma3 import FREQUENT_FIRST
from dflash_core.arch.kinds import Attention, SwiGLU
from dflash_core.arch.spec import Branch, LayerSpec, ModelSpec
from dflash_core.errors import FormatError
from dflash_core.formats.metadata import Settings

PERIOD, WINDOW_ROPE_BASE = 6, 1e4
LAYER = LayerSpec(
    Attention(1, 1, 1, 1, 1.0, 0.0),
    SwiGLU(1),
    post_attn_norm="post_attention_norm.weight",
    post_ffn_norm="post_ffw_norm.weight",
    output_scale=True,
)
"""What all layers have in common, an assistant's too."""


def attention(keys: Settings, blocks: int) -> list[Attention]:
    """The attention of every layer, without sharing. The divisors in the file leave most pairs of full layers as they
    are; scores are not scaled."""
    reading.check_settings(keys)
    mixers = reading.attention_by_layer(
        keys, reading.sliding(keys, blocks, PERIOD), window_base=WINDOW_ROPE_BASE
    )  # fmt: skip
    return [replace(one, scale=1.0, v_norm=True, rope_factors=not one.window) for one in mixers]


def read(keys: Settings, head: Head) -> ModelSpec:
    """The model that the settings describe. Raises FormatError or UnsupportedError."""
    blocks, hidden = keys.integer("block_count", high=1024), keys.integer("embedding_length")
    mixers = _shared(keys, attention(keys, blocks), head)
    widths = keys.per_layer("feed_forward_length", blocks)
    per_layer = keys.integer("embedding_length_per_layer_input", low=0, default=0)

    def layer(index: int) -> LayerSpec:
        dense = SwiGLU(widths[index], "gelu_tanh")
        found = replace(LAYER, mixer=mixers[index], ffn=dense, per_layer_input=per_layer)
        if not keys.get("expert_count"):
            return found
        experts = replace(
            reading.experts(keys, head, index),
            activation="gelu_tanh",
            router_scale=True,
            expert_scales=True,
            eps=mixers[index].eps,
        )
        return replace(
            found,
            ffn=experts,
            ffn_norm="pre_ffw_norm_2.weight",
            ffn_own_norm="post_ffw_norm_2.weight",
            beside=Branch(dense, "ffn_norm.weight", "post_ffw_norm_1.weight"),
        )

    spec = reading.model(ARCHITECTURE.name, keys, head, tuple(map(layer, range(blocks))), mixers[0].eps)
    return replace(
        spec,
        embedding_scale=math.sqrt(hidden),
        softcap=reading.softcap(keys),
        suppressed=reading.suppressed(keys, spec.vocab_size),
        per_layer_input=per_layer,
        frequent_first=FREQUENT_FIRST,
    )


def _shared(keys: Settings, mixers: list[Attention], head: Head) -> list[Attention]:
    """The last layers, if the file says so, read keys and values of the last ones of their kind that have their own.
    Layers without attn_v take their keys as values."""
    blocks = len(mixers)
    own = blocks - keys.integer("attention.shared_kv_layers", low=0, high=blocks, default=0)
    last = {bool(mixer.window): index for index, mixer in enumerate(mixers[:own])}
    if own < blocks and len(last) < 2:
        raise FormatError(
            f"{keys.source}: attention.shared_kv_layers leaves {own} layers with keys of their own, expected a layer"
            " with a window and one without; convert the model again"
        )
    return [
        replace(mixer, key_is_value=f"blk.{index}.attn_v.weight" not in head.names)
        if index < own
        else replace(mixer, kv_from=last[bool(mixer.window)])
        for index, mixer in enumerate(mixers)
    ]


ARCHITECTURE = Architecture(
    name="gemma4",
    models="Gemma 4",
    read=read,
    facts=sizes,
    notes=expert_notes,
)
