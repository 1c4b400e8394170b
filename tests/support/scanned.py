"""What `NgramTable.after` finds, as a plain scan of the text."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_core.drafters.ngram_table import LONGEST, Successor

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
