"""GPT-OSS (20B, 120B): attention with sinks and biases, a window on every other layer, experts on all."""

from __future__ import annotations

from dataclasses import replace

from dflash_core.arch import reading
from dflash_core.arch.architecture import Architecture, Head
from dflash_core.arch.kinds import PROJECTIONS
from dflash_core.arch.spec import LayerSpec, ModelSpec
from dflash_core.formats.metadata import Settings

PERIOD = 2
NORM = "post_attention_norm.weight"
"""Of what the experts read, in spite of its name."""


def read(keys: Settings, head: Head) -> ModelSpec:
    """The model that the settings describe. Raises FormatError or UnsupportedError.

    YaRN's range is not rounded to whole pairs: so was the model trained, and no setting says it.
    """
    full = reading.attention(keys, rotary=keys.integer("attention.key_length"), truncate=False)
    full = replace(full, qk_norm=False, biases=PROJECTIONS, sinks=True)
    window = replace(full, window=keys.integer("attention.sliding_window"))

    def layer(index: int, sliding: bool) -> LayerSpec:
        experts = reading.experts(keys, head, index)
        experts = replace(experts, activation="clamped_swiglu", router_bias=True, biases=True)
        return LayerSpec(window if sliding else full, experts, NORM)

    sliding = reading.sliding(keys, reading.blocks(keys), PERIOD)
    return reading.model(keys, head, [layer(*one) for one in enumerate(sliding)])


ARCHITECTURE = Architecture("gpt-oss", "GPT-OSS", read)
