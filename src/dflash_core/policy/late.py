"""`auto` where steps run on a device: the device builds the tree by learned value, the host chooses its width.

Steps are queued ahead, so the host sees a step's result a few steps late. The tokens expected from a tree of some
width are therefore running means. The order of the nodes cannot wait and is computed on the device. So is copying from
the text, with tables that are as many steps old.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence

import numpy as np

from dflash_core.drafters.successors import LONGEST
from dflash_core.drafters.text_table import TextTable
from dflash_core.events import SHOWN_ROWS, StepEvent
from dflash_core.knobs import Knobs
from dflash_core.policy.base import Decision, Plan
from dflash_core.policy.best_first import ValueTree, copied_trial, trials
from dflash_core.policy.learned import most_nodes
from dflash_core.policy.pace import START_ROWS
from dflash_core.policy.pair import PARTS, PairPolicy, Part
from dflash_core.policy.values import BLOCK, CHILD, DEEPER, SMALLEST, SPINE, Array, Features, Stated, logit
from dflash_core.tree import Candidates

Trials = tuple[list[int], list[Features], list[bool]]
"""Classes, features, and whether each was the target's token."""
BUILT = 23
"""Nodes below the root that are built at every width, so that the tokens of each width are known."""
CHOICES = (8, 16, 24)
"""The possible numbers of rows: those that a session has memory for from the start. 32 would be chosen in 2 of 100
steps."""
LEAST_WEIGHT = 0.05  # weight of a step in the mean of a width
FIRST_STEPS = 4  # before anything is known
LEARNED_AT_ONCE = 4  # steps: each update costs the host 0.3 ms, and a copy of the weights to the device


class LatePolicy(PairPolicy):
    """Implements `policy.base.Policy` for a drafter on the device."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._means = dict.fromkeys(CHOICES, 0.0)
        self._steps = 0
        self._text = TextTable()
        self._untaught: dict[Part, list[Trials]] = {part: [] for part in PARTS}

    def begin(self, ids: Sequence[int], stops: frozenset[int]) -> None:
        super().begin(ids, stops)
        self._text.become(ids)

    def end(self) -> None:
        for part in PARTS:
            self._learn(part)
        super().end()

    def weights(self, knobs: Knobs) -> Array | None:
        """The weights for the device's trees; None where the knobs describe a fixed tree."""
        return self._state.learned.weights if self._free(knobs) else None

    def copies_from(self, knobs: Knobs) -> TextTable | None:
        """The known text so far."""
        return self._text if self._free(knobs) and knobs.from_text else None

    def next(self, knobs: Knobs) -> Decision:
        fixed = self._fixed.next(knobs)
        if not self._free(knobs):
            return fixed
        worth, most = self._state.worth, most_nodes(knobs) + 1
        if self._steps < FIRST_STEPS:
            return Decision("tree", min(START_ROWS, most) - 1, "auto: nothing is known yet", depth=self._depth(knobs))
        rate, curve = self.rate, self.costs.curve()
        widths = [rows for rows in CHOICES if rows <= most] or [most]
        net = {rows: self._means.get(rows, self._means[CHOICES[0]]) - rate * curve[rows] for rows in widths}
        best = max(widths, key=lambda rows: net[rows])
        if not worth.due() and worth.beaten_by(1 - rate * self.costs.plain):
            brought = f"{worth.tokens:.1f} tokens for {worth.ms / self.costs.plain:.1f} plain steps"
            return Decision("ar", 0, f"auto: drafts brought {brought}; they are tried again")
        return Decision("tree", best - 1, self._why(best, widths, curve, rate), depth=self._depth(knobs))

    def _why(self, rows: int, widths: Sequence[int], curve: Sequence[float], rate: float) -> str:
        more = next((width for width in widths if width > rows), None)
        if more is None:
            return f"auto: {rows} rows pay"
        ms, brings = curve[more] - curve[rows], self._means[more] - self._means[rows]
        return (
            f"auto: {rows} rows pay; the next {more - rows} cost {ms:.2f} ms = {rate * ms:.2f} tokens, "
            f"would bring {brings:.2f}"
        )

    def plan(self, knobs: Knobs, root: int, drafts: Candidates, deepest: int) -> Plan | None:
        """None: the device builds the tree."""
        return None

    def asks_certain(self, knobs: Knobs) -> bool:
        """False: the target's probabilities stay on the device."""
        return False

    def observe(self, step: StepEvent, certain: Sequence[float] = ()) -> None:
        if self._free(step.knobs):
            self._count(step)
        self._follow(step.tokens)
        self._text.extend(step.tokens)

    def said(self, tokens: Sequence[int]) -> None:
        self._follow(tokens)
        self._text.extend(tokens)

    def _count(self, step: StepEvent) -> None:
        part, drafted = self._state, step.mode != "ar"
        rate = self.rate
        spent = self.costs.add(step, drafted)
        self.state.pace.add(len(step.tokens), spent, self.costs.curve()[START_ROWS], drafted=drafted)
        self._news = True
        if not drafted:
            part.worth.without += 1
            return
        self._count_depth(step)
        part.worth.observed(step.accepted_depth + 1, spent, step.accepted_depth + 1 - rate * spent)
        if step.choice is None:
            return
        self._steps += 1
        weight = max(LEAST_WEIGHT, 1 / self._steps)
        known = dict(zip(SHOWN_ROWS, step.choice.brings))
        most = step.choice.brings[-1] if step.choice.brings else 1.0
        for rows in CHOICES:
            self._means[rows] += weight * (known.get(rows, most) - self._means[rows])
        if step.knobs.learn:
            self._untaught[self._part].append(self._trials(step))
            if len(self._untaught[self._part]) == LEARNED_AT_ONCE:
                self._learn(self._part)

    def _learn(self, part: Part) -> None:
        """Learn from the collected steps."""
        waiting = self._untaught[part]
        columns = (list(itertools.chain.from_iterable(column)) for column in zip(*waiting))
        if waiting:
            self.state.parts[part].learned.learn(*columns)
        waiting.clear()

    def _trials(self, step: StepEvent) -> Trials:
        """The trials of a step's candidates."""
        assert self.drafter is not None, "a step that was drafted without a drafter"
        if step.knobs.by_parent and "by_parent" in self.drafter.knobs:
            return shown(step, self._stops)
        tree, stated = walked(step)
        path = range(len(tree))
        if step.knobs.from_text:
            self._look_up(tree, stated, path)
            for node, token in zip(path, step.tokens):
                if (found := tree.found[node]) is not None:
                    self._state.copies.add(found.match, found.token == token)
        return trials(tree, stated, path, step.tokens, self._stops)

    def _look_up(self, tree: ValueTree, stated: Stated, path: Sequence[int]) -> None:
        """The text's successors after each node of the walk, no deeper than the drafts."""
        tail = self._text.tail()
        for node in path:
            if node:
                tail = (*tail[1 - LONGEST :], tree.tokens[node])
            depth, token = tree.depths[node], tree.tokens[node]
            if (node and token in self._stops) or depth >= stated.depths:
                break
            successor = self._text.after(tail)
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
            classes.append((SPINE if off[node] == 0 else CHILD if off[node] == 1 else DEEPER) + min(rank, 2))
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
