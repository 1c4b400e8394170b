"""The architectures that run, by the name in a GGUF file."""

from __future__ import annotations

from dflash_core.arch import (
    gemma,
    glm4,
    gptoss,
    granite,
    laguna,
    llama,
    mistral3,
    phi3,
    qwen2,
    qwen3,
    qwen35,
    seedoss,
    smollm3,
)

ARCHITECTURES = {
    known.name: known
    for known in (
        qwen35.DENSE,
        qwen35.EXPERTS,
        qwen3.DENSE,
        qwen3.EXPERTS,
        qwen3.IMAGES,
        qwen3.IMAGE_EXPERTS,
        qwen2.DENSE,
        qwen2.IMAGES,
        llama.ARCHITECTURE,
        mistral3.ARCHITECTURE,
        smollm3.ARCHITECTURE,
        granite.ARCHITECTURE,
        seedoss.ARCHITECTURE,
        phi3.ARCHITECTURE,
        glm4.ARCHITECTURE,
        gemma.GEMMA3,
        gemma.GEMMA4,
        gptoss.ARCHITECTURE,
        laguna.ARCHITECTURE,
    )
}


def supported() -> str:
    """The architectures that run, for messages."""
    return ", ".join(ARCHITECTURES)
