"""The architectures that run, by the name in a GGUF file."""

from __future__ import annotations

from dflash_core.arch import gemma, gptoss, laguna, llama, qwen3, qwen35

ARCHITECTURES = {
    known.name: known
    for known in (
        qwen35.DENSE,
        qwen35.EXPERTS,
        qwen3.DENSE,
        qwen3.EXPERTS,
        llama.ARCHITECTURE,
        gemma.GEMMA3,
        gemma.GEMMA4,
        gptoss.ARCHITECTURE,
        laguna.ARCHITECTURE,
    )
}


def supported() -> str:
    """The architectures that run, for messages."""
    return ", ".join(ARCHITECTURES)
