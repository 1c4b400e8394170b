"""Qwen3.5 and Qwen3.6 with experts (35B-A3B, 122B-A10B, 397B-A17B): qwen35's mixers before experts and a shared one."""

from __future__ import annotations

from dflash_core.arch import qwen35, reading
from dflash_core.arch.architecture import Architecture, Head
from dflash_core.arch.facts import expert_notes, sizes
from dflash_core.arch.kinds import Experts
from dflash_core.arch.spec import ModelSpec
from dflash_core.formats.gguf import GGUFFile
from dflash_core.formats.metadata import Settings


def read(keys: Settings, head: Head) -> ModelSpec:
    """The model that the settings describe. Raises FormatError or UnsupportedError."""
    return qwen35.hybrid(ARCHITECTURE.name, keys, head, lambda index: reading.experts(keys, head, index))


def notes(gguf: GGUFFile, spec: ModelSpec) -> list[str]:
    """Notes on unusual properties of a file."""
    lone = any(isinstance(layer.ffn, Experts) and not layer.ffn.shared for layer in spec.layers)
    return [*qwen35.notes(gguf, spec), *expert_notes(gguf, spec), *(["no shared expert"] if lone else [])]


ARCHITECTURE = Architecture(
    name="qwen35moe",
    models="Qwen3.5 and Qwen3.6 with experts",
    read=read,
    facts=sizes,
    notes=notes,
)
