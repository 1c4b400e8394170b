"""`auto` where steps run on a device: the device builds the tree by learned value, the host chooses its width.

Steps are queued ahead, so the host sees a step's result a few steps late. The tokens expected from a tree of some
width are therefore running means. The order of the nodes cannot wait and is computed on the device. So is copying from
the text, with tables that are as many steps old.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from dflash_core.drafters.ngram_table import NgramTable
from dflash_core.drafters.successors import LONGEST
from dflash_core.events import SHOWN_ROWS, StepEvent
from dflash_core.knobs import Knobs
from dflash_core.policy.allowance import SHARE, Allowance, further
from dflash_core.policy.base import Decision
from dflash_core.policy.best_first import ValueTree, copied_trial, trials
from dflash_core.policy.costs import MIN_STEPS
from dflash_core.policy.depth import Depths
from dflash_core.policy.learned import max_nodes
from dflash_core.policy.pace import START_ROWS, START_TOKENS
from dflash_core.policy.pair import PARTS, PairPolicy, PairState, Part
from dflash_core.policy.values import BLOCK, CHILD, DEEPER, SMALLEST, SPINE, Array, Features, Stated, logit

Trials = tuple[list[int], list[Features], list[bool]]
"""Classes, features, and whether each was the target's token."""
BUILT = 23
"""Nodes below the root that are built at every width, so that the tokens of each width are known."""
CHOICES = (8, 16, 24)
"""The possible numbers of rows: those that a session has memory for from the start. 32 would be chosen in 2 of 100
steps."""
MIN_WEIGHT = 0.05  # weight of a step in the mean of a width
FIRST_STEPS = 4  # before anything is known
PROVEN = 2.0  # tokens of a draft: with so many, drafts need not wait for results
MIN_TRY_LOSS = 0.1  # plain steps that a try is taken to lose at least
LAG = 4  # results after which a step that was decided has been reported: a card queues two, and a halt drops some
START = 5.0  # plain steps: a try has waits, so it is worth more than one draft
WAITING = 3  # plain steps after a draft whose waits are the draft's: those that are queued while it is counted
WAIT_WEIGHT = 0.5  # of a try in the mean of what tries wait
MAX_PLAIN_BATCH = 128  # plain steps that are decided and counted at once: each by itself takes the host long
SAMPLES = 16  # of such a batch, by which its time is known
MAX_GAP = 8.0  # steps of a draft: a longer time before it is one that does not come again, such as recording a graph
LEARNED_AT_ONCE = 4  # steps: each update costs the host 0.3 ms, and a copy of the weights to the device


class LatePolicy(PairPolicy):
    """Implements `policy.base.Policy` for a drafter on the device."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._text = NgramTable()
        self._reset()
        self._untaught: dict[Part, list[Trials]] = {part: [] for part in PARTS}
        self._begin()

    def _begin(self) -> None:
        self._decided: tuple[Knobs, Decision] | None = None
        self._batch = 1  # results of plain steps for which that decision stands
        self._plain: list[StepEvent] = []  # those of them that are not counted yet
        self._trying = 0  # results until a try that was decided must have been reported
        self._begun = False  # a step of the present answer was counted
        self._since = WAITING  # plain steps since the last draft
        self._waited = 0.0  # of a try: its waits so far, in plain steps

    def begin(self, ids: Sequence[int], stops: frozenset[int]) -> None:
        super().begin(ids, stops)
        self._text.become(ids)
        self._begin()

    def reset(self, state: PairState) -> None:
        super().reset(state)
        self._reset()

    def _reset(self) -> None:
        self._allowances: dict[Part, Allowance] = {}
        self._means = dict.fromkeys(CHOICES, 0.0)
        self._steps = 0
        self._waits = 0.0  # mean of what the card waits for the host because of a try, in plain steps

    @property
    def _allowance(self) -> Allowance:
        if self._part not in self._allowances:
            self._allowances[self._part] = further(self._allowances.values(), START)
        return self._allowances[self._part]

    def end(self) -> None:
        self._count_plain()
        for part in PARTS:
            self._learn(part)
        super().end()

    def weights(self, knobs: Knobs) -> Array | None:
        """The weights for the device's trees; None where the knobs describe a fixed tree, or there is none."""
        plain = self._decided is not None and self._decided[1].mode == "plain"
        return self._state.learned.weights if self._free(knobs) and not plain else None

    def copies_from(self, knobs: Knobs) -> NgramTable | None:
        """The known text so far."""
        return self._text if self._free(knobs) and knobs.from_text else None

    def next(self, knobs: Knobs) -> Decision:
        if self._decided is None or self._decided[0] is not knobs:
            self._count_plain()
            self._decided = knobs, self._decide(knobs) if self._free(knobs) else self._fixed.next(knobs)
        return self._decided[1]

    def _decide(self, knobs: Knobs) -> Decision:
        worth, costs, most = self._state.worth, self.costs, max_nodes(knobs) + 1
        proven = worth.tokens >= PROVEN
        if not proven and not (costs.knows_plain and self._begun):
            self._batch = 1 if costs.knows_plain else MIN_STEPS
            return Decision("plain", 0, "auto: a plain step, to see what it costs")
        allowance = self._allowance
        rate, curve, plain = self.rate, costs.curve(), costs.plain
        widths = [rows for rows in CHOICES if rows <= most] or [most]
        net = {rows: self._means.get(rows, self._means[CHOICES[0]]) - rate * curve[rows] for rows in widths}
        best = max(widths, key=lambda rows: net[rows])
        decision = Decision("tree", best - 1, self._why(best, widths, curve, rate), depth=self._depth(knobs))
        if self._steps < FIRST_STEPS:
            decision = replace(decision, budget=min(START_ROWS, most) - 1, reason="auto: nothing is known yet")
        takes = curve[best] / plain
        pays = not worth.beaten_by(1 - rate * plain) if worth.drafts else takes < START_TOKENS
        if (good := proven and pays) and allowance.left > 0:
            return decision
        # A drafter that is not known to pay drafts one step at a time, and the next one when its result is known.
        # Right after a draft another one waits for the host only as long as the return to plain steps would.
        risk = max(takes + (self._waits if self._since else 0.0) - 1, MIN_TRY_LOSS)
        missing = (MIN_TRY_LOSS if good else risk) - (allowance.left if pays else allowance.spare)
        if not self._trying and missing <= 0:
            self._trying, self._waited = LAG, 0.0
            why = decision.reason if pays else f"auto: drafts are tried again; {risk:.1f} plain steps may be lost"
            return replace(decision, reason=why)
        self._batch = self._trying or min(max(math.floor(missing / SHARE), 1), MAX_PLAIN_BATCH)
        brought = f"{worth.tokens:.1f} tokens for {worth.ms / plain:.1f} plain steps"
        return Decision("plain", 0, f"auto: drafts brought {brought}; they are tried again")

    def _why(self, rows: int, widths: Sequence[int], curve: Sequence[float], rate: float) -> str:
        more = next((width for width in widths if width > rows), None)
        if more is None:
            return f"auto: {rows} rows pay"
        ms, brings = curve[more] - curve[rows], self._means[more] - self._means[rows]
        return (
            f"auto: {rows} rows pay; the next {more - rows} cost {ms:.2f} ms = {rate * ms:.2f} tokens, "
            f"would bring {brings:.2f}"
        )

    def observe(self, step: StepEvent, certain: Sequence[float] = ()) -> None:
        if step.mode == "plain" and self._free(step.knobs):
            self._plain.append(step)
            if len(self._plain) >= self._batch or step.tokens[-1] in self._tags:
                self._count_plain()
            return
        self._count_plain()
        if self._free(step.knobs):
            self._count(step)
        self._decided = None
        self._extend(step.tokens)

    def said(self, tokens: Sequence[int]) -> None:
        self._count_plain()
        self._extend(tokens)

    def _extend(self, tokens: Sequence[int]) -> None:
        self._follow(tokens)
        self._text.extend(tokens)

    def _count_plain(self) -> None:
        """Count the plain steps since the last decision, together."""
        steps, self._plain, self._batch, self._decided = self._plain, [], 1, None
        if not steps:
            return
        costs, count = self.costs, len(steps)
        some = sorted(steps[:: -(-count // SAMPLES)], key=lambda step: step.stages.total - step.stages.host)
        for step in some if count <= SAMPLES else some[len(some) // 2 :][:1]:
            spent = costs.add(step, False)
        self.state.pace.add(1, spent, costs.curve()[START_ROWS], drafted=False, steps=count)
        self._news = self._begun = True
        self._state.worth.without += count
        self._trying = max(self._trying - count, 0)
        self._allowance.earn(count)
        if self._since < WAITING:
            self._count_waits(steps[: WAITING - self._since])
        self._extend([token for step in steps for token in step.tokens])

    def _count_waits(self, steps: Sequence[StepEvent]) -> None:
        """Charge a draft for what the plain steps after it waited."""
        unit, usual = self.costs.unit, self.costs.plain
        waited = sum(_wait(step, usual) - (unit - usual) for step in steps) / unit
        self._allowance.settle(-max(waited, 0.0))
        self._waited, self._since = self._waited + max(waited, 0.0), self._since + len(steps)
        if self._since == WAITING:
            self._waits += WAIT_WEIGHT * (self._waited - self._waits)

    def _count(self, step: StepEvent) -> None:
        """Count a draft. Its loss is what was measured, waits for the host included."""
        part, costs, rate = self._state, self.costs, self.rate
        spent = costs.add(step, True)
        self.state.pace.add(len(step.tokens), spent, costs.curve()[START_ROWS])
        self._news = self._begun = True
        tried, self._trying, self._since = part.worth.without > 0, 0, 0
        if tried and step.accepted_depth:
            self._depths[self._part] = Depths()  # drafts may have become better
        self._count_depth(step)
        usual, unit = costs.typical(len(step.tree.tokens)) if spent else 0.0, costs.unit
        wait = _wait(step, usual) / unit
        self._waited += wait
        self._allowance.earn(usual / unit + wait)
        self._allowance.settle(step.accepted_depth + 1 - usual / unit - wait)
        part.worth.observed(step.accepted_depth + 1, spent, step.accepted_depth + 1 - rate * spent)
        if step.choice is None:
            return
        self._steps += 1
        weight = max(MIN_WEIGHT, 1 / self._steps)
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


def _wait(step: StepEvent, usual: float) -> float:
    """The milliseconds before a step in which the card had nothing to do. `usual`: of the step itself."""
    gap = step.stages.host
    return gap if gap < MAX_GAP * usual else min(gap, usual)


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
