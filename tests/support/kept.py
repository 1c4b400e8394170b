"""A stored conversation over a small real decoder. Run as a program, it is meant to be killed while it answers."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

from dflash_core.conversation import Conversation
from dflash_core.engine import Engine
from dflash_core.knobs import Knobs
from dflash_tui.application.conversations.current import CurrentConversation
from support.golden import golden, target

LONG = Knobs(max_tokens=2000, ignore_eos=True)


@cache
def engine() -> Engine:
    from dflash_core import load_draft

    return Engine(target(), load_draft(golden("tiny-dflash"), target=target()))


def conversation(system: str = "") -> Conversation:
    """An empty one over the tiny golden pair."""
    one = engine()
    return Conversation(one, one.target.tokenizer, one.target.template, system)


def answer(current: CurrentConversation, talk: Conversation, prompt: str, knobs: Knobs | None = None) -> str:
    """Ask, and wait for the end of the answer."""
    turn = current.ask(talk, prompt, knobs or Knobs(max_tokens=12, ignore_eos=True))
    list(current.pieces(turn))
    return turn.text


def main(folder: Path) -> None:
    """Answer once; then answer at length, and print each piece of text when it is handed over."""
    current, talk = CurrentConversation(folder), conversation()
    answer(current, talk, "first\nquestion")
    current.wait("the second question")
    current.typed("")
    current.wait("one that waits")
    current.typed("half a thought")
    for piece in current.pieces(current.ask(talk, "the second question", LONG)):
        sys.stdout.write(ascii(piece.text) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
