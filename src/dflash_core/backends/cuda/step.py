"""One answer on the card: the host queues the graphs of steps ahead, and reads finished steps from a ring in pinned
memory. The card never waits for the host.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dflash_core.backends.base import AnswerOptions
from dflash_core.backends.cuda.launch import Run
from dflash_core.backends.cuda.layers.head import MAX_LISTED
from dflash_core.backends.cuda.sequence_passes import SequencePasses
from dflash_core.backends.cuda.state import (
    FIRST_KNOB,
    MAX_DEPTH,
    MAX_NODES,
    MAX_STOP_IDS,
    MAX_WIDTH,
    PASS_ROWS,
    STEP_SLOTS,
    StopCode,
    begin_turn,
    drafts_finite,
    drawn,
    step_event,
    write_knobs,
)
from dflash_core.backends.cuda.step_graphs import StepKind, Steps
from dflash_core.backends.decoder import AnswerDecoder, step_drafts, tokens_left
from dflash_core.drafters.ngram_table import NgramTable
from dflash_core.errors import Code, NumericsError, UnsupportedError, not_finite
from dflash_core.events import EffectiveMode, StepEvent, Stop
from dflash_core.knobs import Knobs, check_tree_width
from dflash_core.policy.base import Decision
from dflash_core.tree import Candidates

AHEAD = 2  # steps that run or are queued while the host reads the previous step's result
CALM_MS = 0.5  # more where steps are short: the card has as much work while another thread runs Python
BUSY_MS = 2.0  # the same before a decision that takes the host long
MAX_AHEAD = STEP_SLOTS - 2  # the slots of the previous result and of the one that is read are in use
MAX_IN_FLIGHT = AHEAD * (MAX_DEPTH + 1)  # tokens that queued steps may commit; LAG of guards is more, by a test


def _followed(knobs: Knobs, decision: Decision, limit: int) -> tuple[Knobs, Decision]:
    """`knobs` and a policy's decision within the limits of a card and of trees of `limit` drafted tokens, with notes on
    differences in the reason."""
    notes = list[str]()
    if knobs.temperature > 0 and knobs.top_k > MAX_LISTED and knobs.top_p < 1:
        notes.append(f"top_p with a top_k over {MAX_LISTED} reads the whole vocabulary")
    budget = min(decision.budget, limit)
    if budget < decision.budget:
        full = limit + 1 == MAX_NODES
        why = f"a tree on a card has at most {MAX_NODES}" if full else f"there is memory for trees of {limit + 1}"
        notes.append(f"budget {limit}: {why} nodes with its root")
        knobs = knobs.at_most(limit)
    return knobs, replace(decision, budget=budget, reason="; ".join([decision.reason, *notes]))


@dataclass(frozen=True, slots=True)
class Queued:
    """A queued step: how to wait for its end, its settings, and what the host proposed for it. `longest`: the most
    positions that it commits."""

    wait: Run
    knobs: Knobs
    decision: Decision
    proposal: Candidates | None = None
    proposing_ms: float = 0.0
    text: bool = False
    longest: int = 0


class CudaDecoder(AnswerDecoder):
    """Raises KnobError for settings that the card does not support.

    A drafter on the host needs the tokens that the previous step committed, so its steps are not queued ahead.
    """

    def __init__(self, session: SequencePasses, steps: Steps, options: AnswerOptions) -> None:
        super().__init__(session, options)
        self.session, self.steps = session, steps
        if len(self.stop_ids) > MAX_STOP_IDS:
            raise UnsupportedError(
                f"{len(self.stop_ids)} tokens that end an answer, expected at most {MAX_STOP_IDS} on a card; "
                "name fewer, or run it on the CPU",
                code=Code.NOT_ON_THIS_DEVICE,
            )
        check_tree_width(self.knobs, MAX_WIDTH)
        self._requested = self.knobs, self.policy.next(self.knobs)
        self._weights = self.policy.weights(self.knobs)
        self.knobs, self.decision = _followed(*self._requested, session.max_drafted)
        deepest = min(MAX_AHEAD, MAX_IN_FLIGHT // max(session.device_block, 1))
        self._max_ahead = 1 if session.host_drafter else deepest
        self._step_ms = math.inf  # of the newest step
        self._queue: deque[Queued] = deque()
        self._read = 0
        self._last: npt.NDArray[np.void] | None = None
        self._stored_kind: tuple[Decision, StepKind] | None = None  # of the next step, while its decision stands
        self._pending = 0  # committed positions that the drafter on the card does not know, of steps that were read
        self._unknown = 0  # queued steps, the newest ones, whose positions it does not know either
        self._begun = self._over = self._halted = False

    @property
    def ahead(self) -> bool:
        return bool(self._queue)

    @property
    def halted(self) -> bool:
        return self._halted

    def halt_at(self, tokens: int | None) -> None:
        if tokens == self._halt:
            return
        self._halt = tokens
        if self._begun:
            with self.session.device.stream():
                self.session.state.host["halt_at"] = tokens or 0
                self.session.state.push("halt_at", "context_length")

    def go_on(self) -> None:
        """Queued steps do nothing, and the next step begins like the first of a turn."""
        self.finish()
        self._halt, self._halted, self._over = None, False, False
        self._read, self._last = 0, None
        self.policy.injected(())  # steps that it decided are gone

    def _went_on(self, stop: Stop | None) -> None:
        self._over, self._halted = stop is not None, stop is None and len(self.answer) == self._halt

    def take(self, knobs: Knobs) -> None:
        """Use other settings from the next step that is not queued yet."""
        width = min(knobs.tree_width, MAX_WIDTH)
        self._decide(self._requested[0].in_mid_turn(knobs.replace(tree_width=width)))

    def step(self) -> StepEvent:
        """The next finished step."""
        if not self._begun:
            self._begin()
        # Each step commits a token at least: none is queued behind the answer's end.
        left = tokens_left(self.knobs, len(self.answer), self._capacity, self._halt)
        covering = math.ceil((BUSY_MS if self.policy.busy_soon else CALM_MS) / self._step_ms)
        while len(self._queue) < max(min(max(covering, AHEAD), self._max_ahead, left), 1):
            self._enqueue()
        self.policy.spare()
        event = self._collect(self._queue.popleft())
        assert event is not None, "a step that was not cancelled must write a result"
        return event

    def finish(self) -> Sequence[StepEvent]:
        """Cancel the queued steps; returns those that finished before they could be cancelled. The state includes
        them."""
        events: list[StepEvent] = []
        if self._begun:
            self.steps.cancel.array[0] = 1
            while self._queue:
                queued = self._queue.popleft()
                event = None if self._over else self._collect(queued)
                if event is not None:
                    events.append(event)
            with self.session.device.stream():
                self.session.device.synchronize()
                self.session.state.pull()
            self.steps.cancel.array[0] = 0
            self._begun, self._over = False, True
        return events

    def _begin(self) -> None:
        session = self.session
        with session.device.stream():
            session.update_drafter()
            if session.drafter is not None:
                session.drafter.caches.begin_turn(session.length)
            state = session.state.host
            begin_turn(
                state,
                self.knobs,
                answer=self.answer,
                prompt_length=self.prompt_length,
                context_length=self.context_length,
                stop_ids=sorted(self.stop_ids),
            )
            state["halt_at"] = self._halt or 0
            self._write_knobs()
            self.steps.cancel.array[0] = 0
            self.steps.ring.array["ready"] = 0
            self.steps.graph(self._kind())
            if session.target.cache is not None:
                session.target.cache.before_turn()
            session.state.push()
        self._begun, self._pending, self._unknown, self._stored_kind = True, 0, 0, None

    def _decide(self, knobs: Knobs) -> None:
        """Get the decision for the next step. If it has changed, write it to the card, after the queued steps."""
        requested, weights = (knobs, self.policy.next(knobs)), self.policy.weights(knobs)
        if requested == self._requested and weights is self._weights:
            return  # the usual case without a policy; it must be fast, as steps of a small model are short
        before, built_by = self._card_settings, self._weights
        self._requested, self._weights = requested, weights
        self.knobs, self.decision = _followed(*requested, self.session.max_drafted)
        if self._begun and (self._card_settings != before or weights is not built_by):
            with self.session.device.stream():
                self._write_knobs()
                self.session.state.push_knobs()

    @property
    def _card_settings(self) -> tuple[Knobs, EffectiveMode, int, int]:
        """The part of a decision that is written to the card, without the reason, which changes at every `auto`
        step."""
        decision = self.decision
        return self.knobs, decision.mode, decision.budget, decision.depth

    @property
    def _drafting(self) -> Knobs:
        """The settings with which the next step drafts."""
        return self.decision.drafting(self.knobs)

    def _write_knobs(self) -> None:
        knobs, weights, rows = self._drafting, self._weights, self.decision.budget + 1
        budget = self._fixed_budget if weights is None else self.decision.budget
        block = 1 + self.session.drafted(knobs)
        write_knobs(self.session.state.host, knobs, self.decision.mode, block, budget, weights, rows)

    @property
    def _fixed_budget(self) -> int:
        """Nodes below the root of a tree that is not built by value."""
        return max(self.decision.budget, 1)

    def _next_kind(self, proposal: Candidates | None) -> StepKind:
        """The kind of the next step. It is stored as long as the decision stands: steps of a small model are short."""
        if proposal is not None:
            return self._kind(proposal)
        if self._stored_kind is None or self._stored_kind[0] is not self.decision:
            self._stored_kind = self.decision, self._kind()
        return self._stored_kind[1]

    def _kind(self, proposal: Candidates | None = None) -> StepKind:
        drafter, drafted = self.session.drafter, self.decision.budget
        if drafter is None:
            depths, width = proposal.tokens.shape if proposal is not None else (0, 1)
            drafted = min(drafted, depths) if width == 1 or not depths else drafted
        drafts = drafter is not None and self.decision.mode != "plain"
        passes = drafter.passes(self._drafting) if drafter is not None else 1
        kind = StepKind.holding(
            drafted, self.knobs, self.session.head.vocab, drafts=drafts, passes=passes, log_probs=self.log_probs
        )
        return replace(kind, windowed=bool(self.session.window.size), text=drafts and self._text is not None)

    @property
    def _text(self) -> NgramTable | None:
        """The text from which the next step's tree copies successors."""
        if self._weights is None or self.session.memory.text is None:
            return None
        return self.policy.copies_from(self._requested[0])

    def _propose(self) -> Candidates | None:
        """What a drafter on the host proposes for the next step; the card builds its tree from it."""
        drafter = self.session.host_drafter
        if drafter is None or self.decision.mode == "plain":
            return None
        try:
            proposal = drafter.propose(self.answer[-1], self.knobs)
        except NumericsError as error:
            self.policy.failed(drafter.capabilities.kind, error)
            self._decide(self._requested[0])
            return None
        state = self.session.state
        widest = 1 if self.decision.mode == "chain" else MAX_WIDTH
        used = Candidates(proposal.tokens[:MAX_DEPTH, :widest], proposal.log_probs[:MAX_DEPTH, :widest])
        depths, width = used.tokens.shape
        state.host["candidate"][:depths, :width] = used.tokens
        state.host["candidate_log_prob"][:depths, :width] = used.log_probs
        state.host["draft_depth"], state.host["width"] = depths, width
        with self.session.device.stream():
            state.push("candidate", FIRST_KNOB)
            state.push_knobs()
        return used

    def _enqueue(self) -> None:
        self._decide(self._requested[0])
        began = time.perf_counter()
        proposal = self._propose()
        proposing_ms = (time.perf_counter() - began) * 1e3
        kind = self._next_kind(proposal)
        with self.session.device.stream():
            graph = self.steps.graph(kind)
            if (cache := self.session.target.cache) is not None:
                cache.between_steps()
            self._catch_up(kind)
            graph()
            mark = self.session.device.mark()
            longest = self.steps.longest(kind)
            self._queue.append(Queued(mark, self.knobs, self.decision, proposal, proposing_ms, kind.text, longest))
            self._unknown += 1
        self.policy.queued()

    def _catch_up(self, kind: StepKind) -> None:
        """Before a step of that kind: bring the text on the card up to date, and the drafter's cache where the step
        cannot. A draft takes in a block of pending positions itself."""
        if kind.text and (copy := self.session.memory.text) is not None and (text := self._text) is not None:
            copy.follow(text)
        self.session.before_step(len(self._queue))
        if (drafter := self.session.drafter) is None:
            return
        newest = itertools.islice(reversed(self._queue), self._unknown)
        pending = self._pending + sum(queued.longest for queued in newest)
        if drains := pending > (drafter.block if kind.drafts else drafter.max_pending - PASS_ROWS):
            self.steps.draining()()
        if drains or kind.drafts:
            self._pending = self._unknown = 0

    def _collect(self, queued: Queued) -> StepEvent | None:
        """Wait for a step and read its slot; None if it ran after the end of the answer and did nothing."""
        queued.wait()
        # A view, valid until STEP_SLOTS more steps have run. With a scalar, reading each field would copy the record.
        slot = self.steps.ring.array[self._read % STEP_SLOTS, ...]
        if int(slot["ready"]) != self._read + 1:
            return None
        if int(slot["stop"]) == StopCode.BROKEN:
            raise not_finite("target", self.session.length)
        copied = int(self.steps.copied.array[self._read % STEP_SLOTS]) if queued.text else 0
        reason = self.policy.watch.reason(queued.decision, queued.knobs)
        event = step_event(slot, self._last, queued.decision.mode, reason, queued.knobs, copied)
        drafted = self.session.capabilities if queued.decision.mode != "plain" else None
        if drafted is not None and not drafts_finite(slot, queued.knobs):
            # What was accepted is the target's own choice; steps that are queued already end the same way.
            self.policy.failed(drafted.kind, not_finite("drafter", event.length - len(event.tokens)))
        if queued.proposal is not None:
            times, host = event.stages, max(event.stages.host - queued.proposing_ms, 0.0)
            times = replace(times, draft=times.draft + queued.proposing_ms, host=host)
            event = replace(event, drafts=step_drafts(queued.proposal), stages=times)
        if (record := self.log_probs) is not None:
            nodes = self.steps.log_probs.array[self._read % STEP_SLOTS, list(event.tree.accepted)]
            record.see_all(event.tokens, drawn(nodes, event.tokens, record.top))
        if self._unknown > len(self._queue):
            self._pending, self._unknown = self._pending + len(event.tokens), len(self._queue)
        self._read, self._last = self._read + 1, slot
        self._halted = int(slot["stop"]) == StopCode.HALTED
        self._over = event.stop is not None or self._halted
        self._step_ms = max(event.stages.total, 0.1)
        if self.session.host_drafter is not None:
            self.session.host_drafter.observe([self.answer[-1], *event.tokens[:-1]], None)
        self._extend(event.tokens)
        self.session.state.host["length"] = event.length
        self._learn(event)
        return event

    def _learn(self, event: StepEvent) -> None:
        self.policy.observe(event)
