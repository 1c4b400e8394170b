"""Text of a model or a user, made safe to show: no terminal control codes, no line ends that Markdown counts twice."""

from __future__ import annotations

_VISIBLE = dict.fromkeys((*range(32), 127, *range(128, 160)), "�")
_VISIBLE |= {0x09: "    ", 0x0A: "\n", 0x0D: "", 0x0B: " ", 0x0C: " ", 0x1C: " ", 0x1D: " ", 0x1E: " ", 0x85: " "}
_VISIBLE |= {0x2028: " ", 0x2029: " "}
# Overrides of the writing direction can make shown text read differently from what it is.
_VISIBLE |= dict.fromkeys((*range(8234, 8239), *range(8294, 8298)), "�")


def clean(text: str) -> str:
    """Replace control characters; a CR is dropped, so CRLF becomes LF even when it is split between two pieces."""
    return text.translate(_VISIBLE)


def encodable(text: str) -> str:
    """`text` with a question mark for each half of a surrogate pair, which no file, database or tokenizer takes."""
    return text.encode(errors="replace").decode()


def token_label(text: str) -> str:
    """A token as the tree shows it: its spaces, line ends and tabs made visible."""
    shown = text.replace("\r", "␍").replace("\n", "↵").replace("\t", "⇥").replace(" ", "␣")
    return shown.translate(_VISIBLE) or "∅"
