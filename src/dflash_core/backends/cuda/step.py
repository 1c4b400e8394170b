"""Speculative steps that the card runs by itself: draft, tree, verify, accept, commit as one graph.

The host replays graphs ahead and reads finished steps from a ring in pinned memory; nothing it does is waited for.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dflash_core.backends.base import Logits
from dflash_core.backends.cuda.buffers import PASS_ROWS, WAITING_ROWS
from dflash_core.backends.cuda.launch import NULL, Argument, Launch, Progress, Run
from dflash_core.backends.cuda.state import (
    MAX_DEPTH,
    MAX_NODES,
    MAX_STOP_IDS,
    MAX_WIDTH,
    RING_SLOT,
    Stop,
    begin_turn,
    step_event,
    write_knobs,
)
from dflash_core.backends.cuda.target_pass import WARP, width_for
from dflash_core.decoder import Plan, not_finite, plan, stop_at
from dflash_core.errors import UnsupportedError
from dflash_core.events import StepEvent
from dflash_core.events import Stop as StopReason
from dflash_core.knobs import Knobs, check_tree_width
from dflash_core.sampling import Sampler

if TYPE_CHECKING:
    from dflash_core.backends.cuda.session import CudaSession

MOST_DRAFTS = MAX_NODES - 1  # of one tree: ancestor masks have a bit for the root too
SLOTS = 8
AHEAD = 2  # steps under way or queued while the host looks at the one before them


@dataclass(frozen=True, slots=True)
class StepKind:
    """What distinguishes one graph from another: rows of each target pass, and what happens around them."""

    widths: tuple[int, ...]
    drafts: bool
    sampled: bool
    forced: bool = False

    @staticmethod
    def of(knobs: Knobs, mode: str, draft_block: int, forced: bool = False) -> StepKind:
        """The smallest graph that holds the trees of these knobs."""
        drafted = {"ar": 0, "chain": min(knobs.budget, draft_block - 1), "tree": min(knobs.budget, MOST_DRAFTS)}[mode]
        nodes = 1 + drafted
        widths = tuple(width_for(min(PASS_ROWS, nodes - node0)) for node0 in range(0, nodes, PASS_ROWS))
        return StepKind(widths, mode != "ar", not Sampler(knobs).greedy, forced)

    @property
    def nodes(self) -> int:
        return PASS_ROWS * (len(self.widths) - 1) + self.widths[-1]


class Steps:
    """Graphs of a session's steps, and the pinned memory they report to."""

    def __init__(self, session: CudaSession) -> None:
        # Weak: the session holds this, and all memory of the card is to go as soon as nobody holds the session.
        self._session, self.device = weakref.ref(session), session.device
        self.ring = self.device.pinned(SLOTS, RING_SLOT)
        self.cancel = self.device.pinned(1, np.int32)
        self.trace: Tensor | None = None
        self._graphs: dict[StepKind, Run] = {}
        self._drain: Run | None = None

    @property
    def session(self) -> CudaSession:
        """Whose steps these are."""
        session = self._session()
        assert session is not None, "steps of a session that is gone"
        return session

    def force(self, paths: Sequence[Sequence[int]] | None) -> None:
        """Have every walk take these nodes below the root, step by step and over again, whatever the target draws.

        For measuring: KV, states and features move as if it had. None ends it.
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
        """Compiled and recorded when it is first asked for."""
        if kind not in self._graphs:
            self.session.ensure_capacity(kind.nodes)
            run = self.device.bind(self.launches(kind), progress)
            self._graphs[kind] = self.device.record(f"step {kind.widths}", run)
        return self._graphs[kind]

    def drain(self) -> None:
        """Hand all waiting features to the drafter, behind what is queued."""
        if self._drain is None:
            draft_pass = self.session.draft_pass
            assert draft_pass is not None, "features without a drafter"
            launches = [
                launch for row0 in range(0, WAITING_ROWS, PASS_ROWS) for launch in draft_pass.absorb(PASS_ROWS, row0)
            ]
            taken = Launch("features.cu", "features_taken", {}, 1, 1, [self.session.state.pointer])
            self._drain = self.device.bind([*launches, taken])
        self._drain()

    def clear(self) -> None:
        """Forget graphs whose buffers have moved."""
        self._graphs.clear()
        self._drain = None

    def launches(self, kind: StepKind) -> list[Launch]:
        """One step, from the newest token to the ring."""
        session = self.session
        return [
            Launch("tree.cu", "step_begin", {}, 1, WARP, [session.stamps]),
            *(self._draft() if kind.drafts else ()),
            Launch("tree.cu", "tree_build", {}, 1, WARP, [session.state.pointer, session.stamps]),
            *(launch for place, width in enumerate(kind.widths) for launch in self._verify(kind, place, width)),
            self._accept(kind),
            *session.commit_launches(min(kind.nodes, max(session.draft_block, 1)) if kind.drafts else 1),
        ]

    def _draft(self) -> list[Launch]:
        session = self.session
        assert session.draft_pass is not None, "no drafter"
        return [
            *session.draft_pass.absorb(session.draft_block),
            *session.draft_launches(),
            *session.head.candidate_launches(session.draft_block - 1),
        ]

    def _verify(self, kind: StepKind, place: int, width: int) -> list[Launch]:
        session, node0 = self.session, PASS_ROWS * place
        head, acts = session.head, session.buffers.acts
        forward = session.pass_launches(width, node0)
        if not kind.sampled:
            return [*forward, *head.draw_launches(acts, width, node0)]
        return [*forward, *head.launches(acts, width), head.sample_launch(width, node0)]

    def _accept(self, kind: StepKind) -> Launch:
        session, trace = self.session, self.trace if kind.forced else None
        args: list[Argument] = [
            session.state.pointer, np.uint64(self.ring.address), np.int32(SLOTS), np.uint64(self.cancel.address),
            NULL if trace is None else trace, np.int32(0 if trace is None else len(trace)), session.stamps,
        ]  # fmt: skip
        return Launch("accept.cu", "accept", {}, 1, WARP, args)


def _followed(knobs: Knobs, draft_block: int) -> tuple[Knobs, Plan]:
    """What of `knobs` runs, and what one may not expect of it."""
    settled, notes = plan(knobs, draft_block), list[str]()
    if knobs.temperature > 0 and knobs.top_k == 0 and knobs.top_p < 1:
        notes.append("top_p without top_k looks at the whole vocabulary")
    if settled.mode == "tree" and knobs.budget > MOST_DRAFTS:
        notes.append(f"budget {MOST_DRAFTS}: a tree holds {MAX_NODES} nodes on a card, its root among them")
        knobs = knobs.replace(budget=MOST_DRAFTS)
    return knobs, Plan(settled.mode, "; ".join([settled.reason, *notes]))


@dataclass(frozen=True, slots=True)
class Queued:
    """A replay that was asked for: what ends it, and what it runs with."""

    wait: Run
    knobs: Knobs
    plan: Plan


class CudaDecoder:
    """Implements `decoder.StepDecoder` on the card. Raises KnobError for knobs that it cannot follow."""

    def __init__(self, session: CudaSession, knobs: Knobs, stop_ids: frozenset[int], context_length: int) -> None:
        self.session, self.steps = session, session.steps
        self.stop_ids = frozenset[int]() if knobs.ignore_eos else stop_ids
        self.context_length = context_length
        if len(self.stop_ids) > MAX_STOP_IDS:
            raise UnsupportedError(
                f"{len(self.stop_ids)} tokens that end an answer, a card looks out for {MAX_STOP_IDS} at most; "
                "name fewer, or use --device cpu"
            )
        check_tree_width(knobs, MAX_WIDTH)
        self.knobs, self.plan = _followed(knobs, session.draft_block)
        self.answer: list[int] = []
        self._queue: deque[Queued] = deque()
        self._read = 0
        self._last: npt.NDArray[np.void] | None = None
        self._undrained = 0  # rows that plain steps have left for the drafter
        self._begun = self._over = False

    @property
    def ahead(self) -> bool:
        return bool(self._queue)

    def first(self, logits: Logits) -> tuple[int, StopReason | None]:
        """Draw the answer's first token from the logits (vocab,) after the prompt."""
        length = self.session.length
        if not np.isfinite(logits.max()):
            raise not_finite("target", length)
        token = Sampler(self.knobs).draw(logits, length, ())
        self.answer.append(token)
        stop = stop_at(token, 1, self.knobs, self.stop_ids, self.context_length - length)
        self._over = stop is not None
        return token, stop

    def take(self, knobs: Knobs) -> None:
        """Go on with other knobs from the next step that is not queued yet."""
        width = min(knobs.tree_width, MAX_WIDTH)
        wanted = self.knobs.in_mid_turn(knobs.replace(tree_width=width))
        self.knobs, self.plan = _followed(wanted, self.session.draft_block)
        if self._begun:
            with self.session.device.stream():
                self._write_knobs()
                self.session.state.push_knobs()

    def step(self) -> StepEvent:
        """The next finished step."""
        if not self._begun:
            self._begin()
        while len(self._queue) < AHEAD:
            self._enqueue()
        event = self._collect(self._queue.popleft())
        assert event is not None, "a step that was not cancelled reports"
        return event

    def finish(self) -> Sequence[StepEvent]:
        """End what is queued; the steps that ended before they could be stopped. The state stands behind them."""
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
            session.settle()
            state = session.state.host
            begin_turn(
                state,
                self.knobs,
                root=self.answer[-1],
                prompt_length=session.length,
                context_length=self.context_length,
                stop_ids=sorted(self.stop_ids),
            )
            self._write_knobs()
            self.steps.cancel.array[0] = 0
            self.steps.ring.array["ready"] = 0
            self.steps.graph(self._kind())  # may move buffers, so before the state is written
            session.state.push()
        self._begun = True

    def _write_knobs(self) -> None:
        write_knobs(self.session.state.host, self.knobs, self.plan.mode, self.session.draft_block)

    def _kind(self) -> StepKind:
        forced = self.steps.trace is not None
        return StepKind.of(self.knobs, self.plan.mode, self.session.draft_block, forced)

    def _enqueue(self) -> None:
        kind = self._kind()
        with self.session.device.stream():
            if kind.nodes > self.session.buffers.capacity:
                self._grow(kind.nodes)
            graph = self.steps.graph(kind)
            if self.session.draft_block:
                full = self._undrained + 1 >= WAITING_ROWS - PASS_ROWS
                if self._undrained and (kind.drafts or full):
                    self.steps.drain()
                    self._undrained = 0
                self._undrained += not kind.drafts
            graph()
            self._queue.append(Queued(self.session.device.mark(), self.knobs, self.plan))

    def _grow(self, nodes: int) -> None:
        """Make room in mid-turn. What waits to be committed is known to the card, not to the host's copy."""
        session = self.session
        session.device.synchronize()
        session.state.pull()
        session.ensure_capacity(nodes)
        session.state.push()

    def _collect(self, queued: Queued) -> StepEvent | None:
        """Wait for a replay and read its slot; None where it came after the end and did nothing."""
        queued.wait()
        slot = self.steps.ring.array[self._read % SLOTS]
        if int(slot["ready"]) != self._read + 1:
            return None
        if int(slot["stop"]) == Stop.BROKEN:
            raise not_finite("target", self.session.length)
        slot = slot.copy()
        event = step_event(slot, self._last, queued.plan.mode, queued.plan.reason, queued.knobs)
        self._read, self._last = self._read + 1, slot
        self._over = event.stop is not None
        self.answer += event.tokens
        self.session.state.host["length"] = event.length
        return event
