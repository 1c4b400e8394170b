"""The guards of a chat turn: a budget of thinking, a message that ends inside it, loops in reasoning and answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dflash_core.events import GuardEvent
from dflash_core.guards.loops import COVERAGE, WINDOW, find_loop
from dflash_core.knobs import Knobs
from dflash_core.text.thinking import ThinkingSplit
from dflash_core.text.tokenizer import Detokenizer, Tokenizer

LAG = 160  # tokens between a finding and its action: more than queued steps can commit
CHECKED_EVERY = 32  # tokens
MIN_THINKING = 1024  # tokens of reasoning before loops are searched
TAGS, TAGS_AMONG = 16, 64  # think tags among the newest tokens of an answer that make a loop


@dataclass(frozen=True, slots=True)
class Intervention:
    """The action of a guard: `tokens` are inserted in the model's place; without any, the answer ends."""

    event: GuardEvent
    tokens: tuple[int, ...] = ()


class TurnGuard:
    """Watches one answer, token by token. Decisions depend only on the tokens: how steps group them changes nothing.

    On a card, steps are queued before the results of earlier ones are known. So a limit found in mid-answer is at least
    LAG tokens after the token that caused it. Loops are checked after every 32 tokens of a part, the budget after each.
    """

    def __init__(self, tokenizer: Tokenizer, knobs: Knobs, *, opens_thinking: bool, begun: Sequence[int] = ()) -> None:
        """`opens_thinking`: whether the prompt ends inside a think block. `begun`: tokens that the answer goes on from,
        which count for its reasoning and its loops."""
        self._tokenizer, self._knobs = tokenizer, knobs
        self._detokenizer, self._split = Detokenizer(tokenizer), ThinkingSplit(opens_thinking)
        self._seen = 0
        self._parts: dict[str, list[int]] = {"thinking": [], "answer": []}
        self._tags = frozenset(tokenizer.think_ids or ())
        self._answering = False  # the first block of reasoning is over, or there is none
        self._found: tuple[int, GuardEvent] | None = None  # where a loop ends, and what was found
        self._closed = self._continued = self._requested = False
        self.see(begun)
        self._seen, self._found = 0, None

    def answer_now(self) -> None:
        """Close the reasoning as soon as possible. Callable from any thread."""
        self._requested = True

    @property
    def limit(self) -> int | None:
        """Tokens of the answer at which decoding halts; None while there is no such point."""
        points = [self._found[0]] if self._found is not None else []
        if (left := self._budget_left()) is not None:
            points.append(self._seen + left)
        return min(points, default=None)

    @property
    def intervention(self) -> Intervention | None:
        """The action after the last token, where decoding has halted; None to continue, because the reason for the
        limit no longer exists."""
        if self._split.inside and self._budget_left() == 0:
            spent = f"the budget of {self._knobs.thinking_budget:,} tokens is spent"
            return self._close(GuardEvent("thinking budget", "thinking", "close", spent))
        if self._found is None or self._seen < self._found[0]:
            return None
        event = self._found[1]
        return self._close(event) if event.action == "close" else Intervention(event)

    def ended(self) -> Intervention | None:
        """The model has drawn a stop token after what was seen. The action's tokens replace it; None: the answer
        ends."""
        if not self._split.inside or self._continued or self._knobs.end_in_thinking == "leave":
            return None
        self._continued = True
        return self._close(GuardEvent("end of message", "thinking", "close", "the model ended its message inside it"))

    @property
    def requested(self) -> Intervention | None:
        """The action that the user has requested, to be taken as soon as possible; None without one."""
        if not (self._requested and self._split.inside):
            return None
        return self._close(GuardEvent("request", "thinking", "close", "an answer was requested"))

    def see(self, tokens: Sequence[int], *, injected: bool = False) -> None:
        """The answer continues with `tokens`; `injected`: they are an intervention's."""
        self._closed = self._closed or injected
        self._requested = self._requested and not injected
        for token in tokens:
            self._see(token)

    def _see(self, token: int) -> None:
        was_inside = self._split.inside
        self._split.push(self._detokenizer.push((token,)))
        self._seen += 1
        inside = self._split.inside
        if was_inside and not inside and not self._answering:
            self._found, self._answering = None, True  # the reasoning is over, and its tag belongs to neither part
            return
        self._answering = self._answering or (self._split.begun and not inside)
        # Tags in the answer and reasoning after its beginning count for its loops.
        for part in ("thinking",) * (was_inside and inside) + ("answer",) * (self._answering or not inside):
            ids = self._parts[part]
            ids.append(token)
            if self._found is None and not len(ids) % CHECKED_EVERY:
                self._look(part, ids)

    def _look(self, part: str, ids: Sequence[int]) -> None:
        thinking = part == "thinking"
        mode = self._knobs.loop_guard if thinking else self._knobs.answer_loop_guard
        # What follows an ignored end often repeats itself, and is for measuring.
        if mode == "off" or (not thinking and self._knobs.ignore_eos):
            return
        tags = 0 if thinking else sum(token in self._tags for token in ids[-TAGS_AMONG:])
        if tags >= TAGS:
            found = f"{tags} think tags among {TAGS_AMONG} tokens"
        elif len(ids) >= (MIN_THINKING if thinking else COVERAGE):
            found = find_loop(ids[-WINDOW:], runs=thinking)
        else:
            return
        if found:
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
        return Intervention(event, tuple(self._tokenizer.closing_ids))
