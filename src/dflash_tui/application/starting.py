"""Command lines: the one that restarts the program in its present state, and the one to come back with."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from dflash_tui.application.session import LoadRequest

# A trace ends with its process: its file exists by now, and a trace needs a new file.
OTHERS = ("--resume", "--trace")
KEYS = ("--attach-key", "--key")
REPLACED = ("--target", "--draft", "--context", "--kv", "--attach", "--attach-model", *OTHERS)


def arguments_again(arguments: Sequence[str], request: LoadRequest, conversation: str) -> list[str]:
    """`arguments` with the pair, context and cache type of `request`, to continue the conversation of that id."""
    words = [word for word in _without(arguments, REPLACED) if word not in ("--demo", "--smollm2")]
    if request.attach:
        words += ["--attach", request.attach]
        words += ["--attach-model", request.attach_model] if request.attach_model else []
    else:
        words += ["--demo"] if request.target is None else ["--target", str(request.target)]
        words += ["--draft", str(request.draft)] if request.draft is not None else []
    # Also where they are the defaults: without them those of a profile or of the settings would apply.
    words += ["--context", str(request.context), "--kv", request.kv]
    return [*words, *(["--resume", conversation] if conversation else [])]


def resume_line(arguments: Sequence[str], conversation: str) -> str:
    """The command that opens the program with `arguments` and a conversation. It is printed, so without keys."""
    return shlex.join(["dflash-tui", *_without(arguments, (*OTHERS, *KEYS)), "--resume", conversation])


def _without(arguments: Sequence[str], options: Sequence[str]) -> list[str]:
    """`arguments` without these options and their values, and without --continue."""
    words: list[str] = []
    left = ""  # the option whose value comes next
    for word in arguments:
        value, left = left, word if word in options else ""
        if left or word == "--continue" or (value and not (value == "--resume" and word.startswith("-"))):
            continue
        if not word.startswith(tuple(f"{name}=" for name in options)):
            words.append(word)
    return words
