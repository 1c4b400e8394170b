"""The architectures that run, by the name in a GGUF file."""

from __future__ import annotations

from dflash_core.arch import qwen3, qwen3moe, qwen35, qwen35moe
from dflash_core.arch.architecture import Architecture

ARCHITECTURES: dict[str, Architecture] = {
    known.name: known
    for known in (qwen35.ARCHITECTURE, qwen35moe.ARCHITECTURE, qwen3.ARCHITECTURE, qwen3moe.ARCHITECTURE)
}


def supported() -> str:
    """The architectures that run, for messages."""
    return ", ".join(ARCHITECTURES)
