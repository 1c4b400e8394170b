"""A trace as a session: its turns run again through the app's normal path of a turn. No model is needed."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dflash_core.clean import encodable
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.drafters.kinds import FORMER
from dflash_core.events import Piece
from dflash_core.knobs import Knobs
from dflash_core.limits import Limits
from dflash_core.memory import MemoryBreakdown
from dflash_core.messages import Call, Message
from dflash_core.progress import Progress
from dflash_core.record import TurnRecord
from dflash_core.trace import Trace
from dflash_core.turn_stats import TurnReport, TurnTotals
from dflash_tui.application.session import OnPrefill, WithoutDecoder

NO_MODEL = "this is a replay, no model is loaded; leave it (Ctrl+Q) and start dflash-tui to ask something"


def reported(record: TurnRecord) -> TurnRecord:
    """The record with a report: its own, or one made from its steps if the turn was cut off."""
    prefill = record.prefill
    if record.report is not None or prefill is None:
        return record
    totals, last = TurnTotals(), record.pieces[-1]
    for piece in record.pieces:
        totals.add(piece)
    stats = totals.stats(prefill, last.at - record.pieces[0].at)
    tokens = tuple(token for event in record.events for token in event.tokens)
    report = TurnReport(
        record.text, record.thinking, tokens, last.event.mode, last.event.reason,
        last.event.stop or "cancelled", record.knobs, stats,
    )  # fmt: skip
    return dataclasses.replace(record, report=report)


class ReplayTurn:
    """A recorded turn that runs again: at once, or at its original pace."""

    def __init__(self, record: TurnRecord, *, paced: bool) -> None:
        self.record: TurnRecord | None = record
        self.report: TurnReport | None = None
        self.text = self.thinking = self.calling = ""
        self.calls: tuple[Call, ...] = ()
        self._recorded, self._paced = record, paced
        self._stopped = threading.Event()

    def __iter__(self) -> Iterator[Piece]:
        began = time.monotonic()
        for piece in self._recorded.pieces:
            if self._paced:
                self._stopped.wait(max(began + piece.at - time.monotonic(), 0.0))
            if self._stopped.is_set():
                break
            self.text += piece.text
            self.thinking += piece.thinking
            yield piece
        self.text += self._recorded.rest[0]
        self.thinking += self._recorded.rest[1]
        self.report = self._recorded.report

    def stop(self) -> None:
        self._stopped.set()

    def answer_now(self) -> None:
        """A recorded turn cannot change."""

    def change(self, knobs: Knobs) -> None:
        """A recorded turn cannot change."""


class ReplaySession(WithoutDecoder):
    """The data that the panels show, taken from the trace, whose prompts are accepted in their order."""

    refusal = NO_MODEL

    def __init__(self, trace: Trace, path: Path) -> None:
        first, loaded = trace.turns[0].start, trace.loaded
        super().__init__(f"replay of {encodable(path.name)}: {loaded.title if loaded else first.target}")
        self._waiting = [reported(record) for record in trace.turns]
        self.tools_note = NO_MODEL
        self.context_length = loaded.context_length if loaded else 0
        self.notes = (trace.problem,) if trace.problem else ()
        self.knobs = first.knobs
        only_blocks = "dflash" if first.draft_block else ""  # version 1
        kind = FORMER.get(first.draft_kind, first.draft_kind) or only_blocks
        self.limits = Limits(Capabilities(kind, first.draft_block) if kind else None, self.context_length)
        self._memory = loaded.memory if loaded else MemoryBreakdown("not recorded", (), 0, 0)

    @property
    def next(self) -> TurnRecord | None:
        return self._waiting[0] if self._waiting else None

    def ask(self, prompt: str | Sequence[Message], knobs: Knobs, *, on_prefill: OnPrefill | None = None) -> ReplayTurn:
        """The next recorded turn. Raises DFlashError for a prompt that is not the recorded one."""
        record = self.next
        if not isinstance(prompt, str) or record is None or record.start.prompt != prompt:
            self.refuse()
        del self._waiting[0]
        self.messages += (Message("user", prompt), Message("assistant", record.text, record.thinking, record.report))
        self.turns.append(record)
        return ReplayTurn(record, paced=False)

    def retry(self, knobs: Knobs, *, on_prefill: OnPrefill | None = None) -> ReplayTurn:
        """The last turn once more, at its original pace."""
        if not self.turns:
            self.refuse()
        return ReplayTurn(self.turns[-1], paced=True)

    def memory(self) -> MemoryBreakdown:
        return self._memory

    def count(self, text: str) -> int:
        """A trace has no tokenizer; in most texts a token is about four characters."""
        return -(-len(text) // 4)

    def token_text(self, token: int) -> str:
        return self.turns[-1].token_text(token) if self.turns else super().token_text(token)

    def clear(self) -> None:
        """The recorded turns stay."""

    preview = WithoutDecoder.refuse


def replaying(trace: Trace, path: Path) -> Callable[[Progress], ReplaySession]:
    """A loader that has the trace's session at once."""
    return lambda progress: ReplaySession(trace, path)
