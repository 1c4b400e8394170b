"""The sizes of the pair that ships."""

from __future__ import annotations

from dataclasses import replace

from . import tokenizer as tok
from .shapes import DraftConfig, TargetConfig, default_captured_layers


def target_config() -> TargetConfig:
    """The shipped target."""
    return TargetConfig()


def draft_configs(c: TargetConfig) -> dict[str, tuple[DraftConfig, str]]:
    """File name -> sizes and storage type: full layers alone, and a sliding-window layer below a full one."""
    base = DraftConfig(
        hidden=c.hidden, captured_layers=default_captured_layers(c.layers, 5), mask_id=tok.token_id("<|mask|>")
    )
    return {
        "demo-draft.gguf": (base, "Q8_0"),
        "demo-draft-swa.gguf": (replace(base, layers=2, ffn=448, window=256, sliding=(True, False)), "Q4_0"),
    }
