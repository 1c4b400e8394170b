"""The names that docs/command-line.md gives for the fields of a command's JSON object."""

from __future__ import annotations

import re
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "command-line.md"


def fields(command: str) -> set[str]:
    """All names in code spans of the part about the object of `command`."""
    text = DOCUMENT.read_text(encoding="utf-8")
    _, found, rest = text.partition(f"The object of `{command}`")
    assert found, f"{DOCUMENT.name} says nothing of the object of {command}"
    part = re.split(r"^(?:The object of|`--trace)", rest, maxsplit=1, flags=re.MULTILINE)[0]
    return set(re.findall(r"`(\w+)`", part))
