"""The sizes of the pair that ships."""

from __future__ import annotations

from dflash_core.arch.draft_heads import Convolution, Selector

from . import tokenizer as tok
from .shapes import DraftConfig, TargetConfig, default_captured_layers


def target_config() -> TargetConfig:
    """The shipped target."""
    return TargetConfig()


def dflash2_config(c: TargetConfig, block: int = 8) -> tuple[DraftConfig, str]:
    """Sizes and storage type of the DFlash 2 drafter."""
    captured = default_captured_layers(c.layers, 5)
    config = DraftConfig(
        hidden=c.hidden, ffn=448, captured_layers=captured, block=block, mask_id=tok.token_id("<|mask|>"),
        conv=Convolution(2, 16), selector=Selector(32, 16), vocab=c.vocab,
    )  # fmt: skip
    return config, "Q4_0"


def draft_configs(c: TargetConfig) -> dict[str, tuple[DraftConfig, str]]:
    """File name -> sizes and storage type. All that are named here are trained in one run."""
    one = DraftConfig(
        hidden=c.hidden, captured_layers=default_captured_layers(c.layers, 5), mask_id=tok.token_id("<|mask|>")
    )
    return {"demo-draft.gguf": (one, "Q8_0")}
