"""What the settings of a conversation's turns brought, worked out from what is stored of them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dflash_core.errors import DFlashError
from dflash_tui.conversations.branches import Node
from dflash_tui.conversations.store import Store
from dflash_tui.figures.deltas import Measured, against_earlier, differing, measured, on_the_way
from dflash_tui.log import LOG

if TYPE_CHECKING:
    from dflash_core.record import TurnRecord

LOOK_BACK = 8  # turns of another setting that are searched for one to compare with


class Comparing:
    """The lines under answers; each is worked out once. Usable from any thread.

    A record takes some 20 ms to unpack. The reports beside the messages say which turns ran otherwise, so only those
    are unpacked that are shown or compared with.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._measured: dict[str, Measured | None] = {}
        self._lines: dict[str, tuple[str, ...]] = {}

    def known(self, answer: str) -> tuple[str, ...]:
        """What has been worked out for an answer by now."""
        return self._lines.get(answer, ())

    def lines(self, answer: str, nodes: Sequence[Node], record: TurnRecord | None = None) -> tuple[str, ...]:
        """A line for what the answer's turn brought beside the last one to the same question that ran otherwise, or
        for each change of it on the way.

        `nodes`: the conversation, in the order of writing; `record`: the turn's, where it is at hand.
        """
        with self._lock:
            if answer not in self._lines:
                self._lines[answer] = self._worked_out(answer, nodes, record)
            return self._lines[answer]

    def _worked_out(self, answer: str, nodes: Sequence[Node], record: TurnRecord | None) -> tuple[str, ...]:
        record = record or self._record(answer)
        if record is None:
            return ()
        mine = self._measured[answer] = measured(record)
        if mine is None:
            return tuple(on_the_way(record))
        by_id = {node.id: node for node in nodes}
        question = _question(by_id, by_id.get(answer))
        ran_otherwise = [
            one.id
            for one in itertools.takewhile(lambda node: node.id != answer, nodes)
            if one.report and _question(by_id, one) == question and differing(one.report.knobs, mine.knobs)
        ]
        earlier = map(self._measure, reversed(ran_otherwise[-LOOK_BACK:]))
        line = against_earlier(mine, filter(None, earlier))
        return (line,) if line else ()

    def _measure(self, answer: str) -> Measured | None:
        if answer not in self._measured:
            record = self._record(answer)
            self._measured[answer] = measured(record) if record is not None else None
        return self._measured[answer]

    def _record(self, answer: str) -> TurnRecord | None:
        """A record that cannot be read costs only the lines that it would give."""
        try:
            return self._store.record(answer)
        except DFlashError as error:
            LOG.warning("the record of an answer: %s", error)
            return None


def _question(by_id: Mapping[str, Node], answer: Node | None) -> str:
    """What an answer answers."""
    asked = by_id.get(answer.parent or "") if answer is not None else None
    return asked.content if asked is not None else ""
