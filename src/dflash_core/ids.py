"""Checks token ids from outside before they reach a model."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from dflash_core.clean import one_line
from dflash_core.errors import ContextError


def check_ids(ids: Sequence[int], vocab_size: int) -> list[int]:
    """The ids as plain ints. Raises ContextError where there are none, or one is no id of the vocabulary."""
    try:
        plain = [operator.index(token) for token in ids]
    except TypeError:
        found = one_line(repr(ids), 40)
        raise ContextError(f"found {found} as a prompt, expected token ids; tokenizer.encode makes them") from None
    if not plain:
        raise ContextError("the prompt is empty; expected at least one token")
    wrong = next((token for token in plain if not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise ContextError(f"token {wrong} is outside the vocabulary of {vocab_size:,}; check the tokenizer")
    return plain
