"""Mistral Small 3, Ministral 3 and Devstral Small 2: Llama's layers, whose queries may grow with the position."""

from __future__ import annotations

from dataclasses import replace

from dflash_core.arch import llama, reading
from dflash_core.arch.architecture import Architecture, Head
from dflash_core.arch.spec import ModelSpec
from dflash_core.formats.metadata import Settings

GROWTH = "attention.temperature_scale"
LENGTHS = ("attention.temperature_length", "rope.scaling.original_context_length")


def read(keys: Settings, head: Head) -> ModelSpec:
    """The model that the settings describe. Raises FormatError or UnsupportedError."""
    spec = llama.read(keys, head)
    keys.find(*LENGTHS)
    if not keys.get(GROWTH):
        return spec
    growth = keys.number(GROWTH), keys.integer(*LENGTHS, high=1 << 40)
    return replace(spec, layers=reading.with_options(spec.layers, query_growth=growth))


ARCHITECTURE = Architecture("mistral3", "Mistral Small 3, Ministral 3, Devstral Small 2", read)
