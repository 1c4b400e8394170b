"""What sessions without a decoder in this process share, over a server or a trace: each is its own conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NoReturn, Self

from dflash_core.errors import DFlashError
from dflash_core.knobs import Knobs
from dflash_core.messages import Message
from dflash_core.record import Line, Turns
from dflash_core.text.template_values import NO_TOOLS, Tools
from dflash_core.turn_stats import FoundRow
from dflash_tui.application.requests import Requests


class WithoutDecoder:
    """`refusal`: why there is nothing that needs a decoder."""

    missing: Mapping[str, str] = {}
    refusal: ClassVar[str]

    def __init__(self, title: str) -> None:
        self.title = title
        self.turns = Turns()
        self.watchers: list[Callable[[Line], None]] = []
        self.messages: tuple[Message, ...] = ()
        self.tools: Tools = NO_TOOLS
        self.tools_note = ""

    @property
    def conversation(self) -> Self:
        return self

    def set_messages(self, messages: Sequence[Message]) -> None:
        self.messages = tuple(messages)

    def reading(self, knobs: Knobs) -> None:
        """What would be read again is not known here."""

    def watch(self, requests: Requests) -> bool:
        return False

    def token_text(self, token: int) -> str:
        return f"<id {token}>"

    def learned(self) -> Sequence[FoundRow]:
        """As of the last turn."""
        report = self.turns[-1].report if self.turns else None
        return report.learned if report is not None else ()

    def leave(self) -> None:
        """There is no state to save."""

    def cancel(self) -> None:
        """Nothing runs but the turn."""

    def refuse(self, *_: object, **__: object) -> NoReturn:
        """Raises DFlashError."""
        raise DFlashError(self.refusal)

    forget_learned = decoder = experiment = what_if = refuse
