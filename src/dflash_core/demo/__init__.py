"""The demo pair: a small chat model of the Qwen3.5 architecture, its drafter, and the recipe that made them."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

__all__ = ["demo_draft_path", "demo_target_path"]


def demo_target_path() -> Path:
    """The shipped target, a qwen35 GGUF."""
    return Path(str(files(__package__) / "weights" / "demo-target.gguf"))


def demo_draft_path(*, sliding: bool = False) -> Path:
    """The shipped drafter, a dflash GGUF; `sliding` picks the variant with causal sliding-window layers."""
    return Path(str(files(__package__) / "weights" / ("demo-draft-swa.gguf" if sliding else "demo-draft.gguf")))
