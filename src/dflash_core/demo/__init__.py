"""The demo pair: a small chat model of the Qwen3.5 architecture and its drafter.

The scripts in `recipe` trained both. A wheel does not contain `recipe`, so no other module imports it.
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
