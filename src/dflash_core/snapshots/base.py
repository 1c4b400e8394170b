"""The state of a sequence that a session can save and restore: rows by position, and the state that cannot be
truncated."""

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
    """A snapshot that cannot be used here: damaged, truncated, or of another model, version or machine."""


class State(Protocol):
    """The state at `length` that truncating cannot restore: recurrent states, and a drafter's ring buffers. `tensors`
    are in host memory."""

    @property
    def length(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def tensors(self) -> tuple[Tensor, ...]: ...


@dataclass(frozen=True, slots=True)
class SavedState:
    """Implements `State`."""

    length: int
    tensors: tuple[Tensor, ...]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)


@dataclass(frozen=True, slots=True)
class Rows:
    """The state of the positions begin..end of a sequence, tensor by tensor, in host memory."""

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
    """The part of a session that snapshots use."""

    @property
    def length(self) -> int: ...

    def checkpoint(self) -> State:
        """Copy the state that cannot be truncated, after all committed positions."""

    def restore(self, checkpoint: State | None) -> None:
        """Return to a checkpoint at or before the committed length, or to the empty sequence."""

    def cut(self, length: int) -> bool:
        """Truncate to the first `length` positions (0 < length <= committed); False, without any change, if some of the
        state cannot be cut, such as a recurrent state."""

    def rows(self, begin: int, end: int) -> tuple[Tensor, ...]:
        """Copies of the state of the committed positions begin..end, including a drafter's, in host memory."""

    def reserve_host_memory(self, spans: Sequence[tuple[int, int]], most: int) -> None:
        """Called between turns: `checkpoint` and `rows` of these positions may come next. May reserve up to `most`
        bytes for them."""

    def state_of(self, length: int, tensors: Sequence[Tensor]) -> State:
        """The result of `checkpoint` after `length` positions, built from its `tensors`. Raises SnapshotError."""

    def resume(self, snapshot: Snapshot) -> None:
        """Load the sequence of a snapshot. Raises SnapshotError for one of another model or layout: then the
        sequence is empty."""


def check_rows(pages: Sequence[Rows], like: Sequence[Tensor], length: int) -> None:
    """Refuse pages that are not `length` positions with the layout of `like`, where the dimension of positions has
    none. Raises SnapshotError."""
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


def common(a: Tokens, b: Tokens) -> int:
    """The length of the common prefix of two sequences."""
    count = min(len(a), len(b))
    differ = np.flatnonzero(a[:count] != b[:count])
    return int(differ[0]) if len(differ) else count
