"""Where the files of the demo pair are."""

from __future__ import annotations

from pathlib import Path

WEIGHTS = Path(__file__).parent / "weights"


def demo_target_path() -> Path:
    """The shipped target, a qwen35 GGUF."""
    return WEIGHTS / "demo-target.gguf"


def demo_draft_path(*, sliding: bool = False) -> Path:
    """The shipped drafter, a dflash GGUF; `sliding` picks the variant with causal sliding-window layers."""
    return WEIGHTS / ("demo-draft-swa.gguf" if sliding else "demo-draft.gguf")
