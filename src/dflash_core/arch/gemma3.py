"""Gemma 3 (text of 270M to 27B): norms on both sides of each branch, windows on five of six layers, GELU."""

from __future__ import annotations

import math
from dataclasses import replace

from dflash_core.arch import reading
from dflash_core.arch.architecture import Architecture, Head
from dflash_core.arch.facts import sizes
from dflash_core.arch.kinds import SwiGLU
from dflash_core.arch.spec import LayerSpec, ModelSpec
from dflash_core.formats.metadata import Settings

PERIOD = 6
"""Every sixth layer sees all positions, unless the file says otherwise."""
WINDOW_ROPE_BASE = 1e4
BLOCKS_OF_27B = 62
"""Gemma 3 27B scales its scores by the width of a row over its heads; no setting says so."""
FREQUENT_FIRST = False
"""Gemma's vocabulary has its single characters last: full stop, comma and digits are above 236,000 of 262,144 ids. A
tenth of English and three tenths of Python are tokens beyond the first 98,304."""


def read(keys: Settings, head: Head) -> ModelSpec:
    """The model that the settings describe. Raises FormatError or UnsupportedError."""
    reading.check_settings(keys)
    blocks, hidden = keys.integer("block_count", high=1024), keys.integer("embedding_length")
    sliding = reading.sliding(keys, blocks, PERIOD)
    mixers = reading.attention_by_layer(keys, sliding, window_base=WINDOW_ROPE_BASE)
    if blocks == BLOCKS_OF_27B:
        mixers = [replace(one, scale=(hidden / one.heads) ** -0.5) for one in mixers]
    ffn = SwiGLU(keys.uniform("feed_forward_length"), "gelu_tanh")
    layers = tuple(
        LayerSpec(one, ffn, post_attn_norm="post_attention_norm.weight", post_ffn_norm="post_ffw_norm.weight")
        for one in mixers
    )
    spec = reading.model(ARCHITECTURE.name, keys, head, layers, mixers[0].eps)
    return replace(
        spec, embedding_scale=math.sqrt(hidden), softcap=reading.softcap(keys), frequent_first=FREQUENT_FIRST
    )


ARCHITECTURE = Architecture(
    name="gemma3",
    models="Gemma 3",
    read=read,
    facts=sizes,
)
