"""The conversation's own text as a source of drafts: what is found, and what is gone when the text is truncated."""

from __future__ import annotations

import random
from collections.abc import Sequence

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from dflash_core.drafters.ngram import CAPABILITIES, NgramDrafter
from dflash_core.drafters.successors import LONGEST, Successor, Successors
from dflash_core.knobs import Knobs
from dflash_core.tree import Candidates

KNOBS = Knobs()
MATCHES = (1, 2, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5)


def scanned(text: Sequence[int], tail: Sequence[int]) -> Successor | None:
    """The rule as a plain scan: the latest place of the last three tokens, else of the last two, else of one."""
    for run in (3, 2, 1):
        if len(tail) < run:
            continue
        for place in range(len(text) - 2, run - 2, -1):
            if list(text[place - run + 1 : place + 1]) == list(tail[-run:]):
                match = run
                while match < min(LONGEST, len(tail), place + 1) and text[place - match] == tail[-1 - match]:
                    match += 1
                return Successor(text[place + 1], MATCHES[match - 1] - 1)
    return None


tokens = st.lists(st.integers(0, 3), max_size=40)


@given(tokens, tokens)
def test_a_successor_always_followed_its_run(text: list[int], behind: list[int]) -> None:
    """At the end of the text and after any path that it does not hold; tokens near 2**31 too."""
    for scale in (1, 715_827_882):
        big, tail = [scale * token for token in text], tuple(scale * token for token in (text + behind)[-LONGEST:])
        assert Successors(big).after(tail) == scanned(big, tail)


@given(tokens, tokens, st.integers(0, 40), st.integers(0, 40))
def test_a_text_that_is_cut_and_edited_is_that_text(text: list[int], other: list[int], cut: int, within: int) -> None:
    found, fresh = Successors(text), Successors([*text[:cut], *other])
    found.become([*text[:cut], *other])
    assert found.tokens == fresh.tokens
    assert found._last == fresh._last
    assert found._before == fresh._before
    tail = fresh.tail()
    assert found.after(tail, within) == scanned(fresh.tokens[:within], tail)


def test_texts_of_no_and_of_one_token() -> None:
    assert Successors().after(()) is None
    assert Successors().after((1,)) is None
    assert Successors([1]).after((1,)) is None
    assert Successors([1, 1]).after((1,)) == Successor(1, 0)


def drafter(ids: list[int]) -> NgramDrafter:
    found = NgramDrafter()
    found.observe(ids, None)
    return found


def proposed(candidates: Candidates) -> list[int]:
    assert candidates.tokens.shape == candidates.log_probs.shape
    assert candidates.tokens.shape[1] == 1
    return candidates.tokens[:, 0].tolist()  # type: ignore[no-any-return]


def test_it_copies_what_followed_the_last_time() -> None:
    assert proposed(drafter([1, 2, 3, 4, 5, 9, 1, 2]).propose(3, KNOBS))[:6] == [4, 5, 9, 1, 2, 3]
    assert proposed(drafter([1, 2, 7, 1, 2, 8, 1]).propose(2, KNOBS))[:3] == [8, 1, 2], "the latest of equal runs"
    assert proposed(drafter([5, 1, 2, 7, 6, 1, 2, 8, 5, 1]).propose(2, KNOBS))[0] == 7, "the longest run"
    assert proposed(drafter([4, 4]).propose(4, KNOBS))[0] == 4, "a run reaches up to the root itself"


def test_it_has_nothing_to_say_where_nothing_matches() -> None:
    for ids, root in (([], 1), ([1], 2), ([1, 2, 3], 9)):
        assert proposed(drafter(ids).propose(root, KNOBS)) == []


def test_longer_matches_are_surer_and_go_further() -> None:
    text = list(range(60))
    short, long = (drafter([*text, *text[:n]]).propose(n, KNOBS) for n in (1, 12))
    assert short.log_probs[0, 0] < long.log_probs[0, 0] < 0
    assert (np.diff(short.log_probs[:, 0]) >= 0).all(), "a copied token lengthens the match of the next one"
    assert len(short.tokens) < len(long.tokens) <= CAPABILITIES.depths


def test_it_proposes_as_it_did_however_it_was_rewound() -> None:
    """Random texts of few tokens, committed in pieces, truncated and continued, as when conversations are edited."""
    choose = random.Random(3)
    for _ in range(40):
        ids: list[int] = []
        found = NgramDrafter()
        for _ in range(25):
            part = [choose.randrange(4) for _ in range(choose.randrange(1, 9))]
            found.observe(part, None)
            ids += part
            if choose.random() < 0.3:
                length = choose.randrange(len(ids) + 1)
                found.cut(length)
                del ids[length:]
            root, at = choose.randrange(4), choose.randrange(len(ids) + 1)
            for fewer in (None, at):
                text = [*ids[:fewer], root]
                offered = proposed(found.propose(root, KNOBS, fewer))
                first = scanned(text, text[-LONGEST:])
                assert offered[:1] == ([first.token] if first else []), "as it was then"
                assert offered == proposed(drafter(ids[:fewer]).propose(root, KNOBS))
            assert found._text.tokens == ids, "proposing changes nothing"
        found.begin()
        assert proposed(found.propose(1, KNOBS)) == []
