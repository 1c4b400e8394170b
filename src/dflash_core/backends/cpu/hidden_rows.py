"""Hidden states of a sequence's positions, which grow with it."""

from __future__ import annotations

from torch import Tensor

MIN_ROWS = 256  # space at first


class HiddenRows:
    """Rows (positions, width), of the type of `like`."""

    def __init__(self, like: Tensor, width: int) -> None:
        self._rows, self._length = like.new_empty(0, width), 0

    def __len__(self) -> int:
        return self._length

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes

    def append(self, rows: Tensor) -> None:
        """The hidden states of the next positions."""
        length, end = self._length, self._length + len(rows)
        if end > len(self._rows):
            grown = self._rows.new_empty(max(end, 2 * len(self._rows), MIN_ROWS), self._rows.shape[1])
            grown[:length] = self._rows[:length]
            self._rows = grown
        self._rows[length:end] = rows
        self._length = end

    def cut(self, length: int) -> None:
        """Truncate to the first `length` positions, where there are more."""
        self._length = min(self._length, length)

    def of(self, begin: int, end: int) -> Tensor:
        """Those of the positions begin..end, not a copy."""
        return self._rows[begin:end]
