"""Where the drafter of SmolLM2-135M-Instruct is. Its target is not shipped: docs/smollm2-drafter.md."""

from __future__ import annotations

from pathlib import Path

from dflash_core.demo.pair import WEIGHTS


def smollm2_draft_path() -> Path:
    """The shipped DFlash 2 drafter of SmolLM2-135M-Instruct, a dflash GGUF."""
    return WEIGHTS / "smollm2-draft.gguf"
