"""Builds a tree of the candidates with the highest learned values, in the order in which they are worth verifying.

The spine is the path of the best candidates, rank 0 at every depth. No chain is forced. Nothing is offered below a stop
token, or deeper than the answer may still grow. Under every node, the token that followed the same words earlier in the
text is offered too.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from dflash_core.drafters.ngram_table import LONGEST, NgramTable, Successor
from dflash_core.policy.values import BEYOND, COPIED, MIN_COPIED, Features, Learned, Stated, class_of, copied_features
from dflash_core.tree import Tree

Trials = tuple[list[int], list[Features], list[bool]]
"""Classes, features, and whether each was the target's token."""
DEEPEST = 40  # depth of copied text


@dataclass(slots=True)
class ValueTree:
    """Nodes in the order of their values, the root first; a list per column. `log_probs`: as the drafter states them.

    `off`: 0 on the spine, else the number of nodes since the path left it. `found[i]`: the successor that the text has
    after node i, `trial[i]`: its features, None if it is the drafter's first choice there.
    """

    tokens: list[int]
    parents: list[int] = field(default_factory=lambda: [-1])
    depths: list[int] = field(default_factory=lambda: [0])
    values: list[float] = field(default_factory=lambda: [1.0])
    log_probs: list[float] = field(default_factory=lambda: [0.0])
    off: list[int] = field(default_factory=lambda: [0])
    copied: list[bool] = field(default_factory=lambda: [False])
    found: list[Successor | None] = field(default_factory=list)
    trial: list[Features | None] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.tokens)

    def first(self, nodes: int) -> Tree:
        """The tree of the root and the `nodes` best below it."""
        end = nodes + 1
        paths = [0.0]
        for node in range(1, end):
            paths.append(paths[self.parents[node]] + self.log_probs[node])
        return Tree(
            tuple(self.tokens[:end]),
            tuple(self.parents[:end]),
            tuple(self.depths[:end]),
            tuple(self.log_probs[:end]),
            tuple(paths),
            tuple(self.values[:end]),
            tuple(node for node in range(1, end) if self.copied[node]),
        )


def build(
    stated: Stated,
    learned: Learned,
    text: NgramTable | None,
    root: int,
    stops: Collection[int],
    most: int,
    deepest: int = DEEPEST,
    ends: Callable[[float, int], bool] = lambda value, nodes: False,
) -> ValueTree:
    """Build a tree of at most `most` nodes below `root`, none deeper than `deepest`. `text` ends with the root; None:
    copy nothing.

    `ends(value, nodes)`: whether to stop when the best offer has that value and the tree has that many nodes below the
    root.
    """
    tree = ValueTree([root])
    tokens, parents, depths, values = tree.tokens, tree.parents, tree.depths, tree.values
    log_probs, offs, copied = tree.log_probs, tree.off, tree.copied
    found, trial = tree.found, tree.trial
    on_spine = [] if stated.conditional else stated.spine_values(learned.weights)
    heap: list[tuple[float, int, int, int, int, int, float]] = []  # -value, order, parent, token, rank, off, log-prob
    tails: list[tuple[int, ...]] = [text.tail() if text is not None else ()]
    taken: set[tuple[int, int]] = set()
    drafted = min(stated.depths, deepest)
    order = 0
    push = heapq.heappush

    def offer(parent: int, rank: int) -> None:
        nonlocal order
        depth = depths[parent]
        if depth >= drafted:
            return
        row = stated.below(depth, tokens[parent])
        if rank >= len(row.tokens):
            return
        off = offs[parent]
        below = off + 1 if off or rank else 0
        if on_spine and off == 0:
            value = on_spine[depth][rank]
        else:
            x = stated.off_spine(depth, rank, log_probs[parent], row) if off else stated.on_spine(depth, rank, row)
            value = learned.value(class_of(off, rank), x)
        push(heap, (-values[parent] * value, order, parent, row.tokens[rank], rank, below, row.log_probs[rank]))
        order += 1

    def look_up(node: int) -> None:
        nonlocal order
        depth = depths[node]
        successor = text.after(tails[node]) if text is not None and depth < DEEPEST else None
        found.append(successor)
        if successor is None:
            trial.append(None)
            return
        token, match = successor
        given = copied_trial(stated, depth, tokens[node], token, copied=copied[node], off=offs[node])
        trial.append(given[0] if given else None)
        if given is None:
            return
        x, p = given
        if depth < deepest:
            value = values[node] * learned.value(COPIED + match, x)
            push(heap, (-value, order, node, token, -1, offs[node] + 1, math.log(max(p, MIN_COPIED))))
            order += 1

    offer(0, 0)
    look_up(0)
    while heap and len(tokens) <= most:
        if ends(-heap[0][0], len(tokens) - 1):
            break
        value, _, parent, token, rank, off, log_prob = heapq.heappop(heap)
        if rank >= 0 and (off < 2 or rank > 0):
            offer(parent, rank + 1)
        if (parent, token) in taken:
            continue
        taken.add((parent, token))
        node = len(tokens)
        tokens.append(token)
        parents.append(parent)
        depths.append(depths[parent] + 1)
        values.append(-value)
        log_probs.append(log_prob)
        offs.append(off)
        copied.append(rank < 0)
        if text is not None:
            tails.append((*tails[parent][1 - LONGEST :], token))
        if token in stops:
            found.append(None)
            trial.append(None)
            continue
        look_up(node)
        offer(node, 0)
        if off >= 1:
            offer(node, 1)
    return tree


def copied_trial(
    stated: Stated, depth: int, above: int, token: int, *, copied: bool, off: int
) -> tuple[Features, float] | None:
    """Features of a successor below a node with the token `above` at `depth`, and the probability that the drafter
    states for it; None where it is the drafter's first choice there. `copied`, `off`: those of the node above."""
    p, best = BEYOND
    row = stated.below(depth, above) if depth < stated.depths else None
    if row is not None and row.tokens:
        if token == row.tokens[0]:
            return None
        p, best = row.p[row.tokens.index(token)] if token in row.tokens else 0.0, row.p[0]
    return copied_features(p, best, 2 if copied else 1 if off else 0), p


def trials(
    tree: ValueTree, stated: Stated, path: Collection[int], drawn: Collection[int], stops: Collection[int]
) -> Trials:
    """The trials of a verified step.

    `path`: the accepted nodes, the root first; `drawn`: the target's own token after each of them, as far as the answer
    went. Candidates below a rejected node are no trials: the text before them is wrong.
    """
    classes, features, outcomes = list[int](), list[Features](), list[bool]()
    drafting = True
    for node, token in zip(path, drawn):
        depth, off = tree.depths[node], tree.off[node]
        if drafting and depth < stated.depths and not (node and tree.tokens[node] in stops):
            row, above = stated.below(depth, tree.tokens[node]), tree.log_probs[node]
            for rank, candidate in enumerate(row.tokens):
                classes.append(class_of(off, rank))
                features.append(stated.off_spine(depth, rank, above, row) if off else stated.on_spine(depth, rank, row))
                outcomes.append(candidate == token)
        else:
            drafting = False
        successor, x = tree.found[node], tree.trial[node]
        if successor is not None and x is not None:
            classes.append(COPIED + successor.match)
            features.append(x)
            outcomes.append(successor.token == token)
    return classes, features, outcomes
