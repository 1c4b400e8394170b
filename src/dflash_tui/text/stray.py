"""Reasoning that a model began without an opening tag: the text before an unmatched closing tag."""

from __future__ import annotations

import re

_CLOSE = re.compile(r"(?:^|\n)[ \t]*</think>[ \t]*(?:\n|$)")
_FENCE = re.compile(r"^ {0,3}(?:```|~~~)", re.MULTILINE)


def stray_close(text: str) -> tuple[str, str] | None:
    """The reasoning and the answer, split at an unmatched closing tag on its own line; None if there is none.

    An answer about tags quotes them within a line or a fence, and has an opening tag for each closing one.
    """
    found = _CLOSE.search(text)
    if found is None:
        return None
    before = text[: found.start()]
    if "<think>" in before or len(_FENCE.findall(before)) % 2 or not before.strip():
        return None
    return before, text[found.end() :].lstrip("\n")
