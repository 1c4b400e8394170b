"""What the app needs from a decoder: the protocols it is written against, and how one is asked for. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from dflash_core.events import Piece, TurnReport
from dflash_core.knobs import Knobs
from dflash_core.memory import Ledger


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """What the command line asked for. Without `target` the demo pair is loaded."""

    target: Path | None = None
    draft: Path | None = None
    device: str = "auto"
    knobs: Knobs = field(default_factory=Knobs)


OnPrefill = Callable[[int, int], None]


class TurnLike(Protocol):
    """One answer in the making. Iterated on a worker thread; `stop` may be called from any thread."""

    @property
    def report(self) -> TurnReport | None: ...
    @property
    def text(self) -> str: ...
    @property
    def thinking(self) -> str: ...
    def __iter__(self) -> Iterator[Piece]: ...
    def stop(self) -> None: ...


class MessageLike(Protocol):
    """One message of the conversation, as the next prompt will hold it."""

    @property
    def role(self) -> str: ...
    @property
    def content(self) -> str: ...


class ConversationLike(Protocol):
    """The chat over a decoder: `ask` adds a user message, `retry` answers the last one again."""

    @property
    def messages(self) -> Sequence[MessageLike]: ...
    def ask(self, prompt: str, knobs: Knobs, *, on_prefill: OnPrefill | None = None) -> TurnLike: ...
    def retry(self, knobs: Knobs, *, on_prefill: OnPrefill | None = None) -> TurnLike: ...


class SessionLike(Protocol):
    """A loaded model pair with its conversation."""

    @property
    def conversation(self) -> ConversationLike: ...
    @property
    def title(self) -> str: ...
    @property
    def context_length(self) -> int: ...
    @property
    def notes(self) -> Sequence[str]: ...
    @property
    def knobs(self) -> Knobs: ...
    def ledger(self) -> Ledger: ...
    def context_used(self) -> int: ...
    def token_text(self, token: int) -> str: ...
    def clear(self) -> None:
        """Begin an empty conversation."""
        ...


Progress = Callable[[str, float], None]
Loader = Callable[[Progress], SessionLike]
