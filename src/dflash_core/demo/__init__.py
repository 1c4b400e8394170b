"""The demo pair: a small chat model of the Qwen3.5 architecture and its drafter.

`recipe` made them. A wheel leaves it out, so nothing outside it imports it.
"""

from dflash_core.demo.pair import demo_draft_path, demo_target_path

__all__ = ["demo_draft_path", "demo_target_path"]
