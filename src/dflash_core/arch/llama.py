"""Llama 2 and 3, Mistral, and small models of their shape, such as SmolLM2: attention without norms over heads."""

from __future__ import annotations

from dataclasses import replace

from dflash_core.arch import reading
from dflash_core.arch.architecture import Architecture, Head
from dflash_core.arch.kinds import PROJECTIONS, ROPE_FACTORS, Experts
from dflash_core.arch.spec import LayerSpec, ModelSpec
from dflash_core.errors import FormatError
from dflash_core.formats.metadata import Settings

ROPE_BASE = 1e4
"""Of Llama 2, whose files may leave it out."""


def layers(keys: Settings, head: Head, *, interleaved: bool, partial: bool = False) -> list[LayerSpec]:
    """The layers that the settings describe. `partial`: whether only a part of a head may be rotated. Raises
    FormatError or UnsupportedError."""
    heads, hidden = keys.uniform("attention.head_count"), keys.integer("embedding_length")
    # Files give a key length only where heads are not as wide as they have to be to fill a row.
    head_dim = keys.integer("attention.key_length", default=max(hidden // heads, 1))
    attention = reading.attention(keys, kv_heads=heads, head_dim=head_dim, rotary=head_dim, base=ROPE_BASE)
    if attention.rotary != head_dim and not partial:
        raise FormatError(
            f"{keys.source}: rope.dimension_count is {attention.rotary}, expected {head_dim}, all of a head; convert"
            " the model again"
        )
    if interleaved:
        keys.check_divides("rope.dimension_count", attention.rotary, "attention.key_length", head_dim)
    attention = replace(attention, interleaved=interleaved, qk_norm=False, rope_factors=ROPE_FACTORS in head.names)
    keys.find("expert_used_count")  # of dense files, whatever its value
    ffn: reading.FeedForwardOf = _experts if keys.get("expert_count") else reading.dense  # 0 where there are none

    def layer(index: int) -> LayerSpec:
        biases = tuple(name for name in PROJECTIONS if f"blk.{index}.{name}.bias" in head.names)
        return LayerSpec(replace(attention, biases=biases), ffn(keys, head, index))

    return [layer(index) for index in range(reading.blocks(keys))]


def _experts(keys: Settings, head: Head, index: int) -> Experts:
    """Mixtral's: each is as wide as the file says of feed-forwards, unless it has a width for them."""
    width = keys.integer("expert_feed_forward_length", default=keys.uniform("feed_forward_length"))
    return replace(reading.experts(keys, head, index), width=width)


def read(keys: Settings, head: Head) -> ModelSpec:
    """The model that the settings describe. Raises FormatError or UnsupportedError."""
    halves = keys.flag("attention.rows_in_halves") is True  # of folders of safetensors
    return reading.model(keys, head, layers(keys, head, interleaved=not halves))


ARCHITECTURE = Architecture("llama", "Llama 2 and 3, Mistral, SmolLM2", read)
