"""The candidate tree of a constrained step: without drafts that the constraint rules out, and with what it forces."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dflash_core.constraints.base import Constraint
from dflash_core.tree import Tree


def within(tree: Tree, constraint: Constraint, budget: int, forced: int, *, chain: bool) -> Tree:
    """The chain of the next tokens that `constraint` forces, at most `forced`, then the nodes of `tree` that it admits
    after their paths, while there are fewer than `budget` nodes below the root. With `chain` it is one path."""
    admitted = _admitted(tree, constraint)
    children = {(tree.parents[node], tree.tokens[node]): node for node in admitted}
    tokens, parents, depths, log_probs, places = [tree.tokens[0]], [-1], [0], [0.0], {0: 0}

    def add(token: int, parent: int, log_prob: float, node: int) -> None:
        places.setdefault(node, len(tokens))
        tokens.append(token)
        parents.append(parent)
        depths.append(depths[parent] + 1)
        log_probs.append(log_prob)

    at = 0
    for token in constraint.forced()[:forced]:
        at = children.get((at, token), -1) if at >= 0 else -1
        add(token, len(tokens) - 1, 0.0, at)
    places.pop(-1, None)
    for node in admitted:
        parent = places.get(tree.parents[node])
        if node in places or parent is None or len(tokens) > budget or (chain and parent in parents):
            continue
        add(tree.tokens[node], parent, tree.log_probs[node], node)
    paths = [0.0]
    for parent, log_prob in zip(parents[1:], log_probs[1:]):
        paths.append(paths[parent] + log_prob)
    copied = tuple(sorted(places[node] for node in tree.copied if node in places))
    columns = (tuple(tokens), tuple(parents), tuple(depths), tuple(log_probs), tuple(paths))
    return Tree(*columns, copied=copied)


def _admitted(tree: Tree, constraint: Constraint) -> list[int]:
    """The nodes that the constraint admits, in their order."""
    found = [0]

    def admits(node: int, path: Sequence[int]) -> bool:
        if node == 0:
            return True
        admitted = constraint.admits(path[:-1], path[-1])
        if admitted:
            found.append(node)
        return admitted

    depth_first(tree, admits)
    return sorted(found)


def depth_first(tree: Tree, enters: Callable[[int, Sequence[int]], bool]) -> None:
    """Call `enters` with each node and the tokens from the root, without it, to the node; what is below one for which
    it is false is left out. In this order consecutive nodes share most of their path, so that a constraint has few
    tokens to read again."""
    below: list[list[int]] = [[] for _ in tree.tokens]
    for node, parent in enumerate(tree.parents[1:], 1):
        below[parent].append(node)
    waiting = [0]
    path: list[int] = []
    while waiting:
        node = waiting.pop()
        depth = tree.depths[node]
        path[max(depth - 1, 0) :] = [tree.tokens[node]] if depth else []
        if enters(node, path):
            waiting += reversed(below[node])
