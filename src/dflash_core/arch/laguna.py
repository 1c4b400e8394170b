"""Laguna (XS): gated attention, a window on three of four layers with more heads, experts chosen by sigmoids."""

from __future__ import annotations

from dataclasses import replace

from dflash_core.arch import reading
from dflash_core.arch.architecture import Architecture, Head
from dflash_core.arch.kinds import FeedForward
from dflash_core.arch.spec import LayerSpec, ModelSpec
from dflash_core.formats.metadata import Settings

PERIOD, WINDOW_ROPE_BASE = 4, 1e4


def read(keys: Settings, head: Head) -> ModelSpec:
    """The model that the settings describe. Raises FormatError or UnsupportedError."""
    blocks = reading.blocks(keys)
    sliding = reading.sliding(keys, blocks, PERIOD, full_first=True)
    mixers = reading.attention_by_layer(keys, sliding, gate="softplus", window_base=WINDOW_ROPE_BASE)
    dense = keys.integer("leading_dense_block_count", low=0, high=blocks, default=0)

    def ffn(index: int) -> FeedForward:
        if index < dense:
            return reading.dense(keys, head, index)
        return replace(reading.experts(keys, head, index, "sigmoid"), shared_gate=False)

    return reading.model(keys, head, [LayerSpec(mixer, ffn(index)) for index, mixer in enumerate(mixers)])


ARCHITECTURE = Architecture("laguna", "Laguna XS", read)
