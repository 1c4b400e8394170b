"""The architectures that run, by the name in a GGUF file."""

from __future__ import annotations

from dflash_core.arch import gemma3, gemma4, gptoss, laguna, llama, qwen3, qwen3moe, qwen35, qwen35moe
from dflash_core.arch.architecture import Architecture

ARCHITECTURES: dict[str, Architecture] = {
    known.ARCHITECTURE.name: known.ARCHITECTURE
    for known in (
        qwen35,
        qwen35moe,
        qwen3,
        qwen3moe,
        llama,
        gemma3,
        gemma4,
        gptoss,
        laguna,
    )
}


def supported() -> str:
    """The architectures that run, for messages."""
    return ", ".join(ARCHITECTURES)
