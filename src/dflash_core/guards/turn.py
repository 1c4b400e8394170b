"""The guards of a chat turn: a budget of thinking, and loops in its reasoning and in its answer."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_core.events import GuardEvent
from dflash_core.guards.base import LAG, Intervention
from dflash_core.guards.loops import COVERAGE, WINDOW, find_loop
from dflash_core.knobs import Knobs
from dflash_core.text.detokenizer import Detokenizer
from dflash_core.text.thinking import CLOSE, ThinkingSplit
from dflash_core.text.tokenizer import Tokenizer

CHECKED_EVERY = 32  # tokens
LEAST_THINKING = 1024  # tokens of reasoning before loops are searched


class TurnGuard:
    """Implements `guards.base.Guard`. Loops are checked after every 32 tokens of a part, the budget after each
    token."""

    def __init__(self, tokenizer: Tokenizer, knobs: Knobs, *, opens_thinking: bool) -> None:
        """`opens_thinking`: whether the prompt ends inside a think block."""
        self._tokenizer, self._knobs = tokenizer, knobs
        self._detokenizer, self._split = Detokenizer(tokenizer), ThinkingSplit(opens_thinking)
        self._seen = 0
        self._parts: dict[str, list[int]] = {"thinking": [], "answer": []}
        self._found: tuple[int, GuardEvent] | None = None  # where a loop ends, and what was found
        self._closed = False

    @staticmethod
    def of(tokenizer: Tokenizer, knobs: Knobs, *, opens_thinking: bool) -> TurnGuard | None:
        """None if the knobs enable no guard."""
        idle = not knobs.thinking_budget and knobs.loop_guard == knobs.answer_loop_guard == "off"
        return None if idle else TurnGuard(tokenizer, knobs, opens_thinking=opens_thinking)

    @property
    def limit(self) -> int | None:
        points = [self._found[0]] if self._found is not None else []
        if (left := self._budget_left()) is not None:
            points.append(self._seen + left)
        return min(points, default=None)

    @property
    def intervention(self) -> Intervention | None:
        if self._split.inside and self._budget_left() == 0:
            spent = f"the budget of {self._knobs.thinking_budget:,} tokens is spent"
            return self._close(GuardEvent("thinking budget", "thinking", "close", spent))
        if self._found is None or self._seen < self._found[0]:
            return None
        event = self._found[1]
        return self._close(event) if event.action == "close" else Intervention(event)

    def see(self, tokens: Sequence[int], *, said: bool = False) -> None:
        self._closed = self._closed or said
        for token in tokens:
            self._see(token)

    def _see(self, token: int) -> None:
        was_inside = self._split.inside
        if self._split.begun and not was_inside and self._knobs.answer_loop_guard == "off":
            self._seen += 1  # an answer without guards
            return
        self._split.push(self._detokenizer.push((token,)))
        self._seen += 1
        if was_inside != self._split.inside:
            self._found = None  # its part is over, and the tag belongs to neither
            return
        part = "thinking" if was_inside else "answer"
        ids = self._parts[part]
        ids.append(token)
        if self._found is None and not len(ids) % CHECKED_EVERY:
            self._look(part, ids)

    def _look(self, part: str, ids: Sequence[int]) -> None:
        thinking = part == "thinking"
        mode = self._knobs.loop_guard if thinking else self._knobs.answer_loop_guard
        if mode == "off" or len(ids) < (LEAST_THINKING if thinking else COVERAGE):
            return
        if found := find_loop(ids[-WINDOW:], runs=thinking):
            closes = thinking and mode == "close" and not self._closed
            event = GuardEvent("loop", "thinking" if thinking else "answer", "close" if closes else "stop", found)
            self._found = self._seen + LAG, event

    def _budget_left(self) -> int | None:
        """Tokens of reasoning that are left; None without a limit, or without reasoning."""
        # Until the first word it may still become a think block: one needless halt is better than a late one.
        may_think = self._split.inside or not self._split.begun
        if not self._knobs.thinking_budget or self._closed or not may_think:
            return None
        return max(self._knobs.thinking_budget - len(self._parts["thinking"]), 0)

    def _close(self, event: GuardEvent) -> Intervention:
        return Intervention(event, tuple(self._tokenizer.encode(CLOSE)))
