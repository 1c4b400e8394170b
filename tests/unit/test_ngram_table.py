"""Runs found by hash, compared with those found exactly, while the text grows and is truncated."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_core.drafters.ngram_table import LONGEST, RUNS, NgramTable
from support.scanned import scanned

TOKENS = st.lists(st.integers(0, 5), max_size=60)


def test_what_is_found_is_what_a_scan_finds() -> None:
    """In short texts runs rarely share a slot; where none do, nothing differs."""
    rng = np.random.default_rng(5)
    same = 0
    for vocab in (3, 40, 250_000):
        tokens = rng.integers(0, vocab, 700).tolist()
        tokens += tokens[100:160]
        table = NgramTable(tokens)
        for _ in range(300):
            at = int(rng.integers(1, len(tokens) + 1))
            tail = tuple(tokens[max(0, at - int(rng.integers(1, LONGEST + 1))) : at])
            expected, found = scanned(tokens, tail), table.after(tail)
            if found != expected:  # displaced: another run of the same hash was later
                assert vocab == 250_000
                assert found is None or expected is None or found.match <= expected.match
            same += found == expected
        assert table.tail() == tuple(tokens[-LONGEST:])
    assert same > 890


@settings(max_examples=150)
@given(text=TOKENS, tail=st.lists(st.integers(0, 5), min_size=1, max_size=LONGEST), cut=st.integers(0, 60), more=TOKENS)
def test_what_is_found_followed_the_same_run(text: list[int], tail: list[int], cut: int, more: list[int]) -> None:
    table = NgramTable()
    for begin in range(0, len(text), 7):
        table.extend(text[begin : begin + 7])
    table.become([*text[:cut], *more])
    fresh = NgramTable([*text[:cut], *more])
    assert np.array_equal(table.tokens, fresh.tokens)
    assert np.array_equal(table.last, fresh.last)
    found = table.after(tail)
    if found is not None:
        ids = table.tokens.tolist()
        longest = max(n for n in range(1, RUNS + 1) if ids[-1:] or n)
        run = tail[-min(found.match + 1, longest) :]
        assert any(
            ids[at : at + len(run)] == run and ids[at + len(run)] == found.token for at in range(len(ids) - len(run))
        )


def test_nothing_is_found_where_there_is_nothing() -> None:
    assert NgramTable().after((1, 2, 3)) is None
    assert NgramTable([7]).after((7,)) is None, "nothing has followed it"
    assert NgramTable([7, 8]).after(()) is None
    assert NgramTable([7, 8]).after((7,)) == (8, 0)


def test_places_that_were_found_are_those_of_the_text_that_is_there() -> None:
    """They are cached for the next call; another text may have the same length."""
    table = NgramTable([5, 6, 7, 8])
    table.become([9, 6, 7, 8])
    for begin in (0, 2):
        at, ends = table.places(begin)
        fresh = NgramTable([9, 6, 7, 8]).places(begin)
        assert np.array_equal(at, fresh[0])
        assert np.array_equal(ends, fresh[1])
