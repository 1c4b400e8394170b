"""Checks token ids and trees from outside before they reach a model."""

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


def check_tree(tokens: Sequence[int], parents: Sequence[int], vocab_size: int) -> None:
    """Raises ContextError for what is no tree: each node has a token of the vocabulary, and as its parent a node before
    it or -1."""
    if len(tokens) == 0 or len(tokens) != len(parents):
        found = f"found {len(tokens)} tokens and {len(parents)} parents"
        raise ContextError(f"{found}, expected at least one token, and a parent for each")
    check_ids(tokens, vocab_size)
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            raise ContextError(f"node {node} has the parent {parent}, expected a node before it or -1")


def check_path(path: Sequence[int], parents: Sequence[int]) -> None:
    """Raises ContextError for nodes that do not follow each other, from the committed state on, in the last pass."""
    last = -1
    for node in path:
        if not 0 <= node < len(parents) or parents[node] != last:
            found = f"found node {node} of {len(parents)} after {'the committed state' if last < 0 else f'node {last}'}"
            raise ContextError(f"{found}, expected a path of the tree of the last verify, which is committed once")
        last = node
