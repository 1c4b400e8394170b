"""Qwen3 with experts (30B-A3B, Coder-30B-A3B, 235B-A22B): qwen3's attention before experts, none of them shared."""

from __future__ import annotations

from dflash_core.arch import qwen3, reading
from dflash_core.arch.architecture import Architecture, Head
from dflash_core.arch.facts import expert_notes, sizes
from dflash_core.arch.spec import ModelSpec
from dflash_core.formats.metadata import Settings


def read(keys: Settings, head: Head) -> ModelSpec:
    """The model that the settings describe. Raises FormatError or UnsupportedError."""
    return qwen3.plain(ARCHITECTURE.name, keys, head, lambda index: reading.experts(keys, head, index))


ARCHITECTURE = Architecture(
    name="qwen3moe",
    models="Qwen3 with experts",
    read=read,
    facts=sizes,
    check=qwen3.check,
    notes=expert_notes,
)
