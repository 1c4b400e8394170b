"""A constrained answer on the card. The host edits each tree, and writes what may be drawn after each node while the
card runs the pass; so one step runs at a time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dflash_core.backends.base import Logits
from dflash_core.backends.cuda.layers.draws import all_listed
from dflash_core.backends.cuda.sequence_passes import SequencePasses
from dflash_core.backends.cuda.state import PASS_ROWS, STEP_SLOTS
from dflash_core.backends.cuda.step import CudaDecoder, Queued
from dflash_core.backends.cuda.step_graphs import StepKind, Steps, widths_of
from dflash_core.backends.decoder import SPARE, constrained
from dflash_core.constraints.base import Constraint, masked
from dflash_core.events import StepEvent, Stop
from dflash_core.knobs import Knobs
from dflash_core.policy.base import Policy
from dflash_core.tree import Tree, deepest_draft

NOTE = "; within a grammar"
ALL = np.uint32(0xFFFFFFFF)


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
        self._pending = 0  # committed positions that the drafter on the card does not know yet

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

    def _begin(self) -> None:
        super()._begin()
        self._pending = 0

    def _enqueue(self) -> None:
        self._decide(self._asked[0])
        began = time.perf_counter()
        proposal = self._propose()
        proposing_ms = (time.perf_counter() - began) * 1e3
        session, steps = self.session, self.steps
        kind = self._kind(proposal)
        with session.device.stream():
            drafted = self._drafted(kind)
            deepest = deepest_draft(self._left())
            tree, decision = constrained(
                drafted, self.constraint, self.knobs, self.decision, deepest, session.max_drafted
            )
            if tree != drafted:
                session.state.send_tree(tree)
                steps.copied.array[self._read % STEP_SLOTS] = sum(1 << node for node in tree.copied)
            listed = all_listed(self.knobs, session.head.vocab)
            drawn = StepKind(widths_of(len(tree)), False, True, windowed=kind.windowed, listed=listed)
            steps.passing(drawn)()
            self._write_masks(tree)
            steps.accepting(drawn)()
            decision = replace(decision, reason=decision.reason + NOTE)
            mark = session.device.mark()
            self._queue.append(Queued(mark, self.knobs, decision, proposal, proposing_ms, kind.text))

    def _drafted(self, kind: StepKind) -> Tree:
        """Draft, and return the tree that the card has built."""
        session, steps = self.session, self.steps
        if kind.text and session.memory.text is not None and (text := self._text) is not None:
            session.memory.text.follow(text)
        if (drafter := session.drafter) is not None:
            drafter.before_step(0)
            if self._pending > (drafter.block if kind.drafts else drafter.max_pending - PASS_ROWS):
                steps.drain()
                self._pending = 0
            if kind.drafts:
                self._pending = 0
        steps.drafting(kind)()
        if self.decision.mode == "plain":
            return Tree((self.answer[-1],), (-1,), (0,), (0.0,), (0.0,))
        session.state.pull()
        return session.state.built_tree(int(steps.copied.array[self._read % STEP_SLOTS]) if kind.text else 0)

    def _left(self) -> int:
        """Tokens until the answer ends or halts, if it does not before."""
        end = min(self.knobs.max_tokens, self.context_length - self._prompt_length)
        return (end if self._halt is None else min(end, self._halt)) - len(self.answer)

    def _write_masks(self, tree: Tree) -> None:
        """What may be drawn after each node. Nothing that follows a stop token counts."""
        rows = self.steps.masks.array
        waiting = list[tuple[int, tuple[int, ...]]]([(0, ())])
        children: list[list[int]] = [[] for _ in tree.tokens]
        for node, parent in enumerate(tree.parents[1:], 1):
            children[parent].append(node)
        # Depth first: consecutive nodes share most of their path.
        while waiting:
            node, path = waiting.pop()
            mask = None if self.stop_ids.intersection(path[-1:]) else self.constraint.allowed(path)
            rows[node] = ALL if mask is None else mask[: rows.shape[1]]
            waiting += [(child, (*path, tree.tokens[child])) for child in reversed(children[node])]

    def _collect(self, queued: Queued) -> StepEvent | None:
        event = super()._collect(queued)
        if event is None:
            return None
        self._pending += len(event.tokens)
        # The values that the card learned are those of the tree before it was edited.
        return replace(event, tree=replace(event.tree, values=()), choice=None)
