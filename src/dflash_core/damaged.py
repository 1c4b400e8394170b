"""What decoding raises for JSON that is damaged."""

from __future__ import annotations

import msgspec

# msgspec's own errors, and what passes through it: text that is not UTF-8, and too deep nesting.
DAMAGED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
