"""Digests of a device sequence's logits, keys and values, and states; and walks through trees to compare them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from dflash_core.backends.base import Logits
from dflash_core.backends.cuda.layers.attention import AttentionMemory
from dflash_core.backends.cuda.session import CudaSession

Shape = Callable[[int, np.random.Generator], list[int]]  # node count -> parents of a tree, parents before children


def digest(*arrays: Logits | Tensor) -> str:
    """A digest of all bits, in order."""
    found = hashlib.sha256()
    for array in arrays:
        values = array.contiguous().cpu().view(torch.uint8).numpy() if isinstance(array, Tensor) else array
        found.update(np.ascontiguousarray(values).tobytes())
    return found.hexdigest()[:16]


def held(session: CudaSession, begin: int = 0) -> str:
    """Keys and values from position `begin` on, and the states of recurrent layers, with nothing pending."""
    kept = session.checkpoint().saved
    caches = [memory.kv for memory in session.memory.mixers if isinstance(memory, AttentionMemory)]
    rows = [tensor[:, :, begin : session.length] for cache in caches for tensor in (cache.k, cache.v)]
    with session.device.stream():
        return digest(*(tensor for one in kept for tensor in one or ()), *rows)


@dataclass
class Plain:
    """Decoding `tokens` one by one after `prompt`: for each, digests of the logits after it and of the session then."""

    prompt: Sequence[int]
    tokens: Sequence[int]
    logits: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)

    @staticmethod
    def of(session: CudaSession, prompt: Sequence[int], tokens: Sequence[int], every: int = 1) -> Plain:
        """`every`: the session's digest is taken after each `every` tokens, and after the last."""
        plain = Plain(prompt, tokens)
        session.restore(None)
        session.prefill(prompt)
        for place, token in enumerate(tokens):
            plain.logits.append(digest(session.verify([token], [-1])[0]))
            session.commit([0])
            last = place + 1 == len(tokens)
            looked_at = last or place % every == 0
            plain.held.append(held(session, 0 if last else session.length - 1) if looked_at else "")
        return plain


def planted(
    tokens: Sequence[int], parents: Sequence[int], vocab: int, rng: np.random.Generator
) -> tuple[list[int], list[int]]:
    """A tree whose root is the first of `tokens`: its tokens, and a path through it along which they are `tokens`.

    The path ends at a random node that is no deeper than there are tokens; all other tokens are random.
    """
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    node = int(rng.choice([at for at, depth in enumerate(depths) if depth < len(tokens)]))
    path = [node]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    drawn = rng.integers(0, vocab, len(parents)).tolist()
    for at, token in zip(path, tokens):
        drawn[at] = token
    return drawn, path


def check_walk(
    session: CudaSession,
    plain: Plain,
    shape: Shape,
    budgets: Sequence[int],
    vocab: int,
    rng: np.random.Generator,
) -> None:
    """Follow plain decoding's tokens by random paths through trees of any of `budgets` nodes below the root: same bits.

    The session's digest is compared after half of the steps that end where it is known; after the others the commit is
    left to the next pass.
    """
    session.restore(None)
    session.prefill(plain.prompt)
    place = 0
    while place < len(plain.tokens):
        budget = int(rng.choice(budgets))
        parents = shape(budget + 1, rng)
        tokens, path = planted(plain.tokens[place:], parents, vocab, rng)
        logits = session.verify(tokens, parents)
        where = f"after {session.length}, {shape.__name__} of {budget}, path {path}"
        assert [digest(logits[node]) for node in path] == plain.logits[place : place + len(path)], where
        session.commit(path)
        place += len(path)
        last = place == len(plain.tokens)
        if plain.held[place - 1] and (last or rng.random() < 0.5):
            begin = 0 if last else session.length - 1
            assert held(session, begin) == plain.held[place - 1], f"states {where}"
