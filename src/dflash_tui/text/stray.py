"""Reasoning that a model began without saying so: what stands before a closing tag that nothing opened."""

from __future__ import annotations

import re

_CLOSE = re.compile(r"(?:^|\n)[ \t]*</think>[ \t]*(?:\n|$)")
_FENCE = re.compile(r"^ {0,3}(?:```|~~~)", re.MULTILINE)


def stray_close(text: str) -> tuple[str, str] | None:
    """The reasoning and the answer, where a tag on a line of its own closes what no tag opened; None where none does.

    An answer that talks about tags quotes them in a line or in a fence, and opens what it closes.
    """
    found = _CLOSE.search(text)
    if found is None:
        return None
    before = text[: found.start()]
    if "<think>" in before or len(_FENCE.findall(before)) % 2 or not before.strip():
        return None
    return before, text[found.end() :].lstrip("\n")
