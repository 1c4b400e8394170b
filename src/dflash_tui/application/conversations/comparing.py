"""The effect of a setting: a turn compared with an earlier answer to the same prompt, over their shared tokens.

It is computed from the stored reports and records.
"""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

from dflash_core.bench.statistics import MIN_PAIRS, compare
from dflash_core.events import StepEvent
from dflash_core.knobs import SPEC, Knobs, described
from dflash_tui.application.amounts import percent, speed
from dflash_tui.application.conversations.branches import Node
from dflash_tui.application.conversations.store import Store

if TYPE_CHECKING:
    from dflash_core.record import TurnRecord


NAMED = 3  # knobs shown by name; further ones are counted
UNLIKE = ("seed", "max_tokens", "ignore_eos")  # these end or sample an answer, and hardly change its speed
MIN_TOKENS, MAX_PARTS = 12, 12
"""The shared text is split into at most MAX_PARTS parts of at least MIN_TOKENS tokens; each is one pair."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A turn as a measurement of its setting. `tokens` after the first; `ends` and `times`: the number of tokens after
    each step, and the time in seconds. `asked` must be equal for a comparison: models and prompt."""

    knobs: Knobs
    asked: tuple[object, ...]
    tokens: tuple[int, ...]
    ends: tuple[int, ...]
    times: tuple[float, ...]

    def at(self, count: int) -> float:
        """The time at which `count` tokens existed; linear interpolation within a step."""
        place = bisect_left(self.ends, count)
        low, high = (self.ends[place - 1], self.ends[place]) if place else (0, self.ends[0])
        start = self.times[place - 1] if place else 0.0
        return start + (self.times[place] - start) * (count - low) / (high - low)


def _spans(record: TurnRecord) -> list[tuple[Knobs, int]]:
    """Where the knobs of a turn were changed: the knobs, and the first step, from 1, that ran with them."""
    numbered = enumerate((step.knobs for step in record.steps), 1)
    return [(knobs, next(group)[0]) for knobs, group in itertools.groupby(numbered, key=itemgetter(1))]


def measured(record: TurnRecord) -> Measured | None:
    """A turn as a measurement of its setting; None if the setting changed during the turn, or it had no step."""
    if record.report is None or len(_spans(record)) != 1:
        return None
    start, began = record.start, record.pieces[0].at
    steps = [piece for piece in record.pieces[1:] if isinstance(piece.event, StepEvent)]
    tokens = tuple(token for piece in steps for token in piece.event.tokens)
    ends = tuple(itertools.accumulate(len(piece.event.tokens) for piece in steps))
    asked = (start.target, start.draft, start.prompt, start.prompt_ids, record.pieces[0].event.tokens)
    return Measured(record.steps[0].knobs, asked, tokens, ends, tuple(piece.at - began for piece in steps))


def against_earlier(mine: Measured, earlier: Iterable[Measured]) -> str:
    """A line that compares a turn with the first of `earlier` that answered the same prompt with other settings.

    "" if there is none, or if the texts share too little. A difference on which the parts of the text do not agree
    is called noise, by the test that A/B uses.
    """
    for other in earlier:
        named = differing(other.knobs, mine.knobs)
        if named and other.asked == mine.asked and (line := _compared(other, mine)):
            return line.format(f"against {_values(named, other.knobs)}")
    return ""


def along_the_steps(record: TurnRecord) -> list[str]:
    """A line for each change of knobs within a turn: the new values and the first step.

    Speeds before and after belong to different text, so they are not compared.
    """
    changes = itertools.pairwise(_spans(record))
    return [f"{_values(differing(old, new), new)} from step {first} on" for (old, _), (new, first) in changes]


def differing(a: Knobs, b: Knobs) -> list[str]:
    """The knobs that affect speed and differ between the two."""
    return [name for name in SPEC if name not in UNLIKE and getattr(a, name) != getattr(b, name)]


def _compared(old: Measured, new: Measured) -> str:
    """The difference, with a placeholder for the words that name the other turn; "" if it cannot be determined."""
    pairs = zip(old.tokens, new.tokens)
    common = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(old.tokens), len(new.tokens)))
    parts = min(common // MIN_TOKENS, MAX_PARTS)
    if parts < MIN_PAIRS:
        return ""
    cuts = [common * place // parts for place in range(parts + 1)]
    a, b = _speeds(old, cuts), _speeds(new, cuts)
    if a is None or b is None:
        return ""
    shared = f"same {common} tokens"
    if not (it := compare(a, b)).matters:
        return f"no difference beyond noise {{}}, {shared}"
    agree = f"{max(it.wins, it.losses)} of {it.n} parts"
    return f"{speed(common / new.at(common))} tok/s, {percent(it.difference)} ({agree}) {{}}, {shared}"


def _speeds(it: Measured, cuts: Sequence[int]) -> list[float] | None:
    """tok/s of each part; None if a part took no time by the clock."""
    times = [0.0 if cut == 0 else it.at(cut) for cut in cuts]
    spans = [(b - a, end - start) for (a, b), (start, end) in zip(itertools.pairwise(cuts), itertools.pairwise(times))]
    return [tokens / seconds for tokens, seconds in spans] if all(seconds > 0 for _, seconds in spans) else None


def _values(names: Iterable[str], knobs: Knobs) -> str:
    shown = described(knobs, list(names))
    more = len(shown) - NAMED
    return ", ".join(shown[:NAMED]) + (f" and {more} more" if more > 0 else "")


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
