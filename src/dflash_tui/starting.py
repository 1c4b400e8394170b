"""The command line that restarts the program in its present state: what the app has changed replaces the old."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_core.cache_types import AUTO
from dflash_tui.session import LoadRequest

# A trace ends with its process: its file is there by now, and only a new one is written to.
REPLACED = ("--target", "--draft", "--context", "--kv", "--resume", "--trace")


def arguments_again(arguments: Sequence[str], request: LoadRequest, conversation: str) -> list[str]:
    """`arguments` for the pair, context and cache of `request`, going on with the conversation of that id, if any."""
    kept: list[str] = []
    rest = iter(arguments)
    for word in rest:
        if word in REPLACED:
            next(rest, None)
        elif word != "--demo" and not word.startswith(tuple(f"{name}=" for name in REPLACED)):
            kept.append(word)
    kept += ["--demo"] if request.target is None else ["--target", str(request.target)]
    kept += ["--draft", str(request.draft)] if request.draft is not None else []
    kept += ["--context", str(request.context)] if request.context else []
    kept += ["--kv", request.kv] if request.kv != AUTO else []
    return [*kept, *(["--resume", conversation] if conversation else [])]
