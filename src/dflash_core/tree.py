"""DDTree: build a best-first tree from per-depth draft distributions, describe it for verification, walk it.

numpy only. A chain is a tree of width one and plain decoding is a tree of no nodes, so there is one code path.
The construction is that of DDTree (Ringel and Romano, 2026) with the spine put in first; sizes, order and the
p_min rule are this project's own: docs/tree.md.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dflash_core.errors import ContextError

_GROUP = 16  # of values, whose maxima bound the k-th largest


Given = Callable[[int, int], npt.NDArray[np.float64]]
"""Log-probabilities of the candidates of a depth (0 is the first) below a node with the token `parent`: (candidates,),
in their order, normalised over the whole vocabulary."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The drafter's choices per depth: `tokens[d, r]` with log-probability `log_probs[d, r]`, best first.

    Both have shape (depths, width); log-probabilities are normalised over the whole vocabulary, as marginals
    of each depth. `given`: the scores given the parent token, if the drafter has them; then each node has an order of
    its own of the candidates and uses the best `ranks`.
    """

    tokens: npt.NDArray[np.int64]
    log_probs: npt.NDArray[np.float64]
    given: Given | None = None
    ranks: int | None = None

    def below(self, depth: int, parent: int) -> tuple[list[int], list[float]]:
        """The candidates of `depth` for a node with the token `parent`, best first, ties to the lower id."""
        tokens: list[int] = self.tokens[depth].tolist()
        if self.given is None:
            log_probs: list[float] = self.log_probs[depth].tolist()
            return tokens[: self.ranks], log_probs[: self.ranks]
        scores: list[float] = self.given(depth, parent).tolist()
        order = sorted((-one, token) for one, token in zip(scores, tokens) if one > -math.inf)[: self.ranks]
        return [token for _, token in order], [-one for one, _ in order]

    def cut(self, depths: int, width: int | None = None) -> Candidates:
        """The first depths only, and the best `width` candidates of each node."""
        if self.given is None:
            return Candidates(self.tokens[:depths, :width], self.log_probs[:depths, :width], ranks=self.ranks)
        ranks = self.ranks if width is None else min(width, self.ranks or width)
        return Candidates(self.tokens[:depths], self.log_probs[:depths], self.given, ranks)


def deepest_draft(left: int) -> int:
    """How deep drafts may go where an answer may have `left` more tokens: the token after the deepest node is drawn, so
    the last possible one is never drafted."""
    return max(0, left - 1)


NO_CANDIDATES = Candidates(np.zeros((0, 1), np.int64), np.zeros((0, 1)))
"""No candidates at any depth."""


@dataclass(frozen=True, slots=True)
class Tree:
    """Nodes in topological order, node 0 the root (depth 0, parent -1). All lists have one entry per node, except
    `values`, which only trees by learned value have, and `copied`, the nodes that came from the text."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    depths: tuple[int, ...]
    log_probs: tuple[float, ...]
    path_log_probs: tuple[float, ...]
    values: tuple[float, ...] = ()
    copied: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Walk:
    """The accepted nodes, the root first, and the token drawn after the last of them."""

    path: tuple[int, ...]
    next_token: int


def candidates(logits: npt.NDArray[np.float32], width: int, temperature: float = 1.0) -> Candidates:
    """The `width` best tokens of each row of draft `logits` (depths, vocab), ties to the lower id."""
    scaled = logits.astype(np.float64) / temperature
    scaled -= scaled.max(axis=-1, keepdims=True)
    log_norm = np.log(np.exp(scaled).sum(axis=-1, keepdims=True))
    width = min(width, logits.shape[-1])
    tokens = np.stack([largest(row, width) for row in scaled]) if len(scaled) else np.zeros((0, width), np.int64)
    return Candidates(tokens.astype(np.int64), np.take_along_axis(scaled, tokens, axis=-1) - log_norm)


def largest(values: npt.NDArray[np.floating], k: int) -> npt.NDArray[np.intp]:
    """Indices of the k largest entries of `values` (1-D), largest first, ties to the lower index."""
    if k < len(values):
        # argpartition breaks ties at the border arbitrarily; take every entry that ties with the k-th.
        border = _kth(values, k)
        candidates = np.flatnonzero(values >= border)
        if len(candidates) > 2 * k:  # sorting them all would take long where a whole row is equal
            above = np.flatnonzero(values > border)
            candidates = np.concatenate((above, np.flatnonzero(values == border)[: k - len(above)]))
    else:
        candidates = np.arange(len(values))
    order = np.argsort(-values[candidates], kind="stable")
    return candidates[order[:k]]


def _kth(values: npt.NDArray[np.floating], k: int) -> np.floating:
    """The k-th largest of at least k values."""
    groups = len(values) // _GROUP
    if groups > 4 * k:
        # The k-th largest of the groups' own maxima is not above the k-th of all, so few values are left to partition.
        maxima = values[: groups * _GROUP].reshape(_GROUP, groups).max(axis=0)
        bound: np.floating = np.partition(maxima, groups - k)[groups - k]
        values = values[values > bound]
        if len(values) < k:
            return bound
    found: np.floating = np.partition(values, len(values) - k)[len(values) - k]
    return found


def build(
    root: int,
    drafts: Candidates,
    budget: int,
    *,
    p_min: float = 0.0,
    chain_seed: bool = False,
    stops: Collection[int] = (),
) -> Tree:
    """The best-first tree of at most `budget` nodes below `root`.

    Trees of growing budget are prefixes of each other. A candidate whose own probability is under `p_min` is left
    out with its descendants; the first spine node (best token of depth 1) is exempt. A token of `stops`, which end an
    answer, has no children.
    """
    depths = len(drafts.tokens)
    floor = math.log(p_min) if p_min > 0 else -math.inf
    tokens, parents, depth_of, log_probs, paths = [root], [-1], [0], [0.0], [0.0]
    heap: list[tuple[float, int, int, int, int]] = []  # (-path log-prob, token, depth, rank, parent)
    below: dict[int, tuple[list[int], list[float]]] = {}

    def candidates_of(parent: int) -> tuple[list[int], list[float]]:
        if parent not in below:
            below[parent] = drafts.below(depth_of[parent], tokens[parent])
        return below[parent]

    def add(token: int, parent: int, log_prob: float) -> int:
        tokens.append(token)
        parents.append(parent)
        depth_of.append(depth_of[parent] + 1)
        log_probs.append(log_prob)
        paths.append(paths[parent] + log_prob)
        return len(tokens) - 1

    def offer(depth: int, rank: int, parent: int) -> None:
        if depth >= depths:
            return
        ids, scores = candidates_of(parent)
        # Ranks are sorted, so once one is under the floor all its later siblings are too.
        if rank < len(ids) and (scores[rank] >= floor or depth == rank == 0):
            heapq.heappush(heap, (-paths[parent] - scores[rank], ids[rank], depth, rank, parent))

    if chain_seed:
        parent = 0
        for depth in range(min(depths, budget)):
            ids, scores = candidates_of(parent)
            if not ids or (depth > 0 and scores[0] < floor):
                break
            offer(depth, 1, parent)
            parent = add(ids[0], parent, scores[0])
            if ids[0] in stops:
                break
    else:
        offer(0, 0, 0)
    while heap and len(tokens) <= budget:
        _, token, depth, rank, parent = heapq.heappop(heap)
        node = add(token, parent, below[parent][1][rank])
        offer(depth, rank + 1, parent)
        if token not in stops:
            offer(depth + 1, 0, node)
    return Tree(tuple(tokens), tuple(parents), tuple(depth_of), tuple(log_probs), tuple(paths))


def walk(tree: Tree, draw: Callable[[int, list[int]], int]) -> Walk:
    """Follow the target from the root: move to the child with the drawn token while there is one.

    `draw(node, path)` returns the target's own token after `node`; `path` holds the tokens of the accepted nodes
    below the root so far. The draft distribution is not used, so the output is the target's at any temperature.
    """
    children = {(parent, token): node for node, (parent, token) in enumerate(zip(tree.parents, tree.tokens))}
    nodes, path = [0], list[int]()
    while True:
        token = draw(nodes[-1], path)
        child = children.get((nodes[-1], token))
        if child is None:
            return Walk(tuple(nodes), token)
        nodes.append(child)
        path.append(token)


def ancestors(parents: Sequence[int]) -> npt.NDArray[np.bool_]:
    """(n, n) mask: entry (i, j) is true where j is i or an ancestor of i. `parents[i] < i`, -1 for a root."""
    mask = np.eye(len(parents), dtype=bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            mask[node] |= mask[parent]
    return mask


def conv_taps(parents: Sequence[int], kernel: int) -> npt.NDArray[np.int64]:
    """(n, kernel) indices of the inputs under each node's causal convolution, oldest first.

    The indices are those of the kernel-1 columns of the stored convolution state followed by the n nodes: a walk up
    the parents that goes past the root continues into the state, newest column first.
    """
    taps = np.empty((len(parents), kernel), np.int64)
    for node in range(len(parents)):
        at = node
        for tap in range(kernel - 1, -1, -1):
            taps[node, tap] = at + kernel - 1
            at = parents[at] if at >= 0 else at - 1
    return taps


def check_tree(tokens: Sequence[int], parents: Sequence[int], vocab_size: int) -> None:
    """Raises ContextError for what is no tree: each node has a token of the vocabulary, and as its parent a node before
    it or -1."""
    if len(tokens) == 0 or len(tokens) != len(parents):
        found = f"found {len(tokens)} tokens and {len(parents)} parents"
        raise ContextError(f"{found}, expected at least one token, and a parent for each")
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        if not 0 <= token < vocab_size:
            raise ContextError(f"token {token} is outside the vocabulary of {vocab_size:,}; check the tokenizer")
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
