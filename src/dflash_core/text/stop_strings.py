"""Stop strings: text that ends an answer, wherever the borders of tokens and steps lie in it."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_core.text.tool_calls.reader import partial_match_length


class StopStrings:
    """Passes text on up to the first stop string. What may be the beginning of one waits for more text."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = tuple(strings)
        self._pending = ""
        self.found = ""
        self.dropped = 0
        """Bytes of text from the stop string on."""

    def push(self, text: str) -> str:
        """The text that is certain to come before any stop string."""
        if self.found:
            self.dropped += len(text.encode())
            return ""
        text = self._pending + text
        at, found = min(((text.find(one), one) for one in self._strings if one in text), default=(-1, ""))
        if found:
            self.found, self._pending = found, ""
            self.dropped = len(text[at:].encode())
            return text[:at]
        end = len(text) - partial_match_length(text, self._strings)
        self._pending = text[end:]
        return text[:end]

    def finish(self) -> str:
        """The text that waited; no more follows, or something other than text."""
        pending, self._pending = self._pending, ""
        return pending
