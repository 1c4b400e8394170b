"""The demo pair: a small chat model of the Qwen3.5 architecture and its drafters, all trained by `tools/train_demo`.
And the drafter of SmolLM2-135M-Instruct, whose target is not shipped: docs/smollm2-drafter.md."""

from __future__ import annotations

from pathlib import Path

from dflash_core.drafters.registry import parts

WEIGHTS = Path(__file__).parent / "weights"
DEMO_KINDS = ("dflash", "dflash2", "mtp", "ngram")
"""Kinds of drafters that the demo target has."""


def demo_target_path() -> Path:
    """The shipped target, a qwen35 GGUF."""
    return WEIGHTS / "demo-target.gguf"


def demo_draft_path() -> Path:
    """The shipped drafter, a dflash GGUF."""
    return WEIGHTS / "demo-draft.gguf"


def demo_mtp_path() -> Path:
    """The shipped target's MTP head, a file of its own."""
    return WEIGHTS / "demo-mtp.gguf"


def demo_dflash2_path() -> Path:
    """The shipped DFlash 2 drafter, a dflash GGUF."""
    return WEIGHTS / "demo-dflash2.gguf"


def demo_draft(source: str | Path | None = None) -> Path:
    """What `source` names as the demo target's drafter: kinds of DEMO_KINDS or files, several joined by "+". The
    DFlash drafter if it names nothing."""
    files = {"dflash": demo_draft_path(), "dflash2": demo_dflash2_path(), "mtp": demo_mtp_path()}
    return Path("+".join(str(files.get(kind, kind)) for kind in parts(source or "dflash")))


def smollm2_draft_path() -> Path:
    """The shipped DFlash 2 drafter of SmolLM2-135M-Instruct, a dflash GGUF."""
    return WEIGHTS / "smollm2-draft.gguf"
