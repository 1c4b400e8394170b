"""One prompt, one measured answer: the unit of every measurement."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from dflash_core.answer import Answer
from dflash_core.conversation import Conversation
from dflash_core.errors import DFlashError
from dflash_core.knobs import Knobs
from dflash_core.messages import Message, Prompt
from dflash_core.record import Start
from dflash_core.runner import Runner
from dflash_core.text.template import ChatTemplate
from dflash_core.text.tokenizer import Tokenizer
from dflash_core.turn_stats import TurnReport


class Answerer:
    """Answers prompts on an engine, each as a conversation of its own. One at a time; `stop` from any thread."""

    def __init__(self, engine: Runner, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self.engine, self.tokenizer, self.template = engine, tokenizer, template
        self._lock = threading.RLock()  # a signal handler may call `stop` on the thread that has the lock
        self._turn: Answer | None = None
        self._stopped = threading.Event()

    def answer(self, asked: Sequence[Message] | Prompt, knobs: Knobs) -> TurnReport | None:
        """The answer to a prompt, or to the last of some messages, a user's; None where it was stopped before its end.

        Raises TemplateError, ContextError, and what the engine raises.
        """
        turn: Answer
        if isinstance(asked, Prompt):
            turn = Answer(self.engine, self.tokenizer, asked, knobs.fixed(), _start)
        else:
            conversation = Conversation(self.engine, self.tokenizer, self.template)
            conversation.set_messages(asked[:-1])
            turn = conversation.ask(asked[-1].content, knobs.fixed())
        with self._lock:
            self._turn = turn
            if self._stopped.is_set():
                return None
        try:
            for _ in turn:
                pass
        finally:
            with self._lock:
                self._turn = None
        if self._stopped.is_set():
            return None
        if turn.report is None:
            raise DFlashError("the engine ended an answer before its first token; expected at least one")
        return turn.report

    def stop(self) -> None:
        """End the running answer after its step, and every later one before it begins."""
        with self._lock:
            self._stopped.set()
            if self._turn is not None:
                self._turn.stop()


def _start(prompt: Prompt, knobs: Knobs) -> Start:
    """The beginning of a record that nobody reads."""
    return Start("", "", "", "", "", prompt.ids, knobs)
