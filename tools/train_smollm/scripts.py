"""What the target is made to read while it writes training texts: beginnings of documents, and the turns' frames."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

I32 = npt.NDArray[np.int32]
START, END = 1, 2
"""<|im_start|> and <|im_end|>."""
USER, ANSWER = 0, 1
"""What the target writes by itself after a script: a user's turn, or an answer."""
REPLY, MORE = 0, 1
"""The first two scripts: what stands between a turn and its answer, and between an answer and the next turn."""


@dataclass(frozen=True)
class Scripts:
    """Token rows, padded: `ids` (n, longest), `sizes` (n,), and `kinds` (n,), USER or ANSWER.

    The first two are REPLY and MORE; `order` (m,) lists those that begin a document, each as often as its share says.
    """

    ids: I32
    sizes: I32
    kinds: I32
    order: I32

    @staticmethod
    def of(rows: list[tuple[list[int], int]], order: list[int]) -> Scripts:
        longest = max(len(ids) for ids, _ in rows)
        ids = np.zeros((len(rows), longest), np.int32)
        for row, (one, _) in zip(ids, rows, strict=True):
            row[: len(one)] = one
        sizes = np.array([len(one) for one, _ in rows], np.int32)
        return Scripts(ids, sizes, np.array([kind for _, kind in rows], np.int32), np.array(order, np.int32))

    def save(self, path: Path) -> None:
        np.savez_compressed(path, ids=self.ids, sizes=self.sizes, kinds=self.kinds, order=self.order)

    @staticmethod
    def load(path: Path) -> Scripts:
        with np.load(path) as z:
            return Scripts(*(z[name] for name in ("ids", "sizes", "kinds", "order")))
