"""Qwen2 and 2.5, dense, and models of their shape: Llama's layers with biases, rotary pairs in halves. Those for images
are the same for text, for which all axes of a position are equal."""

from __future__ import annotations

from dflash_core.arch import llama, reading
from dflash_core.arch.architecture import Architecture, Head
from dflash_core.arch.spec import ModelSpec
from dflash_core.formats.metadata import Settings


def read(keys: Settings, head: Head) -> ModelSpec:
    """The model that the settings describe. Raises FormatError or UnsupportedError."""
    return reading.model(keys, head, llama.layers(keys, head, interleaved=False))


DENSE = Architecture("qwen2", "Qwen2 and 2.5, dense", read)
IMAGES = Architecture("qwen2vl", "Qwen2-VL and 2.5-VL", read)
