"""A constraint that holds for the answer only, not for the reasoning before it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dflash_core.constraints.base import Constraint, Mask


class AfterThinking:
    """Implements `base.Constraint`: `inner` begins after the first closing tag, also in the middle of a step.

    `opened`: the prompt ends inside the reasoning. Otherwise the answer may begin with the opening tag.
    """

    def __init__(self, inner: Constraint, tags: tuple[int, int], *, opened: bool) -> None:
        """`tags`: the ids of the opening and the closing tag."""
        self._inner, self._open, self._close = inner, *tags
        self._opened = opened
        self._tokens: list[int] = []
        self._begin: int | None = None  # how many tokens come before the answer; None while that is not known

    def add(self, tokens: Sequence[int]) -> None:
        before: int | None = len(self._tokens)
        self._tokens += tokens
        if self._begin is None:
            self._begin = before = self._begun(self._tokens)
        if before is not None:
            self._inner.add(self._tokens[before:])

    def drop(self) -> None:
        self._tokens.pop()
        if self._begin is not None and self._begin <= len(self._tokens):
            self._inner.drop()
        self._begin = self._begun(self._tokens)

    def allowed(self, path: Sequence[int]) -> Mask | None:
        inner = self._path(path)
        if inner is None:
            return None
        mask = self._inner.allowed(inner)
        if mask is not None and self._may_open(path):
            mask = mask.copy()
            mask[self._open // 32] |= np.uint32(1) << np.uint32(self._open % 32)
        return mask

    def admits(self, path: Sequence[int], token: int) -> bool:
        inner = self._path(path)
        return inner is None or (token == self._open and self._may_open(path)) or self._inner.admits(inner, token)

    def forced(self) -> Sequence[int]:
        return self._inner.forced() if self._begin is not None else ()

    def _may_open(self, path: Sequence[int]) -> bool:
        return not (self._opened or self._tokens or path)

    def _path(self, path: Sequence[int]) -> Sequence[int] | None:
        """The part of `path` that `inner` knows; None inside the reasoning."""
        if self._begin is not None:
            return path
        if self._may_open(path):
            return ()
        if self._tokens:
            return path[path.index(self._close) + 1 :] if self._close in path else None
        begin = self._begun(path)
        return None if begin is None else path[begin:]

    def _begun(self, tokens: Sequence[int]) -> int | None:
        """The number of tokens before the answer; None inside the reasoning, or before the first token shows whether
        there is any."""
        if self._opened or (tokens and tokens[0] == self._open):
            return tokens.index(self._close) + 1 if self._close in tokens else None
        return 0 if tokens else None
