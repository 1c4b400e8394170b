"""What a tool returned, as text for the model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dflash_core.clean import encodable

MAX_CHARACTERS = 64_000
ERROR = "Error: "
EMPTY = "(the tool returned nothing)"


def as_text(content: Sequence[Mapping[str, Any]], structured: object, *, failed: bool) -> str:
    """The text of a result's blocks, in the form of JSON. `structured` counts where there is no text."""
    parts = [part for block in content if (part := _block(block))]
    text = "\n".join(parts)
    if not text.strip():
        text = json.dumps(structured, ensure_ascii=False) if structured is not None else EMPTY
    if failed and not text.lower().startswith("error"):
        text = ERROR + text
    return encodable(text)


def _block(block: Mapping[str, Any]) -> str:
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text", ""))
    if kind == "resource":
        resource = block.get("resource")
        inner = resource if isinstance(resource, Mapping) else {}
        return str(inner["text"]) if "text" in inner else f"[resource omitted: {inner.get('uri', 'no address')}]"
    if kind == "resource_link":
        return f"[resource: {block.get('uri', 'no address')}]"
    return f"[{kind} omitted: {block.get('mimeType', 'no type')}]"


def shortened(text: str, characters: int) -> str:
    """At most so many characters of a text, with a mark that says what is missing."""
    if len(text) <= characters:
        return text
    end = max(characters, 0)
    return f"{text[:end]}\n[cut here: {len(text) - end:,} more of {len(text):,} characters]"


def fitting(text: str, tokens: int, count: Callable[[str], int]) -> str:
    """As much of a text as fits into so many tokens, and at most MAX_CHARACTERS. `count`: the tokens of a text."""
    limit = min(MAX_CHARACTERS, max(tokens, 1) * 16)  # no text of that many characters has fewer tokens in practice
    found = shortened(text, limit)
    while (used := count(found)) > tokens and limit > 0:
        # A token more or less: the last step may take a little too much away.
        limit = min(limit - 1, limit * tokens // used) if tokens > 0 else 0
        found = shortened(text, limit)
    return found
