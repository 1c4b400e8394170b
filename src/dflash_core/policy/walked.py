"""Trials of a step whose tree was built elsewhere, from nothing but its event."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from dflash_core.drafters.ngram_table import LONGEST, NgramTable
from dflash_core.events import StepEvent
from dflash_core.policy.best_first import Trials, ValueTree, copied_trial, trials
from dflash_core.policy.copying import Copies
from dflash_core.policy.values import BLOCK, SMALLEST, Features, Stated, class_of, logit


def walk_trials(step: StepEvent, stops: Collection[int], text: NgramTable | None, copies: Copies) -> Trials:
    """The trials of a step's candidates. `text`: what successors were copied from, as it was before the step, None for
    nothing; whether they were right is counted in `copies`."""
    tree, stated = walked(step)
    path = range(len(tree))
    if text is not None:
        _look_up(tree, stated, text, stops)
        for node, token in zip(path, step.tokens):
            if (found := tree.found[node]) is not None:
                copies.add(found.match, found.token == token)
    return trials(tree, stated, path, step.tokens, stops)


def _look_up(tree: ValueTree, stated: Stated, text: NgramTable, stops: Collection[int]) -> None:
    """The text's successors after each node of the walk, no deeper than the drafts."""
    tail = text.tail()
    for node, token in enumerate(tree.tokens):
        if node:
            tail = (*tail[1 - LONGEST :], token)
        depth = tree.depths[node]
        if (node and token in stops) or depth >= stated.depths:
            break
        successor = text.after(tail)
        if successor is None:
            continue
        tree.found[node] = successor
        given = copied_trial(stated, depth, token, successor.token, copied=tree.copied[node], off=tree.off[node])
        tree.trial[node] = given[0] if given else None


def shown(step: StepEvent, stops: Collection[int]) -> Trials:
    """Trials of a drafter that scores by parent token: a step shows only those candidates of a node that were built as
    its children, in the order of their ranks."""
    it = step.tree
    children: list[list[int]] = [[] for _ in it.tokens]
    for node in range(1, len(it.tokens)):
        children[it.parents[node]].append(node)
    off, before, spine = [0] * len(it.tokens), [0.0], 0
    for node, below in enumerate(children):
        for rank, child in enumerate(below):
            off[child] = 0 if off[node] == 0 and rank == 0 else off[node] + 1
    log_probs = [math.log(max(p, SMALLEST)) for p in it.probs]
    while children[spine]:
        spine = children[spine][0]
        before.append(min(before[-1] - log_probs[spine], 8.0))
    classes, features, outcomes = list[int](), list[Features](), list[bool]()
    for node, token in zip(it.accepted, step.tokens):
        if node and it.tokens[node] in stops:
            break
        depth, below = it.depths[node], children[node]
        third = max(log_probs[node], -8.0) if off[node] else depth / BLOCK
        for rank, child in enumerate(below):
            classes.append(class_of(off[node], rank))
            above = before[min(depth, len(before) - 1)]
            features.append((1.0, logit(it.probs[child]), above, third, it.probs[below[0]]))
            outcomes.append(it.tokens[child] == token)
    return classes, features, outcomes


def walked(step: StepEvent) -> tuple[ValueTree, Stated]:
    """The walk of a step as a tree of one branch, and the drafts of its depths, as the policy knows them."""
    it, drafts = step.tree, step.drafts
    path = it.accepted[: len(step.tokens)]
    stated = Stated(np.array(drafts.tokens[: len(path)], np.int64), np.array(drafts.log_probs[: len(path)]))
    log_probs, off, copied = [0.0], [0], [node in it.copied for node in path]
    for depth, node in enumerate(path[1:]):
        if copied[depth + 1]:
            log_probs.append(math.log(max(it.probs[node], SMALLEST)))
            off.append(off[-1] + 1)
            continue
        rank = drafts.tokens[depth].index(it.tokens[node])
        log_probs.append(drafts.log_probs[depth][rank])
        off.append(0 if off[-1] == 0 and rank == 0 else off[-1] + 1)
    count, nothing = len(path), [None] * len(path)
    tree = ValueTree(
        [it.tokens[node] for node in path], list(range(-1, count - 1)), list(range(count)),
        [it.values[node] for node in path], log_probs, off, copied, list(nothing), list(nothing),
    )  # fmt: skip
    return tree, stated
