"""The definition of a slash command: its name, usage, effect, and the completion of its argument."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from dflash_core.errors import DFlashError
from dflash_core.knobs import SPECS
from dflash_tui.chat.parts import ChatParts


def knob_words(host: ChatParts) -> Mapping[str, str]:
    return {spec.name: spec.help for spec in SPECS}


@dataclass(frozen=True, slots=True)
class Slash:
    """`run` gets the chat screen and the rest of the line with its case unchanged. If it raises DFlashError, it has
    done nothing. `words`: the possible first arguments for the completer, and what each means ("": see `help`)."""

    name: str
    usage: str
    help: str
    run: Callable[[ChatParts, str], Awaitable[None]]
    words: Callable[[ChatParts], Mapping[str, str]] = lambda host: {}


def does(action: str) -> Callable[[ChatParts, str], Awaitable[None]]:
    """A `run` that executes an action of the chat screen, written as in a key binding; it takes no argument."""

    async def run(host: ChatParts, rest: str) -> None:
        if rest:
            raise DFlashError(f"expected no more words, found: {rest}")
        await host.screen.run_action(action)

    return run
