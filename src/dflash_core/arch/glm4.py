"""GLM-4 and GLM-Z1 of 0414 (9B, 32B): norms on both sides of each part, a half of each head rotated, gate and up as one
tensor. GLM-4.1V is the same for text, its rotary pairs in halves."""

from __future__ import annotations

from dataclasses import replace

from dflash_core.arch import llama, reading
from dflash_core.arch.architecture import Architecture, Head
from dflash_core.arch.spec import ModelSpec
from dflash_core.formats.metadata import Settings


def read(keys: Settings, head: Head) -> ModelSpec:
    """The model that the settings describe. Raises FormatError or UnsupportedError."""
    interleaved = keys.find("rope.dimension_sections") is None
    layers = llama.layers(keys, head, interleaved=interleaved, partial=True)
    attention, ffn = "post_attention_norm.weight", "post_ffw_norm.weight"
    layers = [replace(layer, post_attn_norm=attention, post_ffn_norm=ffn) for layer in layers]
    return reading.model(keys, head, layers)


ARCHITECTURE = Architecture("glm4", "GLM-4 and GLM-Z1 of 0414, GLM-4.1V", read)
