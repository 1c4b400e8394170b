"""Mistral Small 3, Ministral 3 and Devstral Small 2: Llama's layers, whose queries may grow behind a position."""

from __future__ import annotations

from dataclasses import replace

from dflash_core.arch import llama
from dflash_core.arch.architecture import Architecture, Head
from dflash_core.arch.spec import ModelSpec
from dflash_core.formats.gguf import GGUFFile
from dflash_core.formats.metadata import Settings

SCALE, LENGTH = "attention.temperature_scale", "rope.scaling.original_context_length"
OWN_LENGTH = "attention.temperature_length"


def read(keys: Settings, head: Head) -> ModelSpec:
    """The model that the settings describe. Raises FormatError or UnsupportedError."""
    spec = llama.read(keys, head)
    keys.find(OWN_LENGTH)
    if not keys.get(SCALE):
        return spec
    # Queries are multiplied by 1 + scale * log(1 + position // length), which is 1 up to that length.
    return replace(spec, context_length=min(spec.context_length, keys.integer(OWN_LENGTH, LENGTH, high=1 << 40)))


def _notes(gguf: GGUFFile, spec: ModelSpec) -> list[str]:
    if not gguf.metadata.get(f"{spec.architecture}.{SCALE}"):
        return []
    return [f"the context ends at {spec.context_length:,} positions: queries behind them are scaled, which is not done"]


ARCHITECTURE = Architecture("mistral3", "Mistral Small 3, Ministral 3, Devstral Small 2", read, _notes)
