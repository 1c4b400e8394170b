"""Qwen3, dense (0.6B to 32B) and with experts (30B-A3B, Coder-30B-A3B, 235B-A22B): attention without a gate on every
layer. Those for images are the same for text, for which all axes of a position are equal."""

from __future__ import annotations

from dflash_core.arch import reading
from dflash_core.arch.architecture import Architecture, Head
from dflash_core.arch.spec import LayerSpec, ModelSpec
from dflash_core.formats.metadata import Settings


def _read(keys: Settings, head: Head, ffn: reading.FeedForwardOf) -> ModelSpec:
    attention = reading.attention(keys, rotary=keys.integer("attention.key_length"))
    blocks = range(reading.blocks(keys))
    return reading.model(keys, head, [LayerSpec(attention, ffn(keys, head, index)) for index in blocks])


def _dense(keys: Settings, head: Head) -> ModelSpec:
    return _read(keys, head, reading.dense)


def _experts(keys: Settings, head: Head) -> ModelSpec:
    return _read(keys, head, reading.experts)


DENSE = Architecture("qwen3", "Qwen3, dense", _dense)
EXPERTS = Architecture("qwen3moe", "Qwen3 with experts", _experts)
IMAGES = Architecture("qwen3vl", "Qwen3-VL, dense", _dense)
IMAGE_EXPERTS = Architecture("qwen3vlmoe", "Qwen3-VL with experts", _experts)
