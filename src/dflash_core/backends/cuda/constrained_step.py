"""A constrained answer on the card. The host edits each tree, and writes what may be drawn after each node while the
card runs the pass; so one pass runs at a time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dflash_core.backends.base import Logits
from dflash_core.backends.cuda.layers.draws import all_listed
from dflash_core.backends.cuda.sequence_passes import SequencePasses
from dflash_core.backends.cuda.state import PASS_ROWS, STEP_SLOTS
from dflash_core.backends.cuda.step import CudaDecoder, Queued
from dflash_core.backends.cuda.step_graphs import StepKind, Steps, widths_of
from dflash_core.backends.decoder import SPARE, constrained, tokens_left
from dflash_core.constraints.base import Constraint, masked
from dflash_core.constraints.drafts import depth_first
from dflash_core.events import StepEvent, Stop
from dflash_core.knobs import Knobs
from dflash_core.policy.base import Decision, Policy
from dflash_core.tree import Candidates, Tree, deepest_draft

NOTE = "; within a grammar"
ALL = np.uint32(0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class Started:
    """A step whose draft the card has begun, with its settings."""

    kind: StepKind
    knobs: Knobs
    decision: Decision
    proposal: Candidates | None
    proposing_ms: float

    @property
    def passed(self) -> bool:
        """Whether its pass has begun too: the tree is the root alone, and stays so."""
        return self.knobs.mode == "plain"

    def drawn(self, nodes: int, vocab: int) -> StepKind:
        """The kind of its pass over `nodes` nodes and of its draws."""
        listed = all_listed(self.knobs, vocab)
        return StepKind(widths_of(nodes), False, True, windowed=self.kind.windowed, listed=listed)


class ConstrainedCudaDecoder(CudaDecoder):
    """A `CudaDecoder` whose answer conforms to a constraint. Raises GrammarError where that cannot be followed on."""

    def __init__(
        self,
        session: SequencePasses,
        steps: Steps,
        knobs: Knobs,
        stop_ids: frozenset[int],
        context_length: int,
        policy: Policy | None,
        constraint: Constraint,
    ) -> None:
        # A stop token ends the answer whatever the knobs say: nothing may follow it.
        super().__init__(session, steps, knobs.replace(ignore_eos=False), stop_ids, context_length, policy)
        self.constraint = constraint
        self._ahead = 1
        self._pending = 0  # as many committed positions at most does the drafter on the card not know yet
        self._started: Started | None = None
        self._taken: Knobs | None = None

    def put(self, token: int) -> Stop | None:
        self.constraint.drop()
        return super().put(token)

    def _extend(self, tokens: Sequence[int]) -> None:
        super()._extend(tokens)
        self.constraint.add(tokens)

    def _masked(self, logits: Logits) -> Logits:
        return masked(logits, self.constraint.allowed(()))

    @property
    def _fixed_budget(self) -> int:
        return SPARE * super()._fixed_budget  # some are ruled out

    def _learn(self, event: StepEvent) -> None:
        self.policy.said(event.tokens)  # what a grammar leaves of a tree shows nothing about the drafter

    def take(self, knobs: Knobs) -> None:
        self._taken = knobs  # the step that has begun ends with the settings that it began with

    def finish(self) -> Sequence[StepEvent]:
        if self._begun and self._started is not None and self._started.passed and not self._over:
            self.steps.cancel.array[0] = 1
            self._complete(self._started)  # its pass has changed the states
        self._started = None
        return super().finish()

    def _begin(self) -> None:
        super()._begin()
        self._pending = 0

    def _enqueue(self) -> None:
        self._complete(self._started or self._start())
        # Nothing of the next draft depends on the grammar: the card begins it while the host reads this step's result.
        self._started = None if self.session.host_drafter else self._start()

    def _start(self) -> Started:
        """Draft and build the tree of the next step. In plain decoding the pass needs nothing else, and begins too."""
        taken, self._taken = self._taken, None
        if taken is None:
            self._decide(self._asked[0])
        else:
            super().take(taken)
        began = time.perf_counter()
        proposal = self._propose()
        proposing_ms = (time.perf_counter() - began) * 1e3
        session, steps, kind = self.session, self.steps, self._kind(proposal)
        with session.device.stream():
            if kind.text and session.memory.text is not None and (text := self._text) is not None:
                session.memory.text.follow(text)
            if (drafter := session.drafter) is not None:
                drafter.before_step(len(self._queue))
                if self._pending > (drafter.block if kind.drafts else drafter.max_pending - PASS_ROWS):
                    steps.drain()
                    self._pending = 0
                if kind.drafts:
                    self._pending = 0
            steps.drafting(kind)()
            started = Started(kind, self.knobs, self.decision, proposal, proposing_ms)
            if started.passed:
                steps.passing(started.drawn(1, session.head.vocab))()
        return started

    def _complete(self, started: Started) -> None:
        """Edit the tree, run the pass, and queue the draws within the grammar."""
        session, steps, knobs = self.session, self.steps, started.knobs
        with session.device.stream():
            drafted = self._drafted(started)
            capacity = self.context_length - self._prompt_length
            deepest = deepest_draft(tokens_left(knobs, len(self.answer), capacity, self._halt))
            limits = deepest, session.max_drafted
            tree, decision = constrained(drafted, self.constraint, knobs, started.decision, *limits)
            if tree != drafted:
                if started.decision.mode == "plain":
                    session.state.pull()
                session.state.send_tree(tree)
                steps.copied.array[self._read % STEP_SLOTS] = sum(1 << node for node in tree.copied)
            drawn = started.drawn(len(tree), session.head.vocab)
            if not started.passed:
                steps.passing(drawn)()
            self._write_masks(tree)
            steps.accepting(drawn)()
            self._pending += max(tree.depths) + 1
            decision = replace(decision, reason=decision.reason + NOTE)
            mark = session.device.mark()
        self._queue.append(Queued(mark, knobs, decision, started.proposal, started.proposing_ms, started.kind.text))

    def _drafted(self, started: Started) -> Tree:
        """The tree that the card has built."""
        if started.decision.mode == "plain":
            return Tree((self.answer[-1],), (-1,), (0,), (0.0,), (0.0,))
        self.session.state.pull()
        copied = int(self.steps.copied.array[self._read % STEP_SLOTS]) if started.kind.text else 0
        return self.session.state.built_tree(copied)

    def _write_masks(self, tree: Tree) -> None:
        """What may be drawn after each node."""
        rows = self.steps.masks.array

        def write(node: int, path: Sequence[int]) -> bool:
            mask = self.constraint.allowed(path)
            rows[node] = ALL if mask is None else mask[: rows.shape[1]]
            return True

        depth_first(tree, write)

    def _collect(self, queued: Queued) -> StepEvent | None:
        event = super()._collect(queued)
        if event is None:
            return None
        # The values that the card learned are those of the tree before it was edited.
        return replace(event, tree=replace(event.tree, values=()), choice=None)
