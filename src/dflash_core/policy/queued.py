"""`auto` where steps run on a device: the device builds the tree by learned value, the host chooses its width.

Steps are queued ahead, so the host sees a step's result a few steps late. The tokens expected from a tree of some
width are therefore running means. The order of the nodes cannot wait and is computed on the device. So is copying from
the text, with tables that are as many steps old.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from dflash_core.drafters.ngram_table import NgramTable
from dflash_core.events import SHOWN_ROWS, StepEvent
from dflash_core.knobs import Knobs
from dflash_core.policy.arm import PARTS, Arm, PairState, Part
from dflash_core.policy.auto import AutoPolicy, Step, free, max_nodes
from dflash_core.policy.base import Decision, as_set, draft_was_right
from dflash_core.policy.best_first import Trials
from dflash_core.policy.choosing import QUEUED, START_TOKENS, Allowance, Chooser, Found, tried_again
from dflash_core.policy.costs import MIN_STEPS
from dflash_core.policy.values import Array
from dflash_core.policy.walked import shown, walk_trials

CHOICES = (8, 16, 24)
"""The possible numbers of rows: those that a session has memory for from the start. 32 would be chosen in 2 of 100
steps."""
START_BEYOND = (1.0, 1.2, 1.3)
"""Drafts accepted in trees of CHOICES rows over those of the narrowest, before any was seen. It hardly differs between
texts (docs/notes/policy.md), so no tree needs more nodes than it verifies."""
MIN_WEIGHT = 0.05  # weight of a step in the expectations
MIN_TRY_LOSS = 0.1  # plain steps that a try is taken to lose at least
START = 3.0  # plain steps: a try has waits, so it is worth more than one draft
WAITING = 8  # plain steps after a draft whose waits are the draft's: those that are queued until it is counted
FIRST_WAITS = 5  # whose median is the usual one
WAIT_WEIGHT = 0.5  # of a try in the mean of what tries wait
MAX_PLAIN_BATCH = 128  # plain steps that are decided and counted at once: each by itself takes the host long
SAMPLES = 16  # of such a batch, by which its time is known
MAX_GAP = 8.0  # steps of a draft: a longer time before it is one that does not come again, such as recording a graph
LEARNED_AT_ONCE = 16  # steps: each update costs the host 0.3 ms, and a copy to the device


class QueuedPolicy(AutoPolicy):
    """Implements `policy.base.Policy` for the drafter of `arm` on the device."""

    def __init__(self, arm: Arm, *, think_ids: tuple[int, int] | None = None) -> None:
        super().__init__([arm], think_ids=think_ids)
        self._chooser = Chooser([arm.kind], START)
        self._untaught: dict[Part, list[Trials]] = {part: [] for part in PARTS}
        self._tags = frozenset(think_ids or ())
        self._forget()
        self._begin_answer()

    def _begin_answer(self) -> None:
        self._batch = 1  # results of plain steps for which the decision stands
        self._plain: list[StepEvent] = []  # those of them that are not counted yet
        self._begun = False  # a step of the present answer was counted
        self._since = WAITING  # plain steps since the last draft
        self._waited = 0.0  # because of the last draft, so far, in plain steps
        self._tries: Decision | None = None  # a try that was decided; `_trying`: it is queued, without a result yet
        self._trying = False

    def _forget(self) -> None:
        self._more = START_TOKENS - 1  # drafts that the narrowest tree is expected to bring
        self._beyond = dict(zip(CHOICES, START_BEYOND))
        self._steps = 0
        self._waits = 0.0  # mean of what the card waits for the host because of a draft, in plain steps
        # The first waits of drafts, and of plain steps after them, in plain steps.
        self._before, self._after = list[float](), list[float]()

    def begin(self, ids: Sequence[int], stops: frozenset[int]) -> None:
        super().begin(ids, stops)
        self._begin_answer()

    def reset(self, states: Sequence[PairState]) -> None:
        super().reset(states)
        self._forget()

    def end(self) -> None:
        self._count_plain()
        self.spare()  # a few steps that are left wait for the next answer: the end of this one does not wait for them
        super().end()

    def weights(self, knobs: Knobs) -> Array | None:
        """The weights for the device's trees; None where the knobs describe a fixed tree, or there is none."""
        plain = self._step is not None and self._step.decision.mode == "plain"
        return self._of(self.arm).learned.weights if free(knobs) and not plain else None

    def copies_from(self, knobs: Knobs) -> NgramTable | None:
        """The known text so far."""
        return self._text if free(knobs) and knobs.from_text else None

    def asks_certain(self, knobs: Knobs) -> bool:
        return False

    @property
    def busy_soon(self) -> bool:
        # A plain step is never in vain: all are queued as deep, so that a decision, or a pause of the host, finds them.
        learns = any(len(steps) >= LEARNED_AT_ONCE for steps in self._untaught.values())
        return self._trying or learns or self._since > 0 or bool(self._plain)

    def queued(self) -> None:
        if self._step is not None and self._step.decision is self._tries:
            self._step, self._tries, self._trying = None, None, True

    def injected(self, tokens: Sequence[int]) -> None:
        self._trying = False  # it may have been cancelled
        self._count_plain()
        super().injected(tokens)

    def _observe(self, step: StepEvent, certain: Sequence[float]) -> None:
        if step.mode == "plain" and free(step.knobs):
            self._plain.append(step)
            if step.tokens[-1] in self._tags:
                self._batch = min(self._batch, len(self._plain) + WAITING)
            if len(self._plain) >= self._batch:
                self._count_plain()
            return
        self._count_plain()
        if free(step.knobs):
            self._count(step)
        self._trying = False
        self._step = None
        self._extend(step.tokens)

    # ---- The decision ----------------------------------------------------------------------------------------------

    @property
    def _allowance(self) -> Allowance:
        return self._chooser.allowance((self._part, False), self.arm.kind)

    @property
    def _known(self) -> Found:
        """What the drafter's steps brought in this part of the text."""
        return self._drafts(self.arm).setdefault(QUEUED, Found())

    def _decide(self, knobs: Knobs) -> Step:
        self._count_plain()
        decision = self._free(knobs) if free(knobs) else as_set(knobs, self.arm.drafter)
        return Step(knobs, decision, self.arm)

    def _free(self, knobs: Knobs) -> Decision:
        if self._trying:
            self._batch = MAX_PLAIN_BATCH
            return Decision("plain", 0, "a plain step, until the result of a try is known")
        arm, costs, most = self.arm, self.arm.costs, max_nodes(knobs) + 1
        known = self._known
        if not (costs.knows_plain and (known.steps or self._begun)):
            self._batch = MIN_STEPS if known.steps else WAITING
            return Decision("plain", 0, "a plain step, to see what it costs")
        allowance, rate, curve, plain = self._allowance, self._rate(arm), costs.curve(), costs.plain
        widths = [rows for rows in CHOICES if rows <= most] or [most]
        net = {rows: self._brings(rows) - rate * curve[rows] for rows in widths}
        best = max(widths, key=lambda rows: net[rows])
        depth = arm.depth(knobs, self._part)
        decision = Decision("tree", best - 1, self._why(best, widths, curve, rate), depth=depth)
        if allowance.credit and (untimed := [rows for rows in widths if not costs.knows(rows)]):
            why = f"{untimed[0]} rows, to see what they cost"
            decision = replace(decision, budget=untimed[0] - 1, reason=why)
        takes = curve[best] / plain
        pays = known.mean > takes
        if not known.never_right and pays and allowance.left > takes - 1:
            return decision
        # A drafter that was never right, or is not known to pay, drafts one step at a time, between plain steps.
        risk = max(takes + self._waits - 1, MIN_TRY_LOSS)
        missing = risk - (allowance.left if pays else allowance.spare)
        # Plain steps come before: those that the card runs meanwhile, and those that show what the last try cost.
        first = WAITING - self._since if self._begun else WAITING
        if missing <= 0 and first == 0:
            why = decision.reason if pays else tried_again(risk)
            self._tries = replace(decision, reason=why)
            return self._tries
        self._batch = min(max(math.floor(missing / known.share), first, 1), MAX_PLAIN_BATCH)
        brought = f"{known.mean:.1f} tokens for {takes:.1f} plain steps"
        return Decision("plain", 0, f"drafts bring {brought}; they are tried again")

    def _why(self, rows: int, widths: Sequence[int], curve: Sequence[float], rate: float) -> str:
        more = next((width for width in widths if width > rows), None)
        if more is None:
            return f"{rows} rows pay"
        ms, brings = curve[more] - curve[rows], self._brings(more) - self._brings(rows)
        cost = f"the next {more - rows} cost {ms:.2f} ms = {rate * ms:.2f} tokens"
        return f"{rows} rows pay; {cost}, would bring {brings:.2f}"

    def _brings(self, rows: int) -> float:
        """Tokens expected from a tree of `rows` rows."""
        return 1 + self._more * self._beyond.get(rows, 1.0)

    # ---- Results ---------------------------------------------------------------------------------------------------

    def _count_plain(self) -> None:
        """Count the plain steps since the last decision, together."""
        steps, self._plain, self._batch, self._step = self._plain, [], 1, None
        if not steps:
            return
        arm, costs, count = self.arm, self.arm.costs, len(steps)
        some = sorted(steps[:: -(-count // SAMPLES)], key=lambda step: step.stages.total - step.stages.host)
        for step in some if count <= SAMPLES else some[len(some) // 2 :][:1]:
            spent = costs.add(step, False)
        arm.state.pace.add(1, spent, arm.unit, drafted=False, steps=count)
        self._begun = True
        self._allowance.earn(count, self._known.share)
        if self._since < WAITING:
            self._count_waits(steps[: WAITING - self._since])
        self._extend([token for step in steps for token in step.tokens])

    def _count_waits(self, steps: Sequence[StepEvent]) -> None:
        """Charge a draft for what the plain steps after it waited."""
        unit, usual = self.arm.costs.unit, self.arm.costs.plain
        waited = max(sum(_wait(step, usual) - (unit - usual) for step in steps) / unit, 0.0)
        waited = _usual(self._after, waited)
        self._allowance.settle(-waited)
        self._waited, self._since = self._waited + waited, self._since + len(steps)
        if self._since == WAITING:
            self._waits += WAIT_WEIGHT * (self._waited - self._waits)

    def _count(self, step: StepEvent) -> None:
        """Count a draft. Its loss is what was measured, waits for the host included."""
        arm, costs, brought = self.arm, self.arm.costs, step.accepted_depth + 1
        spent = costs.add(step, True)
        arm.state.pace.add(len(step.tokens), spent, arm.unit)
        # Copied tokens may be right with any drafter.
        own = draft_was_right(step)
        better = self._trying and brought > 1 and own  # what earlier drafts brought no longer counts
        if better:
            self._drafts(arm).pop(QUEUED, None)
        arm.changed = self._begun = True
        self._since = 0
        arm.count_depth(step, self._part, anew=better)
        usual, unit = costs.typical(len(step.tree.tokens)) if spent else 0.0, costs.unit
        wait = _usual(self._before, _wait(step, usual) / unit)
        self._waited = wait
        took = usual / unit + wait
        counts = own or brought > took or not self._known.never_right
        self._known.add(brought if counts else 1, took)
        self._allowance.earn(took, self._known.share)
        self._allowance.settle(brought - usual / unit - wait)
        if step.choice is None:
            return
        self._steps += 1
        weight = max(MIN_WEIGHT, 1 / self._steps)
        brings = dict(zip(SHOWN_ROWS, step.choice.brings))
        least = brings.get(CHOICES[0], step.choice.brings[-1]) - 1
        self._more += weight * (least - self._more)
        for rows in CHOICES[1:]:
            if rows in brings and self._more > 0:
                self._beyond[rows] += weight * (brings[rows] - 1 - self._beyond[rows] * least) / self._more
        if step.knobs.learn:
            self._untaught[self._part].append(self._trials(step))

    def spare(self) -> None:
        # Between a result and the next step's launch it would keep a card with short steps waiting.
        for part, steps in self._untaught.items():
            if len(steps) >= LEARNED_AT_ONCE:
                self._teach(part)

    def _teach(self, part: Part) -> None:
        """Learn from the collected steps."""
        if waiting := self._untaught[part]:
            self.arm.state.parts[part].learned.learn(*(list(itertools.chain(*column)) for column in zip(*waiting)))
            waiting.clear()

    def _trials(self, step: StepEvent) -> Trials:
        if step.knobs.by_parent and "by_parent" in self.arm.drafter.knobs:
            return shown(step, self._stops)
        text = self._text if step.knobs.from_text else None
        return walk_trials(step, self._stops, text, self._of(self.arm).copies)


def _usual(first: list[float], wait: float) -> float:
    """What of a wait counts. A machine that pauses does so in plain decoding too, and an early pause would end the
    tries of a good drafter: no more than the median of the first ones. All of it later: rare long waits are half of
    what a dead drafter costs."""
    if len(first) == FIRST_WAITS:
        return wait
    first.append(wait)
    return min(wait, statistics.median(first))


def _wait(step: StepEvent, usual: float) -> float:
    """The milliseconds before a step in which the card had nothing to do. `usual`: of the step itself."""
    gap = step.stages.host
    return gap if gap < MAX_GAP * usual else min(gap, usual)
