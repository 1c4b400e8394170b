"""Which drafter drafts, if any: expectations by the result of the previous step, and what trying drafters may cost."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from dflash_core.policy.base import LATELY
from dflash_core.policy.choosing import ALL, FIRST, SHARE, START_SPARE, Chooser, Drafts, Expected, Found, tried_again

Brings = Callable[[str], int]
"""Tokens of a drafter's step, by what the previous step was."""


class Stream:
    """Answers in which every plain step gives one token in one unit of time."""

    def __init__(self, drafters: dict[str, tuple[Brings, float]]) -> None:
        self.drafters, self.kinds = drafters, list(drafters)
        self.chooser = Chooser(self.kinds)
        self.found: list[Drafts] = [{} for _ in drafters]
        self.tokens, self.time, self.asked = 0, 0.0, list[tuple[str | None, int]]()

    def answer(self, tokens: int) -> None:
        end = self.tokens + tokens
        self.begin()
        while self.tokens < end:
            self.step()

    def begin(self) -> None:
        self.before = FIRST
        self.chooser.begin()

    def step(self, certain: Sequence[float] = ()) -> None:
        """`certain`: the target's probability of the tokens of such a step."""
        expected = {at: self.chooser.expected(at, drafts, 2.7) for at, drafts in enumerate(self.found)}
        picked = self.chooser.pick(expected, 0.0, max(1.0, self.tokens / self.time if self.time else 1.0))
        took, got = 1.0, 1
        self.chooser.certain(certain)
        if picked.at is None:
            self.before = "nobody"
            self.chooser.undrafted()
        else:
            bring, took = self.drafters[self.kinds[picked.at]]
            got = bring(self.before)
            self.before = self.kinds[picked.at]
            self.chooser.drafted(picked.at, got, took, self.found[picked.at])
        self.chooser.spent(took, picked, got)
        self.asked.append((None if picked.at is None else self.kinds[picked.at], got))
        self.tokens, self.time = self.tokens + got, self.time + took


@pytest.mark.parametrize("length", [20, 4000])
@pytest.mark.parametrize("took", [1.1, 1.5, 3.0, 8.0, 40.0])
def test_what_a_drafter_that_never_pays_costs_is_bounded(took: float, length: int) -> None:
    """Its steps give as many tokens as plain ones but take longer: what is lost is at most the share of time for tries,
    plus what its first answers may cost."""
    stream = Stream({"one": (lambda before: 1, took)})
    for _ in range(12_000 // length):
        stream.answer(length)
    # What was assumed before any measurement does not count as an expected loss.
    unforeseen = 4 * took
    assert stream.time - stream.tokens <= SHARE * stream.time + START_SPARE + unforeseen
    late = [kind for kind, _ in stream.asked[-5000:]]
    assert late.count("one") >= 1, "it is tried again"


def test_one_that_nearly_pays_is_not_asked_for_ever() -> None:
    """Its steps vary widely: noise is no reason to keep using it."""
    draws = random.Random(2)
    stream = Stream({"one": (lambda before: draws.choice((1, 1, 1, 5)), 2.3)})
    stream.answer(20_000)
    assert stream.tokens / stream.time > 0.975


def test_what_a_drafter_brings_goes_by_the_step_before() -> None:
    """It does not pay after its own steps, and pays after a plain one: then it drafts every other step."""
    stream = Stream({"one": (lambda before: 1 if before == "one" else 6, 3.0)})
    stream.answer(6000)
    late = [kind for kind, _ in stream.asked[-400:]]
    assert late.count("one") == pytest.approx(200, abs=25)
    assert stream.tokens / stream.time > 1.6


def test_one_that_becomes_better_is_found_again() -> None:
    better = False
    stream = Stream({"one": (lambda before: 6 if better else 1, 3.0)})
    stream.answer(3000)
    assert [kind for kind, _ in stream.asked[-100:]].count("one") < 5
    better = True
    stream.answer(6000)
    assert [kind for kind, _ in stream.asked[-100:]].count("one") > 95


def test_a_drafter_alone_is_not_given_up_after_a_few_steps_that_followed_a_plain_one() -> None:
    """It brings four tokens in two plain steps; three drafts in a row that followed a plain step brought one."""
    known = {ALL: Found(100.0, 60.0, 30.0), "nobody 1": Found(3.0, 6.0, 3.0)}
    chooser = Chooser(["one"])
    chooser.undrafted()
    chooser.undrafted()
    it = chooser.expected(0, known, 2.0)
    assert it.tokens > it.plain


def test_the_beginning_of_an_answer_is_told_apart_from_the_rest() -> None:
    """One is best there and does not pay afterwards, the other is equally good everywhere."""
    stream = Stream({"near": (lambda before: 4, 2.0), "far": (lambda before: 9 if before == FIRST else 1, 3.0)})
    for _ in range(100):
        stream.answer(33)
    assert stream.found[1][FIRST].steps > 35
    late = stream.asked[-140:]
    assert late.count(("near", 4)) > 5 * late.count(("far", 1))


def test_time_of_a_plain_step_is_measured_where_drafts_pay() -> None:
    chooser, drafts = Chooser(["one"]), Drafts()
    chooser.begin()
    plain = 0
    for _ in range(1200):
        picked = chooser.pick({0: chooser.expected(0, drafts, 2.7)}, 0.0, 1.0, sure=plain >= 5)
        if picked.at is None:
            plain += 1
            chooser.undrafted()
        else:
            chooser.drafted(0, 6, 3.0, drafts)
        chooser.spent(*(1.0, picked, 1) if picked.at is None else (3.0, picked, 6))
    assert plain == 5, "and no longer than it takes to know it"


def test_drafts_are_asked_for_where_the_target_is_certain() -> None:
    """Drafts bring much there and nothing elsewhere, and a step without drafts shows which of the two it is."""
    sure = False
    stream = Stream({"one": (lambda before: 8 if sure else 1, 3.0)})
    stream.begin()
    tokens = time = 0.0
    for spell in range(160):
        sure, end = bool(spell % 2), stream.tokens + 40
        if spell == 100:
            tokens, time = stream.tokens, stream.time
        while stream.tokens < end:
            stream.step([0.999 if sure else 0.3] * LATELY)
    # 1.38; 1.20 if the target's certainty is unknown; plain decoding is 1.
    assert (stream.tokens - tokens) / (stream.time - time) > 1.29


def test_each_part_of_a_text_has_time_of_its_own_for_tries() -> None:
    """Time that answers have left for tries is not available to thinking, about which nothing is known."""
    chooser = Chooser(["one"])
    never = {0: Expected(1.0, 2.0)}  # a plain step is lost by each

    def tries(part: str, steps: int) -> int:
        count = 0
        for _ in range(steps):
            picked = chooser.pick(never, 0.0, 1.0, part=part)
            count += picked.tries
            chooser.spent(1.0 if picked.at is None else 2.0, picked, 1)
        return count

    first = tries("thinking", 20)
    assert first == int(START_SPARE)
    assert tries("thinking", 20) == 0, "all is used up"
    set_apart = tries("answer", 2000)
    assert set_apart == pytest.approx(START_SPARE + 2000 * SHARE, rel=0.1)
    assert tries("thinking", 20) <= 1, "what answers set apart is theirs"


def test_what_is_not_known_of_the_newest_tokens_is_not_taken_from_older_ones() -> None:
    """As after the user has set a mode for a while."""
    chooser, found = Chooser(["one"]), Drafts()
    chooser.begin()
    chooser.certain([0.9] * LATELY)
    chooser.undrafted()
    chooser.certain([])
    chooser.undrafted()
    chooser.drafted(0, 4, 3.0, found)
    assert set(found) == {ALL, "nobody 1"}


def test_a_drafter_that_is_not_known_says_nothing_of_the_answer() -> None:
    """One drafter gave four tokens a step until now. If a new drafter gives fewer tokens than are assumed of new ones,
    that does not lower the expectation of this answer; if a known one does, it does."""
    chooser, old = Chooser(["old", "new"]), Drafts()
    for _ in range(50):
        chooser.begin()
        chooser.drafted(0, 4, 2.0, old)

    def after_one_of(other: Drafts) -> float:
        chooser.begin()
        chooser.drafted(1, 1, 2.0, other)
        return chooser.expected(0, old, 2.0).tokens

    known = Drafts()
    for _ in range(50):
        chooser.begin()
        chooser.drafted(1, 4, 2.0, known)
    assert after_one_of(Drafts()) == pytest.approx(4, abs=0.1)
    assert after_one_of(known) < 3.7


def test_a_try_that_costs_nothing_names_no_loss() -> None:
    assert tried_again(0.3) == "drafts are tried again; 0.3 plain steps may be lost"
    assert "lost" not in tried_again(0.04)
