"""What a session gives away of a sequence, and takes back: rows of its positions, and what cannot be cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from dflash_core.errors import DFlashError

if TYPE_CHECKING:
    from torch import Tensor

Tokens = npt.NDArray[np.int32]


class SnapshotError(DFlashError):
    """A snapshot that cannot be used here: damaged, cut short, or of another model, version or machine."""


class State(Protocol):
    """What a session cannot be cut back to: recurrent states at `length`, and what rings of a drafter held."""

    @property
    def length(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All of it, in host memory."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What a sequence keeps of its positions begin..end, tensor by tensor, in host memory."""

    begin: int
    end: int
    tensors: tuple[Tensor, ...]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A committed sequence: its tokens, `pages` that cover its positions in order, and `state` after the last."""

    tokens: Tokens
    pages: tuple[Rows, ...]
    state: State

    @property
    def length(self) -> int:
        return len(self.tokens)


class Resumable(Protocol):
    """A session as far as snapshots are concerned."""

    @property
    def length(self) -> int: ...

    def checkpoint(self) -> State:
        """Copy what cannot be cut, as it is after all that is committed."""

    def restore(self, checkpoint: None) -> None:
        """Become an empty sequence."""

    def cut(self, length: int) -> bool:
        """Go back to the first `length` positions; False, and nothing done, where that is not possible."""

    def rows(self, begin: int, end: int) -> tuple[Tensor, ...]:
        """Copies of what is kept of the committed positions begin..end, a drafter's too, in host memory."""

    def make_room(self, spans: Sequence[tuple[int, int]], most: int) -> None:
        """Between turns: `checkpoint` and `rows` of these positions may come next. Memory that is held ready for them
        takes `most` bytes at most."""

    def state_of(self, length: int, tensors: Sequence[Tensor]) -> State:
        """What `checkpoint` gave after `length` positions, of its `tensors`. Raises SnapshotError."""

    def resume(self, snapshot: Snapshot) -> None:
        """Become the sequence of a snapshot. Raises SnapshotError for one of another model or layout: then the
        sequence is empty."""


def check_rows(pages: Sequence[Rows], like: Sequence[Tensor], length: int) -> None:
    """Refuse pages that are not `length` positions of what `like`, rows of no position, is of.

    The dimension of positions is the one that has none in `like`. Raises SnapshotError.
    """
    at = 0
    for page in pages:
        if page.begin != at or not page.begin < page.end <= length:
            raise SnapshotError(f"a page of positions {page.begin}..{page.end} after {at} of {length}")
        at = page.end
        check_tensors(page.tensors, like, page.end - page.begin)
    if at != length:
        raise SnapshotError(f"pages of {at} positions, expected {length}")


def check_tensors(found: Sequence[Tensor], like: Sequence[Tensor], count: int | None = None) -> None:
    """Refuse tensors of another number, type or shape than `like`. A dimension that is 0 there has `count`; any size
    where that is None. Raises SnapshotError."""
    if len(found) != len(like):
        raise SnapshotError(f"{len(found)} tensors, expected {len(like)}")
    for mine, theirs in zip(like, found, strict=True):
        fits = len(mine.shape) == len(theirs.shape) and all(
            a == b or (a == 0 and count in (None, b)) for a, b in zip(mine.shape, theirs.shape, strict=True)
        )
        if mine.dtype != theirs.dtype or not fits:
            expected = f"{mine.dtype} {tuple(mine.shape)}"
            raise SnapshotError(f"a tensor {theirs.dtype} {tuple(theirs.shape)}, expected one like {expected}")
