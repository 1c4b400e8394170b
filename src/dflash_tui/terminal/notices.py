"""Desktop notifications, as terminals support them."""

from __future__ import annotations

import os
from collections.abc import Mapping

from dflash_core.clean import clean


def desktop_notice(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """The control sequence (OSC 9) that makes the terminal show a notification; tmux passes it on if allowed."""
    sequence = f"\x1b]9;{clean(text)}\x07"
    if "TMUX" in environment:
        escaped = sequence.replace("\x1b", "\x1b\x1b")
        return f"\x1bPtmux;{escaped}\x1b\\"
    return sequence
