"""The sizes of the drafter that ships."""

from __future__ import annotations

from dflash_core.arch.draft_heads import Convolution, Selector
from tools.train_demo.shapes import DraftConfig, default_captured_layers

from .llama import LlamaConfig

MASK = 16
"""<empty_output>, a control token that no answer has."""
KIND = "Q8_0"
"""What the last half of training rounds the matrices to."""
STORED = "IQ4_NL"
"""What the shipped file stores them as: half the bytes of KIND."""


def draft_config(c: LlamaConfig, captured: int = 5) -> DraftConfig:
    """Three layers as wide as the target's, block 8, and a selector of rank 32."""
    return DraftConfig(
        hidden=c.hidden, layers=3, ffn=c.ffn, heads=c.heads, kv_heads=c.kv_heads, head_dim=c.head_dim,
        rope_theta=c.rope_theta, captured_layers=default_captured_layers(c.layers, captured), block=8, mask_id=MASK,
        sliding=(False,) * 3, eps=c.eps, conv=Convolution(2, 16), selector=Selector(32, 16), vocab=c.vocab,
    )  # fmt: skip
