"""SmolLM3: Llama's layers, every fourth of which knows no positions."""

from __future__ import annotations

from dataclasses import replace

from dflash_core.arch import llama
from dflash_core.arch.architecture import Architecture, Head
from dflash_core.arch.kinds import Attention
from dflash_core.arch.rope import UNROTATED
from dflash_core.arch.spec import LayerSpec, ModelSpec
from dflash_core.formats.metadata import Settings

PERIOD = 4
"""No file says it."""


def read(keys: Settings, head: Head) -> ModelSpec:
    """The model that the settings describe. Raises FormatError or UnsupportedError."""
    spec = llama.read(keys, head)
    return replace(spec, layers=tuple(_layer(index, layer) for index, layer in enumerate(spec.layers)))


def _layer(index: int, layer: LayerSpec) -> LayerSpec:
    if (index + 1) % PERIOD or not isinstance(layer.mixer, Attention):
        return layer
    return replace(layer, mixer=replace(layer.mixer, scaling=UNROTATED))


ARCHITECTURE = Architecture("smollm3", "SmolLM3", read)
