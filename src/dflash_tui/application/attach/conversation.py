"""What sessions over a server share: the history is here and sent whole with each question; the decoder is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from dflash_core.errors import DFlashError
from dflash_core.knobs import Knobs
from dflash_core.lab.experiment import Design
from dflash_core.messages import Message
from dflash_core.record import Line, TurnRecord
from dflash_core.turns import Turns
from dflash_tui.application.attach.server import AttachError
from dflash_tui.application.session import OnPrefill, TurnLike

NOT_HERE = "the model is on the server: measurements and serving need it in this program"


class SentConversation:
    """A subclass starts the turns."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.watchers: list[Callable[[Line], None]] = []
        self.messages: tuple[Message, ...] = ()

    def set_messages(self, messages: Sequence[Message]) -> None:
        self.messages = tuple(messages)

    def ask(self, prompt: str, knobs: Knobs, *, on_prefill: OnPrefill | None = None) -> TurnLike:
        return self._begin((*self.messages, Message("user", prompt)), knobs, on_prefill)

    def retry(self, knobs: Knobs, *, on_prefill: OnPrefill | None = None) -> TurnLike:
        last = max((n for n, message in enumerate(self.messages) if message.role == "user"), default=None)
        if last is None:
            raise DFlashError("nothing to retry: no question has been asked yet")
        return self._begin(self.messages[: last + 1], knobs, on_prefill)

    def _begin(self, messages: tuple[Message, ...], knobs: Knobs, on_prefill: OnPrefill | None) -> TurnLike:
        turn = self.turn(messages, knobs, on_prefill)
        self.messages = messages
        return turn

    def turn(self, messages: tuple[Message, ...], knobs: Knobs, on_prefill: OnPrefill | None) -> TurnLike:
        """The answer to the last message."""
        raise NotImplementedError

    def ended(self, turn: TurnLike) -> None:
        """Called by a turn when it ends."""
        self.messages += (Message("assistant", turn.text, turn.thinking, turn.report),)
        if turn.record is not None:
            self.turns.append(turn.record)

    def reading(self, knobs: Knobs) -> None:
        """Only the server knows what it would read again."""

    def clear(self) -> None:
        """Begin an empty one."""
        self.messages = ()
        self.turns = Turns()


class WithoutDecoder:
    """The part of a session that needs the decoder in this process."""

    missing: Mapping[str, str] = {}

    def forget_learned(self) -> NoReturn:
        raise AttachError(NOT_HERE)

    def leave(self) -> None:
        """The state of the conversation is the server's."""

    def cancel(self) -> None:
        """Nothing runs here but the turn."""

    def decoder(self) -> NoReturn:
        raise AttachError(NOT_HERE)

    def experiment(self, design: Design) -> NoReturn:
        raise AttachError(NOT_HERE)

    def what_if(
        self, record: TurnRecord, budgets: Sequence[int], drafter: str = "", p_min: float | None = None
    ) -> NoReturn:
        raise AttachError(NOT_HERE)


def sent(messages: Sequence[Message], thinking: str = "reasoning_content") -> list[dict[str, str]]:
    """Messages as APIs take them; reasoning under the name `thinking`."""
    return [
        {"role": one.role, "content": one.content} | ({thinking: one.thinking} if one.thinking else {})
        for one in messages
    ]
