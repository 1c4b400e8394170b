"""Qwen3, dense (0.6B to 32B): attention without a gate on every layer."""

from __future__ import annotations

from collections.abc import Callable

from dflash_core.arch import reading
from dflash_core.arch.architecture import Architecture, Head
from dflash_core.arch.facts import sizes
from dflash_core.arch.kinds import FeedForward, SwiGLU
from dflash_core.arch.spec import LayerSpec, ModelSpec
from dflash_core.errors import UnsupportedError
from dflash_core.formats.gguf import GGUFFile
from dflash_core.formats.metadata import Settings


def read(keys: Settings, head: Head) -> ModelSpec:
    """The model that the settings describe. Raises FormatError or UnsupportedError."""
    ffn = SwiGLU(keys.uniform("feed_forward_length"))
    return plain(ARCHITECTURE.name, keys, head, lambda index: ffn)


def plain(name: str, keys: Settings, head: Head, ffn: Callable[[int], FeedForward]) -> ModelSpec:
    """A model whose mixers are all attention. `ffn`: what follows it in layer i."""
    reading.check_settings(keys)
    attention = reading.attention(keys, rotary=keys.integer("attention.key_length"))
    blocks = keys.integer("block_count", high=1024)
    layers = tuple(LayerSpec(attention, ffn(index)) for index in range(blocks))
    return reading.model(name, keys, head, layers, attention.eps)


def check(gguf: GGUFFile, spec: ModelSpec) -> None:
    """Refuse what a missing or unknown tensor would not explain."""
    if any(name.startswith("cls.") for name in gguf.tensors):
        raise UnsupportedError(
            f"{gguf.path} is a reranker model (it has a cls head), expected one that generates text; use the chat"
            " model of the family"
        )


ARCHITECTURE = Architecture(
    name="qwen3",
    models="Qwen3, dense",
    read=read,
    facts=sizes,
    check=check,
)
