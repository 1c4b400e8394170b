"""GPT-OSS (20B, 120B): attention with sinks and biases, a window on every other layer, experts on all."""

from __future__ import annotations

from dataclasses import replace

from dflash_core.arch import reading
from dflash_core.arch.architecture import Architecture, Head
from dflash_core.arch.facts import expert_notes, sizes
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
    reading.check_settings(keys)
    full = reading.attention(keys, rotary=keys.integer("attention.key_length"), truncate=False)
    full = replace(full, qk_norm=False, biases=PROJECTIONS, sinks=True)
    window = replace(full, window=keys.integer("attention.sliding_window"))
    blocks = keys.integer("block_count", high=1024)
    layers = tuple(
        LayerSpec(
            window if sliding else full,
            replace(reading.experts(keys, head, index), activation="clamped_swiglu", router_bias=True, biases=True),
            NORM,
        )
        for index, sliding in enumerate(reading.sliding(keys, blocks, PERIOD))
    )
    return reading.model(ARCHITECTURE.name, keys, head, layers, full.eps)


ARCHITECTURE = Architecture(
    name="gpt-oss",
    models="GPT-OSS",
    read=read,
    facts=sizes,
    notes=expert_notes,
)
