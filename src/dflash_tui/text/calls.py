"""Calls of tools in words."""

from __future__ import annotations

import json

from dflash_tui.text.bars import clip

MAX_LINE = 60  # cells of the arguments in a line
MAX_VALUE = 24


def _parsed(arguments: str) -> dict[str, object]:
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return {"": arguments}
    return found if isinstance(found, dict) else {"": found}


def in_line(arguments: str) -> str:
    """Arguments in a few words: path=a.txt lines=3."""
    parts = []
    for name, value in _parsed(arguments).items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        parts.append(f"{name}={clip(' '.join(text.split()), MAX_VALUE)}")
    return clip(" ".join(parts), MAX_LINE)


def argument_lines(arguments: str) -> str:
    """All of them, a value below its name where it has several lines."""
    lines = []
    for name, value in _parsed(arguments).items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
        lines.append(f"{name}:\n{text}" if "\n" in text else f"{name}: {text}")
    return "\n".join(lines) or "(no arguments)"
