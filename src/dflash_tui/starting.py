"""The command line that restarts the program in its present state, with the changes made in the app."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_tui.session import LoadRequest

# A trace ends with its process: its file exists by now, and a trace needs a new file.
REPLACED = ("--target", "--draft", "--context", "--kv", "--resume", "--trace")


def arguments_again(arguments: Sequence[str], request: LoadRequest, conversation: str) -> list[str]:
    """`arguments` with the pair, context and cache type of `request`, to continue the conversation of that id."""
    kept: list[str] = []
    rest = iter(arguments)
    for word in rest:
        if word in REPLACED:
            next(rest, None)
        elif word != "--demo" and not word.startswith(tuple(f"{name}=" for name in REPLACED)):
            kept.append(word)
    kept += ["--demo"] if request.target is None else ["--target", str(request.target)]
    kept += ["--draft", str(request.draft)] if request.draft is not None else []
    # Also where they are the defaults: without them those of a profile or of the settings would apply.
    kept += ["--context", str(request.context), "--kv", request.kv]
    return [*kept, *(["--resume", conversation] if conversation else [])]
