"""Who drafts, if anybody: what is found of drafters by what the step before was, and what trying them may cost."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from dflash_core.policy.choosing import FIRST, SHARE, START_SPARE, Chooser, Drafts

BLOCK = 8
Brings = Callable[[str], int]
"""Tokens of a drafter's step, by what the step before was."""


class Stream:
    """Answers of which every plain step brings a token in one unit of time."""

    def __init__(self, drafters: dict[str, tuple[Brings, float]]) -> None:
        self.drafters, self.kinds = drafters, list(drafters)
        self.chooser = Chooser(self.kinds, [BLOCK] * len(drafters))
        self.found: list[Drafts] = [{} for _ in drafters]
        self.tokens, self.time, self.asked = 0, 0.0, list[tuple[str | None, int]]()

    def answer(self, tokens: int) -> None:
        said, before = 0, FIRST
        self.chooser.begin()
        while said < tokens:
            expected = {at: self.chooser.expected(at, drafts, 2.7) for at, drafts in enumerate(self.found)}
            picked = self.chooser.pick(expected, 0.0, max(1.0, self.tokens / self.time if self.time else 1.0))
            took, got = 1.0, 1
            if picked.at is None:
                before = "nobody"
                self.chooser.rested()
            else:
                bring, took = self.drafters[self.kinds[picked.at]]
                got = bring(before)
                before = self.kinds[picked.at]
                self.chooser.drafted(picked.at, got, took, self.found[picked.at], 2.7)
            self.chooser.spent(took, picked)
            self.asked.append((None if picked.at is None else self.kinds[picked.at], got))
            said, self.tokens, self.time = said + got, self.tokens + got, self.time + took


@pytest.mark.parametrize("length", [20, 4000])
@pytest.mark.parametrize("took", [1.1, 1.5, 3.0, 8.0, 40.0])
def test_what_a_drafter_that_never_pays_costs_is_bounded(took: float, length: int) -> None:
    """Its steps bring what a plain one does, in more time: at most the share of the time that is for tries is lost, and
    what its first answers may cost."""
    stream = Stream({"one": (lambda before: 1, took)})
    for _ in range(12_000 // length):
        stream.answer(length)
    # What it was taken to be before anything was found of it is no loss that was expected.
    unforeseen = 4 * took
    assert stream.time - stream.tokens <= SHARE * stream.time + START_SPARE * BLOCK + unforeseen
    late = [kind for kind, _ in stream.asked[-5000:]]
    assert late.count("one") >= 1, "it is tried again"


def test_one_that_nearly_pays_is_not_asked_for_ever() -> None:
    """Its steps vary much: noise is no reason to go on."""
    draws = random.Random(2)
    stream = Stream({"one": (lambda before: draws.choice((1, 1, 1, 5)), 2.3)})
    stream.answer(20_000)
    assert stream.tokens / stream.time > 0.975


def test_what_a_drafter_brings_goes_by_the_step_before() -> None:
    """Behind its own steps it is worth nothing, behind a plain one it pays: then it is asked every other time."""
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


def test_the_beginning_of_an_answer_is_told_apart_from_the_rest() -> None:
    """One is best there and worth nothing behind it, the other is as good everywhere."""
    stream = Stream({"near": (lambda before: 4, 2.0), "far": (lambda before: 9 if before == FIRST else 1, 3.0)})
    for _ in range(100):
        stream.answer(33)
    assert stream.found[1][FIRST].steps > 35
    late = stream.asked[-140:]
    assert late.count(("near", 4)) > 5 * late.count(("far", 1))


def test_time_of_a_plain_step_is_measured_where_drafts_pay() -> None:
    chooser, drafts = Chooser(["one"], [BLOCK]), Drafts()
    chooser.begin()
    plain = 0
    for _ in range(1200):
        picked = chooser.pick({0: chooser.expected(0, drafts, 2.7)}, 0.0, 1.0, sure=plain >= 5)
        if picked.at is None:
            plain += 1
            chooser.rested()
        else:
            chooser.drafted(0, 6, 3.0, drafts, 2.7)
        chooser.spent(1.0 if picked.at is None else 3.0, picked)
    assert plain == 5, "and no longer than it takes to know it"
