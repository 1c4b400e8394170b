"""Speculative steps that the card runs without the host: draft, tree, verify, accept and commit as one graph.

The host queues graphs ahead and reads finished steps from a ring in pinned memory; the card never waits for the host.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dflash_core.backends.base import Logits
from dflash_core.backends.cuda.device_text import BLOCKS, DEFINES
from dflash_core.backends.cuda.launch import NO_INPUTS, NULL, WARP, Argument, Launch, Run
from dflash_core.backends.cuda.layers.draws import MOST_LISTED, all_listed
from dflash_core.backends.cuda.state import (
    FIRST_KNOB,
    MAX_DEPTH,
    MAX_NODES,
    MAX_STOP_IDS,
    MAX_WIDTH,
    PASS_ROWS,
    RING_SLOT,
    STEP_SLOTS,
    StopCode,
    begin_turn,
    drafts_finite,
    step_event,
    width_for,
    write_knobs,
)
from dflash_core.backends.decoder import said, step_drafts, stop_at
from dflash_core.drafters.base import check_finite
from dflash_core.drafters.text_table import TextTable
from dflash_core.errors import Code, NumericsError, UnsupportedError, not_finite
from dflash_core.events import EffectiveMode, GuardEvent, StepEvent, Stop
from dflash_core.knobs import Knobs, check_tree_width
from dflash_core.policy.base import Decision, Policy
from dflash_core.policy.depth import at_depth
from dflash_core.policy.late import BUILT
from dflash_core.policy.watched import Watched
from dflash_core.progress import Progress
from dflash_core.sampling import Sampler
from dflash_core.tree import Candidates

if TYPE_CHECKING:
    from dflash_core.backends.cuda.session import CudaSession

DRAFT_VOCABULARY = Knobs().draft_vocabulary
TREE_THREADS = 4 * WARP
AHEAD = 2  # steps that run or are queued while the host reads the previous step's result


@dataclass(frozen=True, slots=True)
class StepKind:
    """The key of a graph.

    `widths`: rows of each target pass; `drafts`: whether the drafter proposes inside the step; `sampled`: sampling
    instead of greedy decoding; `forced`: the accepted paths are given, see `Steps.force`; `passes`: passes of the
    drafter; `vocabulary`: tokens that it chooses from, 0 for all; `windowed`: the target's full-attention layers see
    only a window; `text`: the tree copies successors from the conversation's text; `listed`: of a sampled step, see
    `draws.all_listed`.
    """

    widths: tuple[int, ...]
    drafts: bool
    sampled: bool
    forced: bool = False
    passes: int = 1
    vocabulary: int = DRAFT_VOCABULARY
    windowed: bool = False
    text: bool = False
    listed: bool = False

    @staticmethod
    def holding(
        drafted: int, knobs: Knobs, vocab: int, *, drafts: bool, forced: bool = False, passes: int = 1
    ) -> StepKind:
        """The smallest graph for trees of `drafted` nodes below the root, and for draws from `vocab` tokens by `knobs`;
        `passes`: passes of the drafter."""
        nodes = 1 + drafted
        widths = tuple(width_for(min(PASS_ROWS, nodes - node0)) for node0 in range(0, nodes, PASS_ROWS))
        vocabulary = knobs.draft_vocabulary if drafts else DRAFT_VOCABULARY
        sampled = not Sampler(knobs).greedy
        listed = sampled and all_listed(knobs, vocab)
        return StepKind(widths, drafts, sampled, forced, passes if drafts else 1, vocabulary, listed=listed)

    @property
    def nodes(self) -> int:
        return PASS_ROWS * (len(self.widths) - 1) + self.widths[-1]


class Steps:
    """Graphs of a session's steps, and the pinned memory to which they write their results."""

    def __init__(self, session: CudaSession) -> None:
        # A weak reference: the session refers to this object, and its memory must be freed with its last reference.
        self._session, self.device = weakref.ref(session), session.device
        self.ring = self.device.pinned(STEP_SLOTS, RING_SLOT)
        self.cancel = self.device.pinned(1, np.int32)
        self.copied = self.device.pinned(STEP_SLOTS, np.uint64)  # per slot, a bit for each node copied from the text
        self.trace: Tensor | None = None
        self._graphs: dict[StepKind, Run] = {}
        self._drain: Run | None = None

    @property
    def session(self) -> CudaSession:
        """The session that these steps belong to."""
        session = self._session()
        assert session is not None, "the session of these steps was deleted"
        return session

    def force(self, paths: Sequence[Sequence[int]] | None) -> None:
        """Make the steps accept these paths of nodes below the root, one per step and from the start again, whatever
        the target draws.

        For measurements: KV, states and features change as if the target had drawn these nodes. None ends it.
        """
        self._graphs = {kind: graph for kind, graph in self._graphs.items() if not kind.forced}
        if paths is None:
            self.trace = None
            return
        table = np.zeros((len(paths), 1 + MAX_DEPTH), np.int32)
        for row, path in zip(table, paths, strict=True):
            row[0], row[1 : 1 + len(path)] = len(path), path
        self.trace = torch.from_numpy(table).to(self.device.torch_device)

    def graph(self, kind: StepKind, progress: Progress | None = None) -> Run:
        """The graph of a kind, compiled and recorded on first use."""
        if kind not in self._graphs:
            assert kind.nodes <= self.session.memory.capacity, "a larger tree than the sequence's memory holds"
            run = self.device.bind(self.launches(kind), progress)
            self._graphs[kind] = self.device.record(f"step {kind.widths}", run)
        return self._graphs[kind]

    def drain(self) -> None:
        """Add everything pending to the drafter's cache, after the queued steps."""
        if self._drain is None:
            drafter = self.session.drafter
            assert drafter is not None, "the session has no drafter on the card"
            self._drain = self.device.bind(drafter.drain_launches())
        self._drain()

    def launches(self, kind: StepKind) -> list[Launch]:
        """The launches of one step, from the newest token to the ring."""
        session = self.session
        head, state = session.head.first(kind.vocabulary), session.state.pointer
        defines, inputs = session.drafter.tree_inputs if kind.drafts and session.drafter else NO_INPUTS
        blocks = 1
        if kind.text:
            assert session.memory.text is not None, "the session holds no text for trees to copy from"
            own = np.uint64(self.copied.address), np.int32(STEP_SLOTS)
            blocks, defines, inputs = BLOCKS, DEFINES, (*session.memory.text.inputs, *own)
        return [
            Launch("tree.cu", "step_begin", {}, 1, WARP, [session.stamps]),
            *(session.drafter.propose_launches(head, kind.passes) if kind.drafts and session.drafter else ()),
            Launch("tree.cu", "tree_build", defines, blocks, TREE_THREADS, [state, session.stamps, *inputs]),
            *(launch for place, width in enumerate(kind.widths) for launch in self._verify(kind, place, width)),
            self._accept(kind),
            *session.commit_launches(min(kind.nodes, max(session.device_block, 1)) if kind.drafts else 1),
        ]

    def _verify(self, kind: StepKind, place: int, width: int) -> list[Launch]:
        session, node0 = self.session, PASS_ROWS * place
        head, acts = session.head, session.memory.buffers.acts
        forward = session.pass_launches(width, node0, windowed=kind.windowed)
        if not kind.sampled:
            return [*forward, *head.argmax_launches(acts, width, node0)]
        return [*forward, *head.sample_launches(acts, width, node0, listed=kind.listed)]

    def _accept(self, kind: StepKind) -> Launch:
        session, trace = self.session, self.trace if kind.forced else None
        args: list[Argument] = [
            session.state.pointer, np.uint64(self.ring.address), np.int32(STEP_SLOTS), np.uint64(self.cancel.address),
            NULL if trace is None else trace, np.int32(0 if trace is None else len(trace)), session.stamps,
        ]  # fmt: skip
        return Launch("accept.cu", "accept", {}, 1, MAX_NODES, args)


def _followed(knobs: Knobs, decision: Decision, most: int) -> tuple[Knobs, Decision]:
    """`knobs` and a policy's decision within the limits of a card and of trees of `most` drafted tokens, with notes on
    differences in the reason."""
    notes = list[str]()
    if knobs.temperature > 0 and knobs.top_k > MOST_LISTED and knobs.top_p < 1:
        notes.append(f"top_p with a top_k over {MOST_LISTED} reads the whole vocabulary")
    budget = min(decision.budget, most)
    if budget < decision.budget:
        full = most + 1 == MAX_NODES
        why = f"a tree on a card has at most {MAX_NODES}" if full else f"there is memory for trees of {most + 1}"
        notes.append(f"budget {most}: {why} nodes with its root")
        knobs = knobs.at_most(most)
    return knobs, replace(decision, budget=budget, reason="; ".join([decision.reason, *notes]))


@dataclass(frozen=True, slots=True)
class Queued:
    """A queued step: how to wait for its end, its settings, and what the host proposed for it."""

    wait: Run
    knobs: Knobs
    decision: Decision
    proposal: Candidates | None = None
    proposing_ms: float = 0.0
    text: bool = False


class CudaDecoder:
    """Implements `backends.base.StepDecoder` on the card. Raises KnobError for settings that the card does not support.

    A drafter on the host needs the tokens that the previous step committed, so its steps are not queued ahead.
    """

    def __init__(
        self,
        session: CudaSession,
        knobs: Knobs,
        stop_ids: frozenset[int],
        context_length: int,
        policy: Policy | None = None,
    ) -> None:
        """`policy`: chooses the mode and the budget of each step; without one, the settings decide."""
        self.session, self.steps = session, session.steps
        self.stop_ids = frozenset[int]() if knobs.ignore_eos else stop_ids
        self.context_length = context_length
        if len(self.stop_ids) > MAX_STOP_IDS:
            raise UnsupportedError(
                f"{len(self.stop_ids)} tokens that end an answer, expected at most {MAX_STOP_IDS} on a card; "
                "name fewer, or run it on the CPU",
                code=Code.NOT_ON_THIS_DEVICE,
            )
        check_tree_width(knobs, MAX_WIDTH)
        self.policy = Watched.around(policy, session.capabilities)
        self._asked = knobs, self.policy.next(knobs)
        self._weights = self.policy.weights(knobs)
        self.knobs, self.decision = _followed(*self._asked, session.most_drafted)
        self._ahead = 1 if session.host_drafter else AHEAD
        self.answer: list[int] = []
        self._queue: deque[Queued] = deque()
        self._read = 0
        self._last: npt.NDArray[np.void] | None = None
        self._undrained = 0  # pending rows that steps without drafts have left for the drafter
        self._begun = self._over = False
        self._prompt_length = session.length  # `first` sets it again; timed steps do not call `first`
        self._halt: int | None = None
        self._halted = False

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
                self.session.state.host["max_tokens"] = self._most_tokens
                self.session.state.push("max_tokens", "context_length")

    def go_on(self) -> None:
        self._rest()

    def put(self, token: int) -> Stop | None:
        self._rest()
        del self.answer[-1]
        self.answer.append(token)
        self.policy.said((token,))
        stop = self._stop_at(token, len(self.answer))
        self._over = stop is not None
        return stop

    def _stop_at(self, token: int, answered: int) -> Stop | None:
        return stop_at(token, answered, self.knobs, self.stop_ids, self.context_length - self._prompt_length)

    def say(self, tokens: Sequence[int], event: GuardEvent) -> StepEvent:
        self._rest()
        kept, stop = list[int](), None
        while stop is None and len(kept) < len(tokens):
            kept.append(tokens[len(kept)])
            stop = self._stop_at(kept[-1], len(self.answer) + len(kept))
        step = said(self.session, self.answer[-1], kept, event, self.knobs)
        self.answer += kept
        self.policy.said(kept)
        self._over = stop is not None
        return replace(step, stop=stop)

    @property
    def _most_tokens(self) -> int:
        """The number of tokens after which the card ends the answer; it treats a halt like max_tokens."""
        return self.knobs.max_tokens if self._halt is None else min(self.knobs.max_tokens, self._halt)

    def _rest(self) -> None:
        """Go on after a halt: queued steps do nothing, and the next step begins like the first of a turn."""
        self.finish()
        self._halt, self._halted, self._over = None, False, False
        self._read, self._last, self._undrained = 0, None, 0

    def first(self, logits: Logits) -> tuple[int, Stop | None]:
        """Draw the answer's first token from the logits (vocab,) after the prompt."""
        length = self._prompt_length = self.session.length
        check_finite(logits[None], length, "target")
        token = Sampler(self.knobs).draw(logits, length, ())
        self.answer.append(token)
        stop = self._stop_at(token, 1)
        self._halted = stop is None and self._halt == 1
        self._over = stop is not None
        return token, stop

    def take(self, knobs: Knobs) -> None:
        """Use other settings from the next step that is not queued yet."""
        width = min(knobs.tree_width, MAX_WIDTH)
        self._decide(self._asked[0].in_mid_turn(knobs.replace(tree_width=width)))

    def step(self) -> StepEvent:
        """The next finished step."""
        if not self._begun:
            self._begin()
        while len(self._queue) < self._ahead:
            self._enqueue()
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
                session.drafter.begin_turn()
            state = session.state.host
            begin_turn(
                state,
                self.knobs,
                answer=self.answer,
                prompt_length=self._prompt_length,
                context_length=self.context_length,
                stop_ids=sorted(self.stop_ids),
            )
            state["max_tokens"] = self._most_tokens
            self._write_knobs()
            self.steps.cancel.array[0] = 0
            self.steps.ring.array["ready"] = 0
            self.steps.graph(self._kind())
            session.state.push()
        self._begun = True

    def _decide(self, knobs: Knobs) -> None:
        """Get the decision for the next step. If it has changed, write it to the card, after the queued steps."""
        asked, weights = (knobs, self.policy.next(knobs)), self.policy.weights(knobs)
        if asked == self._asked and weights is self._weights:
            return  # the usual case without a policy; it must be fast, as steps of a small model are short
        before, built_by = self._told, self._weights
        self._asked, self._weights = asked, weights
        self.knobs, self.decision = _followed(*asked, self.session.most_drafted)
        if self._begun and (self._told != before or weights is not built_by):
            with self.session.device.stream():
                self._write_knobs()
                self.session.state.push_knobs()

    @property
    def _told(self) -> tuple[Knobs, EffectiveMode, int, int]:
        """The part of a decision that is written to the card, without the reason, which changes at every `auto`
        step."""
        decision = self.decision
        return self.knobs, decision.mode, decision.budget, decision.depth

    @property
    def _drafting(self) -> Knobs:
        """The settings with which the next step drafts."""
        return at_depth(self.knobs, self.decision.depth)

    def _write_knobs(self) -> None:
        knobs, weights, rows = self._drafting, self._weights, self.decision.budget + 1
        budget = max(self.decision.budget, 1 if weights is None else BUILT)
        block = 1 + self.session.drafted(knobs)
        write_knobs(self.session.state.host, knobs, self.decision.mode, block, budget, weights, rows)

    def _kind(self, proposal: Candidates | None = None) -> StepKind:
        forced, device_block = self.steps.trace is not None, self.session.device_block
        drafted = self.decision.budget
        if not device_block:
            depths, width = proposal.tokens.shape if proposal is not None else (0, 1)
            drafted = min(drafted, depths) if width == 1 or not depths else drafted
        drafts = self.decision.mode != "plain" and device_block > 0
        passes = self.session.drafter.passes(self._drafting) if self.session.drafter else 1
        vocab = self.session.head.vocab
        kind = StepKind.holding(drafted, self.knobs, vocab, drafts=drafts, forced=forced, passes=passes)
        return replace(kind, windowed=bool(self.session.window.size), text=drafts and self._text is not None)

    @property
    def _text(self) -> TextTable | None:
        """The text from which the next step's tree copies successors."""
        if self._weights is None or self.session.memory.text is None:
            return None
        return self.policy.copies_from(self._asked[0])

    def _propose(self) -> Candidates | None:
        """What a drafter on the host proposes for the next step; the card builds its tree from it."""
        drafter = self.session.host_drafter
        if drafter is None or self.decision.mode == "plain":
            return None
        try:
            proposal = drafter.propose(self.answer[-1], self.knobs)
        except NumericsError as error:
            self.policy.failed(drafter.capabilities.kind, error)
            self._decide(self._asked[0])
            return None
        state = self.session.state
        most = 1 if self.decision.mode == "chain" else MAX_WIDTH
        kept = Candidates(proposal.tokens[:MAX_DEPTH, :most], proposal.log_probs[:MAX_DEPTH, :most])
        depths, width = kept.tokens.shape
        state.host["candidate"][:depths, :width] = kept.tokens
        state.host["candidate_log_prob"][:depths, :width] = kept.log_probs
        state.host["draft_depth"], state.host["width"] = depths, width
        with self.session.device.stream():
            state.push("candidate", FIRST_KNOB)
            state.push_knobs()
        return kept

    def _enqueue(self) -> None:
        self._decide(self._asked[0])
        began = time.perf_counter()
        proposal = self._propose()
        proposing_ms = (time.perf_counter() - began) * 1e3
        kind = self._kind(proposal)
        with self.session.device.stream():
            graph = self.steps.graph(kind)
            there = self.session.memory.text
            if kind.text and there is not None and (text := self._text) is not None:
                there.follow(text)
            if (drafter := self.session.drafter) is not None:
                drafter.before_step(len(self._queue))
                full = self._undrained + 1 >= drafter.most_pending - PASS_ROWS
                if self._undrained and (kind.drafts or full):
                    self.steps.drain()
                    self._undrained = 0
                self._undrained += not kind.drafts
            graph()
            mark = self.session.device.mark()
            self._queue.append(Queued(mark, self.knobs, self.decision, proposal, proposing_ms, kind.text))

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
        event = step_event(slot, self._last, queued.decision.mode, queued.decision.reason, queued.knobs, copied)
        if (
            queued.decision.mode != "plain"
            and not drafts_finite(slot, queued.knobs)
            and (it := self.session.capabilities)
        ):
            # What was accepted is the target's own choice; steps that are queued already end the same way.
            self.policy.failed(it.kind, not_finite("drafter", event.length - len(event.tokens)))
        if queued.proposal is not None:
            times = event.stages
            host = max(times.host - queued.proposing_ms, 0.0)
            times = replace(times, draft=times.draft + queued.proposing_ms, host=host)
            event = replace(event, drafts=step_drafts(queued.proposal), stages=times)
        self._read, self._last = self._read + 1, slot
        self._over = event.stop is not None
        if self.session.host_drafter is not None:
            self.session.host_drafter.observe([self.answer[-1], *event.tokens[:-1]], None)
        self.answer += event.tokens
        if event.stop == "max tokens" and len(self.answer) < self.knobs.max_tokens:
            full = self._prompt_length + len(self.answer) >= self.context_length
            event, self._halted = replace(event, stop="context full" if full else None), not full
        self.session.state.host["length"] = event.length
        self.policy.observe(event)
        return event
