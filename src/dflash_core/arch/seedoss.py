"""Seed-OSS (36B): Llama's layers with biases of queries, keys and values, rotary pairs in halves."""

from __future__ import annotations

from dataclasses import replace

from dflash_core.arch import llama, reading
from dflash_core.arch.architecture import Architecture, Head
from dflash_core.arch.spec import ModelSpec
from dflash_core.formats.metadata import Settings

NORM = "post_attention_norm.weight"
"""Of what the feed-forward reads, in spite of its name."""


def read(keys: Settings, head: Head) -> ModelSpec:
    """The model that the settings describe. Raises FormatError or UnsupportedError."""
    layers = llama.layers(keys, head, interleaved=False)
    return reading.model(keys, head, [replace(layer, ffn_norm=NORM) for layer in layers])


ARCHITECTURE = Architecture("seed_oss", "Seed-OSS", read)
