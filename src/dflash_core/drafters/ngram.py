"""The conversation's own text as a drafter: what followed the last tokens the last time they occurred.

No file, no weights, no pass: it runs on the host, with any target on any device. A proposal is one token per depth:
what followed the latest place of the last three, two or one tokens, then what followed those and that one, and so on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dflash_core.drafters.capabilities import Capabilities
from dflash_core.drafters.draft import Draft, DraftTarget
from dflash_core.drafters.ngram_table import HIT_RATES, NgramTable, copied
from dflash_core.knobs import Knobs
from dflash_core.tree import NO_CANDIDATES, Candidates

if TYPE_CHECKING:
    from torch import Tensor

    from dflash_core.models.rows import LayerState

KIND = "ngram"
BLOCK = 32
# A tree temperature softens a distribution over the vocabulary and a width takes more of it; here there is one token.
FOLLOWED = frozenset({"p_min", "chain_seed"})
CAPABILITIES = Capabilities(KIND, BLOCK, knobs=FOLLOWED)


class NgramDrafter:
    """Implements `drafters.base.Drafter`."""

    capabilities = CAPABILITIES

    def __init__(self) -> None:
        # What followed may include the root itself, so the text ends with the root that was proposed after last.
        self._text, self._length = NgramTable(), 0
        self.nbytes: Mapping[str, int] = {}  # little compared with a cache

    def begin(self, states: Sequence[LayerState] = ()) -> None:
        self.cut(0)

    def observe(self, tokens: Sequence[int], hidden: Tensor | None) -> None:
        root = self._text.tokens[self._length :].tolist()
        if root != list(tokens[: len(root)]):
            self.cut(self._length)
            root = []
        self._text.extend(tokens[len(root) :])
        self._length += len(tokens)

    def propose(self, root: int, knobs: Knobs, at: int | None = None) -> Candidates:
        text = self._text
        if at is not None:
            text = NgramTable([*text.tokens[:at].tolist(), root])
        elif text.tokens[self._length :].tolist() != [root]:
            if len(text) > self._length:
                self.cut(self._length)
            text.extend([root])
        found = [one for one, _ in copied(text, HIT_RATES.__getitem__, CAPABILITIES.depths)]
        if not found:
            return NO_CANDIDATES
        tokens = np.array([one.token for one in found], np.int64)
        return Candidates(tokens[:, None], np.log([[HIT_RATES[one.match]] for one in found]))

    def rows(self, begin: int, end: int) -> tuple[Tensor, ...]:
        return ()

    def resume(self, begin: int, tokens: Sequence[int], rows: Iterator[Tensor]) -> None:
        self.observe(tokens, None)

    def cut(self, length: int) -> None:
        self._text.become(self._text.tokens[:length].tolist())
        self._length = length


def open_ngram(path: str, target: DraftTarget) -> Draft:
    """The n-gram drafter of any target; it needs no file."""
    return Draft(target, CAPABILITIES, drafter=lambda kv=None: NgramDrafter())
