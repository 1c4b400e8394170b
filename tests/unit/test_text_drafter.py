"""The conversation's own text as a drafter: what it copies, and what it forgets when the text is cut."""

from __future__ import annotations

import random

import numpy as np

from dflash_core.drafters.text import BLOCK, LEAST, LOOKED_AT, MOST, TextDrafter
from dflash_core.knobs import Knobs
from dflash_core.tree import Candidates

KNOBS = Knobs()


def drafter(ids: list[int]) -> TextDrafter:
    found = TextDrafter()
    found.observe(ids, None)
    return found


def proposed(candidates: Candidates) -> list[int]:
    assert candidates.tokens.shape == candidates.log_probs.shape
    assert candidates.tokens.shape[1] == 1
    return candidates.tokens[:, 0].tolist()  # type: ignore[no-any-return]


def scanned(ids: list[int], root: int) -> list[int]:
    """The rule in words, by scanning all of the text: the longest match, the latest of equals."""
    text = [*ids, root]
    best, longest = -1, 0
    seen = 0
    for place in range(len(ids) - 1, 0, -1):
        if text[place - 1 : place + 1] != text[-2:]:
            continue
        seen += 1
        if seen > LOOKED_AT:
            break
        match = 0
        while match < min(MOST, place + 1) and text[place - match] == text[len(text) - 1 - match]:
            match += 1
        if match > longest:
            best, longest = place, match
    return text[best + 1 : best + BLOCK] if best >= 0 and longest >= LEAST else []


def test_it_copies_what_followed_the_last_time() -> None:
    assert proposed(drafter([1, 2, 3, 4, 5, 9, 1, 2]).propose(3, KNOBS)) == [4, 5, 9, 1, 2, 3]
    assert proposed(drafter([1, 2, 7, 1, 2, 8, 1]).propose(2, KNOBS)) == [8, 1, 2], "the latest of equal matches"
    assert proposed(drafter([5, 1, 2, 7, 6, 1, 2, 8, 5, 1]).propose(2, KNOBS))[0] == 7, "the longest match"
    assert proposed(drafter([4, 4]).propose(4, KNOBS)) == [4], "a run reaches up to the root itself"


def test_it_has_nothing_to_say_where_nothing_matches() -> None:
    for ids, root in (([], 1), ([1], 2), ([1], 1), ([1, 2, 3], 9), ([9, 1, 2, 3], 2)):
        assert proposed(drafter(ids).propose(root, KNOBS)) == []


def test_longer_matches_are_surer() -> None:
    text = list(range(20))
    short, long = (drafter([*text, *text[:n]]).propose(n, KNOBS) for n in (1, 12))
    assert short.log_probs[0, 0] < long.log_probs[0, 0] < 0
    assert (np.diff(short.log_probs[:, 0]) >= 0).all(), "a copied token lengthens the match of the next one"


def test_it_equals_a_scan_of_the_whole_text_however_it_was_rewound() -> None:
    """Random texts of few tokens, committed in pieces, cut back and gone on with, as conversations are edited."""
    choose = random.Random(3)
    for _ in range(60):
        ids: list[int] = []
        found, points = TextDrafter(), [(0, TextDrafter().checkpoint())]
        for _ in range(25):
            part = [choose.randrange(4) for _ in range(choose.randrange(1, 9))]
            found.observe(part, None)
            ids += part
            if choose.random() < 0.4:
                points.append((len(ids), found.checkpoint()))
            if choose.random() < 0.3:
                length, point = points[choose.randrange(len(points))]
                found.restore(point)
                del ids[length:]
                points = [one for one in points if one[0] <= length]
            root = choose.randrange(4)
            assert proposed(found.propose(root, KNOBS)) == scanned(ids, root)
            at = choose.randrange(len(ids) + 1)
            assert proposed(found.propose(root, KNOBS, at)) == scanned(ids[:at], root), "as it was then"
        found.begin()
        assert proposed(found.propose(1, KNOBS)) == []
        assert found._places == {}
