"""The demo pair: a small chat model of the Qwen3.5 architecture and its drafter.

`recipe` made them. A wheel leaves it out, so nothing outside it imports it.
"""

from dflash_core.demo.pair import (
    DEMO_KINDS,
    demo_dflash2_path,
    demo_draft,
    demo_draft_path,
    demo_mtp_path,
    demo_target_path,
)

__all__ = [
    "DEMO_KINDS", "demo_dflash2_path", "demo_draft", "demo_draft_path", "demo_mtp_path", "demo_target_path",
]  # fmt: skip
