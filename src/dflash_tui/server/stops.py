"""Stop strings: text that ends an answer, wherever the borders of tokens and steps lie in it."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Passes text on up to the first stop string. What may be the beginning of one is held back."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = tuple(strings)
        self._held = ""
        self.found = ""
        self.dropped = 0
        """Bytes of text from the stop string on."""

    def push(self, text: str) -> str:
        """The text that is certain to come before any stop string."""
        if self.found:
            self.dropped += len(text.encode())
            return ""
        text = self._held + text
        at, found = min(((text.find(one), one) for one in self._strings if one in text), default=(-1, ""))
        if found:
            self.found, self._held = found, ""
            self.dropped = len(text[at:].encode())
            return text[:at]
        keep = max((_begun(text, one) for one in self._strings), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """The text that was held back; no more follows, or something other than text."""
        held, self._held = self._held, ""
        return held


def _begun(text: str, string: str) -> int:
    """How many characters at the end of `text` begin `string`."""
    return next((n for n in range(min(len(string) - 1, len(text)), 0, -1) if text.endswith(string[:n])), 0)
