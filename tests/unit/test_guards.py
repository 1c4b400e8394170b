"""Loops are found in the last ids, and an answer is halted at the same token whatever its steps were. No model."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from text_data import tiny

from dflash_core.errors import KnobError
from dflash_core.events import Event, StepEvent
from dflash_core.guards.loops import COVERAGE, WINDOW, find_loop
from dflash_core.guards.turn import CHECKED_EVERY, LAG, MIN_THINKING, Intervention, TurnGuard
from dflash_core.knobs import Knobs, parse_settings
from dflash_core.runner import Runner
from dflash_core.turn_check import check_step
from support.counting import CountingBackend, row_of

TOKENIZER = tiny()
OPEN, CLOSE, END = (TOKENIZER.special[name] for name in ("<think>", "</think>", "<|im_end|>"))
VOCAB = TOKENIZER.vocab_size


def text(count: int, seed: int = 1) -> list[int]:
    """Tokens without any order."""
    return random.Random(seed).choices(range(300), k=count)


# ---- Loops -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("period", [1, 2, 7, 8, 9, 31, 64, 65, 200, 381, 384, 511, 512])
@pytest.mark.parametrize("lead", [0, 13, 1500])
def test_a_period_is_found_as_soon_as_it_covers_enough(period: int, lead: int) -> None:
    loop = text(period, 2)
    least = period + max(COVERAGE, 2 * period)
    tail = [*text(lead), *(loop * (WINDOW // period + 1))]
    # The text before a loop agrees with it in a few tokens by chance.
    for count in (least - 40, least, least + 100, WINDOW):
        found = find_loop(tail[: lead + count], runs=False)
        assert bool(found) == (count >= least), (count, found)
    assert "over and over" in find_loop(tail[: lead + least], runs=False)


def test_how_much_of_a_period_may_differ() -> None:
    """Each wrong token makes two comparisons fail."""
    for period, wrong in ((4, 1), (40, 3), (200, 7)):
        tail = text(period, 3) * (2000 // period)
        places = [len(tail) - 60 - 97 * n for n in range(wrong)]
        for place in places:
            tail[place] = 301
        assert find_loop(tail, runs=False), period
        for place in range(0, len(tail), 15):
            tail[place] = 301 + place
        assert not find_loop(tail, runs=False), period


def test_a_period_past_the_longest_is_not_one() -> None:
    loop = text(600, 4)
    assert not find_loop(loop * 4, runs=False)
    assert "runs of 8 tokens" in find_loop(loop * 4, runs=True)


def test_runs_that_come_again_without_a_period() -> None:
    chance = random.Random(5)
    phrases = [text(20, 10 + n) for n in range(12)]
    tail: list[int] = []
    while len(tail) < WINDOW:
        tail += [*chance.choice(phrases), *text(chance.randrange(3), len(tail))]
    assert "3 times or more" in find_loop(tail, runs=True)
    assert not find_loop(tail, runs=False)
    # A text that occurs twice is not a loop.
    assert not find_loop([*text(1000, 6), *text(1000, 6)], runs=True)


def test_next_to_no_different_tokens() -> None:
    chance = random.Random(7)
    few = chance.choices(range(8), k=1024)
    assert "8 different tokens" in find_loop([*text(500), *few], runs=False)
    assert not find_loop(few[:1000], runs=False)
    spread = chance.choices(range(8), k=960) + chance.choices(range(8, 31), k=64)
    chance.shuffle(spread)
    assert not find_loop(spread, runs=False), "six in a hundred are others"
    assert not find_loop([*chance.choices(range(8), k=1000), *range(100, 125)], runs=False), "33 of them"


@pytest.mark.parametrize("count", [0, 1, 5, 31, 64, 767, 1024, 2048, 5000])
def test_text_is_no_loop(count: int) -> None:
    for seed in range(3):
        assert not find_loop(text(count, seed), runs=True)


# ---- A turn ----------------------------------------------------------------------------------------------------------


class Looping(CountingBackend):
    """Its target thinks 0..11 over and over, and answers 40, 41, ... after the end of thinking; drafts are right for
    `right` tokens. With `answers` the answer never ends either."""

    def __init__(self, right: int = 0, block: int = 8, answers: bool = False) -> None:
        super().__init__(right, block)
        self.answers = answers

    def after(self, token: int) -> int:
        if token in (CLOSE, OPEN):
            return 40 if token == CLOSE else 0
        if token < 12:
            return (token + 1) % 12
        return 40 + (token - 39) % 10 if token < 49 or self.answers else END

    def _row(self, token: int) -> np.ndarray:
        return row_of(self.after(token), VOCAB)

    def draft(self, root: int, window: int, at: int | None = None) -> np.ndarray:
        rows, token = [], root
        for depth in range(self.block - 1):
            token = self.after(token) if depth < self.right else 300
            rows.append(row_of(token, VOCAB))
        return np.stack(rows)


def turn(backend: Looping, knobs: Knobs, prompt: Sequence[int] = (7, OPEN), opens: bool = True) -> list[Event]:
    runner = Runner(backend, frozenset({END}), 100_000, VOCAB)
    guard = TurnGuard(TOKENIZER, knobs, opens_thinking=opens)
    events = list(runner.generate(prompt, knobs, guard=guard))
    assert backend.tokens == [*prompt, *ids(events)[:-1]] == runner._committed, "the last token is drawn, not run"
    for event in events:
        if isinstance(event, StepEvent):
            check_step(event)
    return events


def ids(events: Sequence[Event]) -> list[int]:
    return [token for event in events for token in event.tokens]


def guards(events: Sequence[Event]) -> list[str]:
    return [event.guard.summary for event in events if isinstance(event, StepEvent) and event.guard is not None]


WAYS = [(mode, right) for mode in ("plain", "chain", "tree", "auto") for right in (0, 1, 3, 6, 7)]
LONG_WAYS = [("plain", 0), ("chain", 3), ("chain", 7), ("tree", 5)]


@pytest.mark.parametrize("budget", [1, 2, 3, 7, 8, 9, 40])
def test_a_budget_of_thinking_is_exact(budget: int) -> None:
    expected = [*[token % 12 for token in range(1, budget + 1)], CLOSE, *range(40, 50), END]
    for mode, right in WAYS:
        knobs = Knobs(max_tokens=1000, thinking=True, thinking_budget=budget).replace(mode=mode)
        events = turn(Looping(right), knobs, prompt=(7, OPEN, 0))
        assert ids(events) == expected, (mode, right)
        assert guards(events) == [f"thinking was closed: the budget of {budget} tokens is spent"]
        assert events[-1].stop == "stop token"


def test_no_tree_goes_past_the_point() -> None:
    for budget in (5, 6, 7, 8, 9, 10, 11):
        knobs = Knobs(drafting="chain 7", max_tokens=1000, thinking_budget=budget)
        told = 0
        for event in turn(Looping(7), knobs):
            if isinstance(event, StepEvent) and event.guard is None and told < budget:
                assert told + event.drafted_depth < budget
            told += len(event.tokens)


@pytest.mark.parametrize("opens", [True, False])
def test_a_budget_counts_what_is_thought_only(opens: bool) -> None:
    """A block that the answer itself begins counts too; one that ends by itself is left alone."""
    for mode, right in WAYS:
        knobs = Knobs(max_tokens=60, thinking_budget=9).replace(mode=mode)
        if not opens:
            backend = Looping(right)
            backend.after = lambda token, plain=backend.after: OPEN if token == 20 else plain(token)  # type: ignore[method-assign]
            events = turn(backend, knobs, prompt=(20,), opens=False)
            assert ids(events) == [OPEN, *range(9), CLOSE, *range(40, 50), END]
        plain = turn(Looping(right), knobs, prompt=(CLOSE,), opens=False)
        assert ids(plain) == [*range(40, 50), END]
        assert not guards(plain)


def test_a_budget_beside_the_other_ends() -> None:
    for mode, right in WAYS:
        for most, stop in ((9, "max tokens"), (10, "max tokens"), (11, "max tokens"), (1000, "stop token")):
            events = turn(
                Looping(right), Knobs(max_tokens=most, thinking_budget=10).replace(mode=mode), prompt=(7, OPEN, 0)
            )
            assert ids(events) == [*[n % 12 for n in range(1, 11)], CLOSE, *range(40, 50), END][:most]
            assert events[-1].stop == stop


def test_a_loop_in_thinking_is_closed_once_and_exactly() -> None:
    found = -(-MIN_THINKING // CHECKED_EVERY) * CHECKED_EVERY
    expected = [*[n % 12 for n in range(found + LAG)], CLOSE, *range(40, 50), END]
    for mode, right in LONG_WAYS:
        events = turn(Looping(right), Knobs(max_tokens=5000).replace(mode=mode, budget=9))
        assert ids(events) == expected, (mode, right)
        assert guards(events)[0].startswith("thinking was closed: a loop in the thinking: 12 tokens over and over in")
        assert len(guards(events)) == 1
    stopped = turn(Looping(7), Knobs(drafting="auto up to 7", max_tokens=5000, loop_guard="stop"))
    assert ids(stopped) == expected[: found + LAG]
    assert (stopped[-1].stop, len(guards(stopped))) == ("loop", 1)
    assert len(ids(turn(Looping(7), Knobs(drafting="auto up to 7", max_tokens=2500, loop_guard="off")))) == 2500


def test_a_loop_in_the_answer_is_stopped_unless_that_is_off() -> None:
    at = COVERAGE + 2 * CHECKED_EVERY + LAG  # a period of 10 needs 778 tokens, the next look is at 800
    for mode, right in LONG_WAYS:
        knobs = Knobs(max_tokens=5000).replace(mode=mode, budget=9)
        events = turn(Looping(right, answers=True), knobs, prompt=(CLOSE,), opens=False)
        assert len(ids(events)) == at - CHECKED_EVERY
        assert events[-1].stop == "loop"
        assert guards(events)[0].startswith("the answer was stopped: a loop in the answer: 10 tokens")
    off = Knobs(drafting="auto up to 7", max_tokens=2000, answer_loop_guard="off")
    endless = turn(Looping(7, answers=True), off, prompt=(CLOSE,), opens=False)
    assert (len(ids(endless)), endless[-1].stop) == (2000, "max tokens")
    measured = off.replace(answer_loop_guard="stop", ignore_eos=True)
    assert len(ids(turn(Looping(7, answers=True), measured, prompt=(CLOSE,), opens=False))) == 2000


def test_a_loop_that_ends_by_itself_is_left_alone() -> None:
    """A loop found in the thinking does not count for the answer after it."""
    guard = TurnGuard(TOKENIZER, Knobs(), opens_thinking=True)
    guard.see([n % 12 for n in range(MIN_THINKING)])
    assert guard.limit == MIN_THINKING + LAG
    guard.see([5, CLOSE])
    assert guard.limit is None
    assert guard.intervention is None


def test_a_finding_leaves_room_for_steps_under_way() -> None:
    """The step in which a loop is found may hold MAX_DEPTH tokens after it, and more steps may be queued."""
    from dflash_core.backends.cuda.step import MAX_IN_FLIGHT

    assert LAG >= MAX_IN_FLIGHT


def test_a_cancelled_turn_is_not_spoken_for() -> None:
    backend = Looping(3)
    runner = Runner(backend, frozenset({END}), 1000, VOCAB)
    knobs, seen = Knobs(thinking_budget=8), list[int]()
    guard = TurnGuard(TOKENIZER, knobs, opens_thinking=True)
    for event in runner.generate([7, OPEN], knobs, guard=guard):
        seen += event.tokens
        if len(seen) == 8:
            runner.cancel()
    assert seen == list(range(8))
    assert backend.tokens == [7, OPEN, *seen[:-1]]


@pytest.mark.parametrize("value", ["-1", "0.5", "two"])
def test_a_budget_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(KnobError, match=r"thinking_budget=.*expected .*0 to 1,048,576"):
        parse_settings({"thinking_budget": value})


# ---- A message that ends in its reasoning, and a request for the answer ----------------------------------------------


class Quitting(Looping):
    """Its target ends the message after thinking 0..5."""

    def after(self, token: int) -> int:
        return END if token == 5 else super().after(token)


CLOSED_AT_END = ["thinking was closed: the model ended its message inside it"]


@pytest.mark.parametrize("place", [4, 5])
def test_a_message_that_ends_in_its_reasoning_is_continued(place: int) -> None:
    """Whether its stop token comes first, alone or at the end of a walk."""
    expected = [*range(place + 1, 6), CLOSE, *range(40, 50), END]
    for mode, right in WAYS:
        events = turn(Quitting(right), Knobs(thinking=True, max_tokens=100).replace(mode=mode), prompt=(7, OPEN, place))
        assert ids(events) == expected, (mode, right)
        assert [event.guard.summary for event in events if event.guard] == CLOSED_AT_END
        assert events[-1].stop == "stop token"


def test_that_happens_once_and_not_where_it_is_left() -> None:
    again = Quitting(7)
    again.after = lambda token, plain=again.after: OPEN if token == 40 else plain(token)  # type: ignore[method-assign]
    expected = [*range(1, 6), CLOSE, 40, OPEN, *range(6), END]
    for mode in ("plain", "tree"):
        assert ids(turn(again, Knobs(max_tokens=100).replace(mode=mode), prompt=(7, OPEN, 0))) == expected
        left = turn(Quitting(7), Knobs(end_in_thinking="leave").replace(mode=mode), prompt=(7, OPEN, 0))
        assert ids(left) == [*range(1, 6), END]
        assert not guards(left)
        most = turn(Quitting(7), Knobs(max_tokens=6).replace(mode=mode), prompt=(7, OPEN, 0))
        assert (ids(most), most[-1].stop) == ([*range(1, 6), CLOSE], "max tokens")


def test_an_end_of_thinking_of_several_tokens() -> None:
    """A vocabulary without the tag: the first token of its spelling stands for the stop token, the others follow."""
    spelled = TOKENIZER.encode("</think>", special=False)
    assert len(spelled) > 1
    for mode, right in WAYS:
        for place in (4, 5):
            backend = Quitting(right)
            backend.after = lambda token, plain=backend.after: 40 if token == spelled[-1] else plain(token)  # type: ignore[method-assign]
            guard = TurnGuard(TOKENIZER, Knobs(), opens_thinking=True)
            guard._close = lambda event: Intervention(event, tuple(spelled))  # type: ignore[method-assign]
            runner = Runner(backend, frozenset({END}), 1000, VOCAB)
            events = list(runner.generate([7, OPEN, place], Knobs().replace(mode=mode), guard=guard))
            assert ids(events) == [*range(place + 1, 6), *spelled, *range(40, 50), END], (mode, right, place)
            assert [event.guard.summary for event in events if event.guard] == CLOSED_AT_END
            assert backend.tokens == [7, OPEN, place, *ids(events)[:-1]] == runner._committed


def test_an_answer_that_is_requested_begins_at_once() -> None:
    """The rest is what follows the closed reasoning, however steps are grouped."""
    for mode, right in WAYS:
        for wait in (0, 1, 2, 5):
            backend, knobs = Looping(right), Knobs(max_tokens=200).replace(mode=mode)
            runner = Runner(backend, frozenset({END}), 1000, VOCAB)
            guard, events = TurnGuard(TOKENIZER, knobs, opens_thinking=True), list[Event]()
            for event in runner.generate([7, OPEN], knobs, guard=guard):
                events.append(event)
                if len(events) == wait + 1:
                    guard.answer_now()
            thought = ids(events)[: ids(events).index(CLOSE)]
            assert thought == [n % 12 for n in range(len(thought))]
            assert ids(events)[len(thought) :] == [CLOSE, *range(40, 50), END]
            assert len(thought) == sum(len(event.tokens) for event in events[: wait + 1])
            assert guards(events) == ["thinking was closed: an answer was requested"]
            assert backend.tokens == [7, OPEN, *ids(events)[:-1]]


def test_a_request_in_the_answer_changes_nothing() -> None:
    knobs = Knobs(max_tokens=200)
    guard = TurnGuard(TOKENIZER, knobs, opens_thinking=False)
    guard.answer_now()
    events = list(Runner(Looping(3), frozenset({END}), 1000, VOCAB).generate([CLOSE], knobs, guard=guard))
    assert ids(events) == [*range(40, 50), END]
    assert not guards(events)


# ---- Think tags in an answer -----------------------------------------------------------------------------------------


LOOPS: list[dict[int, int]] = [
    {40: CLOSE, CLOSE: CLOSE},
    {40: CLOSE, CLOSE: 300, 300: CLOSE},
    {40: OPEN, OPEN: 300, 300: CLOSE, CLOSE: 301, 301: OPEN},
]


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_of_think_tags_in_the_answer_is_stopped_soon(loop: dict[int, int]) -> None:
    """Whatever is accepted at a step, at the same token."""
    found = set()
    for mode, right in LONG_WAYS:
        backend, knobs = Looping(right), Knobs(max_tokens=5000).replace(mode=mode)
        backend.after = lambda token: loop.get(token, 302)  # type: ignore[method-assign]
        events = turn(backend, knobs, prompt=(40,), opens=False)
        assert events[-1].stop == "loop"
        assert "think tags among 64 tokens" in guards(events)[0]
        found.add(tuple(ids(events)))
    assert len(found) == 1
    assert len(*found) <= 3 * CHECKED_EVERY + LAG
