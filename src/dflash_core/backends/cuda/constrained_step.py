"""A constrained answer on the card. While the card runs the pass, the host writes what may be drawn after each node; so
one pass runs at a time. Where the grammar is narrow, the host edits the tree before the pass, and the card waits.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dflash_core.backends.base import AnswerOptions
from dflash_core.backends.cuda.launch import Run
from dflash_core.backends.cuda.layers.head import all_listed
from dflash_core.backends.cuda.sequence_passes import SequencePasses
from dflash_core.backends.cuda.state import STEP_SLOTS
from dflash_core.backends.cuda.step import CudaDecoder, Queued
from dflash_core.backends.cuda.step_graphs import StepKind, Steps, widths_of
from dflash_core.backends.decoder import NOTE, SPARE, constrained, tokens_left
from dflash_core.constraints.base import Constraint, Mask, allowed_count
from dflash_core.constraints.drafts import depth_first
from dflash_core.events import StepEvent
from dflash_core.knobs import Knobs
from dflash_core.policy.base import Decision
from dflash_core.tree import Candidates, Tree, deepest_draft

ALL = np.uint32(0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class Started:
    """A step whose draft the card has begun, with its settings. `whole`: its tree has as many nodes as are verified,
    none of which to take out. `passed`: its pass has begun too; the tree is only the root, and stays so. `arrived`
    waits for a copy of the tree; None where that is only the root."""

    kind: StepKind
    whole: bool
    arrived: Run | None
    knobs: Knobs
    decision: Decision
    proposal: Candidates | None
    proposing_ms: float
    passed: bool

    def drawn(self, widths: tuple[int, ...], vocab: int, *, masked: bool = True) -> StepKind:
        """The kind of its pass and of its draws."""
        sampled = masked or self.kind.sampled
        listed = sampled and all_listed(self.knobs, vocab)
        return StepKind(widths, False, sampled, windowed=self.kind.windowed, listed=listed, top=self.kind.top)


class ConstrainedCudaDecoder(CudaDecoder):
    """A `CudaDecoder` whose answer conforms to a constraint. Raises GrammarError where that cannot be followed on."""

    constraint: Constraint

    def __init__(self, session: SequencePasses, steps: Steps, options: AnswerOptions) -> None:
        # A stop token ends the answer whatever the knobs say: nothing may follow it.
        super().__init__(session, steps, replace(options, knobs=options.knobs.replace(ignore_eos=False)))
        self._max_ahead = 1
        self._started: Started | None = None
        self._open = False  # see `_is_open`, when it was last called; the next tree is built for that
        self._next_knobs: Knobs | None = None

    @property
    def _fixed_budget(self) -> int:
        return super()._fixed_budget * (1 if self._open else SPARE)  # some are ruled out

    def _is_open(self) -> bool:
        """Whether the grammar forces nothing, and admits most tokens, so that hardly a draft is ruled out: then the
        pass runs the tree as it was built. A node that is ruled out is never drawn, edited or not."""
        allowed = self.constraint.allowed(())
        half = self.session.head.vocab // 2
        return (allowed is None or allowed_count(allowed) > half) and not self.constraint.forced()

    def _learn(self, event: StepEvent) -> None:
        self.policy.injected(event.tokens)  # what a grammar leaves of a tree shows nothing about the drafter

    def take(self, knobs: Knobs) -> None:
        self._next_knobs = knobs  # the step that has begun ends with the settings that it began with

    def finish(self) -> Sequence[StepEvent]:
        if self._begun and self._started is not None and self._started.passed and not self._over:
            self.steps.cancel.array[0] = 1
            self._complete(self._started)  # its pass has changed the states
        self._started = None
        return super().finish()

    def _begin(self) -> None:
        self._open = self._is_open()
        super()._begin()

    def _enqueue(self) -> None:
        self._complete(self._started or self._start())
        # Nothing of the next draft depends on the grammar: the card begins it while the host reads this step's result.
        self._started = None if self.session.host_drafter else self._start()

    def _start(self) -> Started:
        """Draft and build the tree of the next step. A plain step's pass begins too, unless the grammar may have tokens
        for it that are forced: those of the first step that is no longer open are drawn one by one."""
        knobs, self._next_knobs = self._next_knobs, None
        if knobs is None:
            self._decide(self._requested[0])
        else:
            super().take(knobs)
        began = time.perf_counter()
        proposal = self._propose()
        proposing_ms = (time.perf_counter() - began) * 1e3
        session, steps, kind = self.session, self.steps, self._kind(proposal)
        with session.device.stream():
            self._catch_up(kind)
            steps.drafting(kind)()
            arrived = None
            if self.decision.mode != "plain":
                session.state.fetch()
                arrived = session.device.mark()
            whole = self._open or self._weights is not None  # by value, only the best of those built are verified
            passed = self.knobs.mode == "plain" or (self._open and self.decision.mode == "plain" and proposal is None)
            started = Started(kind, whole, arrived, self.knobs, self.decision, proposal, proposing_ms, passed)
            if passed:
                steps.passing(started.drawn((1,), session.head.vocab))()
        return started

    def _complete(self, started: Started) -> None:
        """Run the pass, and queue the draws within the grammar."""
        session, steps, vocab = self.session, self.steps, self.session.head.vocab
        was_open = self._open
        if not started.passed:
            self._open = self._is_open()
        with session.device.stream():
            decision, widths = started.decision, started.kind.widths
            if started.passed:
                widths = widths_of(1)
                tree = self._drafted(started)
            elif self._open and started.whole:
                steps.passing(started.drawn(widths, vocab))()
                tree = self._drafted(started, live=True)
            else:
                tree, decision = self._edited(started)
                widths = widths_of(len(tree))
                steps.passing(started.drawn(widths, vocab))()
            masked = self._write_masks(tree)
            steps.accepting(started.drawn(widths, vocab, masked=masked), masked=masked)()
            if started.passed and started.knobs.mode != "plain":
                self._open = self._is_open()  # now: the card must not wait for it
            if self._open != was_open:
                self._write_knobs()
                session.state.push_knobs()  # after the draft and the draws of this step
            self._pending += max(tree.depths) + 1
            decision = replace(decision, reason=decision.reason + NOTE)
            mark = session.device.mark()
        queued = Queued(mark, started.knobs, decision, started.proposal, started.proposing_ms, started.kind.text)
        self._queue.append(queued)

    def _edited(self, started: Started) -> tuple[Tree, Decision]:
        """The tree that the grammar leaves, sent to the card."""
        session, knobs = self.session, started.knobs
        drafted = self._drafted(started)
        deepest = deepest_draft(tokens_left(knobs, len(self.answer), self._capacity, self._halt))
        limits = deepest, session.max_drafted
        tree, decision = constrained(drafted, self.constraint, knobs, started.decision, *limits)
        if tree != drafted:
            if started.arrived is None:
                session.state.pull()
            session.state.send_tree(tree)
            self.steps.copied.array[self._read % STEP_SLOTS] = sum(1 << node for node in tree.copied)
        return tree, decision

    def _drafted(self, started: Started, *, live: bool = False) -> Tree:
        """The tree that the card has built; `live`: the nodes that passes run, without what was built beside them."""
        if started.arrived is None:
            return Tree((self.answer[-1],), (-1,), (0,), (0.0,), (0.0,))
        started.arrived()
        self.session.state.receive()
        copied = int(self.steps.copied.array[self._read % STEP_SLOTS]) if started.kind.text else 0
        return self.session.state.built_tree(copied, live=live)

    def _write_masks(self, tree: Tree) -> bool:
        """Write what may be drawn after each node. False, and nothing, where that is anything after all of them."""
        masks: dict[int, Mask] = {}

        def write(node: int, path: Sequence[int]) -> bool:
            if node and not self.constraint.admits(path[:-1], path[-1]):
                return False  # never drawn, so nothing is drawn below it
            if (mask := self.constraint.allowed(path)) is not None:
                masks[node] = mask
            return True

        depth_first(tree, write)
        if masks:
            rows = self.steps.masks.array
            for node in range(len(tree)):
                rows[node] = masks[node][: rows.shape[1]] if node in masks else ALL
        return bool(masks)

    def _collect(self, queued: Queued) -> StepEvent | None:
        event = super()._collect(queued)
        if event is None:
            return None
        # The values that the card learned are those of the tree before it was edited.
        return replace(event, tree=replace(event.tree, values=()), choice=None)
