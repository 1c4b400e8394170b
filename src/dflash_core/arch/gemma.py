"""Gemma 3 (text of 270M to 27B): norms on both sides of each branch, windows on five of six layers, GELU.

Gemma 4 (E2B, E4B, 12B, 26B-A4B, 31B) adds layers that share keys and values, per-layer inputs, or experts beside a
dense feed-forward.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from dflash_core.arch import reading
from dflash_core.arch.architecture import Architecture, Head
from dflash_core.arch.kinds import Attention, SwiGLU
from dflash_core.arch.spec import Branch, LayerSpec, ModelSpec
from dflash_core.errors import FormatError
from dflash_core.formats.metadata import Settings

PERIOD, WINDOW_ROPE_BASE = 6, 1e4
"""Every sixth layer sees all positions, unless the file says otherwise; the rotary base of the others."""
BLOCKS_OF_27B = 62
"""Gemma 3 27B scales its scores by the width of a row over its heads; no setting says so."""
LAYER = LayerSpec(
    Attention(1, 1, 1, 1, 1.0, 0.0),
    SwiGLU(1),
    post_attn_norm="post_attention_norm.weight",
    post_ffn_norm="post_ffw_norm.weight",
    output_scale=True,
)
"""What all layers of Gemma 4 have in common, an assistant's too."""


def _model(keys: Settings, head: Head, layers: list[LayerSpec], **more: Any) -> ModelSpec:
    """Gemma's vocabulary has its single characters last: full stop, comma and digits are above 236,000 of 262,144 ids.
    A tenth of English and three tenths of Python are tokens beyond the first 98,304."""
    scale = math.sqrt(keys.integer("embedding_length"))
    softcap = reading.given(keys, "final_logit_softcapping", 0.0)
    return reading.model(keys, head, layers, embedding_scale=scale, softcap=softcap, frequent_first=False, **more)


def gemma3(keys: Settings, head: Head) -> ModelSpec:
    """Gemma 3. Raises FormatError or UnsupportedError."""
    blocks = reading.blocks(keys)
    mixers = reading.attention_by_layer(keys, reading.sliding(keys, blocks, PERIOD), window_base=WINDOW_ROPE_BASE)
    if blocks == BLOCKS_OF_27B:
        mixers = [replace(one, scale=(keys.integer("embedding_length") / one.heads) ** -0.5) for one in mixers]
    ffn = SwiGLU(keys.uniform("feed_forward_length"), "gelu_tanh")
    return _model(keys, head, [replace(LAYER, mixer=one, ffn=ffn, output_scale=False) for one in mixers])


def attention(keys: Settings, blocks: int) -> list[Attention]:
    """The attention of every layer of Gemma 4, without sharing. The divisors in the file leave most pairs of full
    layers as they are; scores are not scaled."""
    mixers = reading.attention_by_layer(keys, reading.sliding(keys, blocks, PERIOD), window_base=WINDOW_ROPE_BASE)
    return [replace(one, scale=1.0, v_norm=True, rope_factors=not one.window) for one in mixers]


def gemma4(keys: Settings, head: Head) -> ModelSpec:
    """Gemma 4. Raises FormatError or UnsupportedError."""
    blocks = reading.blocks(keys)
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

    return _model(
        keys, head, [layer(index) for index in range(blocks)],
        suppressed=reading.suppressed(keys, head.vocab_size), per_layer_input=per_layer,
    )  # fmt: skip


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


GEMMA3 = Architecture("gemma3", "Gemma 3", gemma3)
GEMMA4 = Architecture("gemma4", "Gemma 4", gemma4)
