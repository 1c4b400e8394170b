"""Phi-3, 3.5 and 4: Llama's layers, whose files have Q, K and V as one tensor, and gate and up as another."""

from __future__ import annotations

from dflash_core.arch import llama, reading
from dflash_core.arch.architecture import Architecture, Head
from dflash_core.arch.kinds import LONG_FACTORS, ROPE_FACTORS
from dflash_core.arch.rope import SCALING, LongRope
from dflash_core.arch.spec import ModelSpec
from dflash_core.formats.metadata import Settings


def read(keys: Settings, head: Head) -> ModelSpec:
    """The model that the settings describe. Raises FormatError or UnsupportedError."""
    if LONG_FACTORS in head.names:
        keys.find("rope.scaling.type")  # some converters write it
        scaling = LongRope(
            keys.integer("rope.scaling.original_context_length", high=1 << 40),
            reading.given(keys, "rope.scaling.attn_factor", 1.0),
        )
        keys = keys.part(values={**keys.values, keys.prefix + SCALING: scaling})
    window = keys.integer("attention.sliding_window", low=0, default=0)
    layers = reading.with_options(
        llama.layers(keys, head, interleaved=False, partial=True),
        window=window if window < keys.integer("context_length", high=1 << 40) else 0,
        rope_factors=bool(head.names & {LONG_FACTORS, ROPE_FACTORS}),
    )
    return reading.model(keys, head, layers)


ARCHITECTURE = Architecture("phi3", "Phi-3, 3.5 and 4", read)
