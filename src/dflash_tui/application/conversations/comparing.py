"""The effect of settings on the turns of a conversation, computed from the stored reports and records."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dflash_tui.application.conversations.branches import Node
from dflash_tui.application.conversations.store import Store
from dflash_tui.application.figures.deltas import Measured, against_earlier, along_the_steps, differing, measured

if TYPE_CHECKING:
    from dflash_core.record import TurnRecord

MAX_SEARCHED = 8  # turns with other settings that are searched for one to compare with


class Comparing:
    """The lines under answers; each is computed once. Usable from any thread.

    A record takes about 20 ms to unpack. The reports say which turns ran with other settings, so only the records
    that are shown or compared with are unpacked.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._measured: dict[str, Measured | None] = {}
        self._lines: dict[str, tuple[str, ...]] = {}

    def known(self, answer: str) -> tuple[str, ...]:
        """The line that has been computed for an answer so far."""
        return self._lines.get(answer, ())

    def lines(self, answer: str, nodes: Sequence[Node], record: TurnRecord | None = None) -> tuple[str, ...]:
        """A line that compares the answer's turn with the last one to the same question with other settings, or one
        for each change of settings within the turn.

        `nodes`: the conversation, in the order of writing; `record`: the turn's, if it is in memory.
        """
        with self._lock:
            if answer not in self._lines:
                self._lines[answer] = self._worked_out(answer, nodes, record)
            return self._lines[answer]

    def _worked_out(self, answer: str, nodes: Sequence[Node], record: TurnRecord | None) -> tuple[str, ...]:
        record = record or self._store.readable(answer)
        if record is None:
            return ()
        mine = self._measured[answer] = measured(record)
        if mine is None:
            return tuple(along_the_steps(record))
        by_id = {node.id: node for node in nodes}
        question = _question(by_id, by_id.get(answer))
        ran_otherwise = [
            one.id
            for one in itertools.takewhile(lambda node: node.id != answer, nodes)
            if one.report and _question(by_id, one) == question and differing(one.report.knobs, mine.knobs)
        ]
        earlier = map(self._measure, reversed(ran_otherwise[-MAX_SEARCHED:]))
        line = against_earlier(mine, filter(None, earlier))
        return (line,) if line else ()

    def _measure(self, answer: str) -> Measured | None:
        if answer not in self._measured:
            record = self._store.readable(answer)
            self._measured[answer] = measured(record) if record is not None else None
        return self._measured[answer]


def _question(by_id: Mapping[str, Node], answer: Node | None) -> str:
    """The text of the message that an answer replies to; of results of calls their id: only the same ones compare."""
    asked = by_id.get(answer.parent or "") if answer is not None else None
    return (asked.content or asked.id) if asked is not None else ""
