"""Qwen3, dense (0.6B to 32B) and with experts (30B-A3B, Coder-30B-A3B, 235B-A22B): attention without a gate on every
layer."""

from __future__ import annotations

from dflash_core.arch import reading
from dflash_core.arch.architecture import Architecture, Head
from dflash_core.arch.spec import LayerSpec, ModelSpec
from dflash_core.formats.metadata import Settings


def _read(keys: Settings, head: Head, ffn: reading.FeedForwardOf) -> ModelSpec:
    attention = reading.attention(keys, rotary=keys.integer("attention.key_length"))
    blocks = range(reading.blocks(keys))
    return reading.model(keys, head, [LayerSpec(attention, ffn(keys, head, index)) for index in blocks])


DENSE = Architecture("qwen3", "Qwen3, dense", lambda keys, head: _read(keys, head, reading.dense))
EXPERTS = Architecture("qwen3moe", "Qwen3 with experts", lambda keys, head: _read(keys, head, reading.experts))
