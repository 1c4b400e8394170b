"""The conversation's own text as a source of drafts: what is found, and what is gone when the text is truncated."""

from __future__ import annotations

import random

import numpy as np

from dflash_core.drafters.ngram import CAPABILITIES, NgramDrafter
from dflash_core.drafters.ngram_table import LONGEST
from dflash_core.knobs import Knobs
from dflash_core.tree import Candidates
from support.scanned import scanned

KNOBS = Knobs()


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
        found.begin()
        assert proposed(found.propose(1, KNOBS)) == []
