"""Mistral Small 3, Ministral 3 and Devstral Small 2: Llama's layers, whose queries may grow with the position."""

from __future__ import annotations

from dataclasses import replace

from dflash_core.arch import llama
from dflash_core.arch.architecture import Architecture, Head
from dflash_core.arch.kinds import Attention
from dflash_core.arch.spec import LayerSpec, ModelSpec
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

    def growing(layer: LayerSpec) -> LayerSpec:
        mixer = layer.mixer
        return replace(layer, mixer=replace(mixer, query_growth=growth)) if isinstance(mixer, Attention) else layer

    return replace(spec, layers=tuple(map(growing, spec.layers)))


ARCHITECTURE = Architecture("mistral3", "Mistral Small 3, Ministral 3, Devstral Small 2", read)
