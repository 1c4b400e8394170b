"""Speculative steps that the card runs without the host: draft, tree, verify, accept and commit as one graph."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from dflash_core.backends.cuda.device_state import BLOCKS, DEFINES
from dflash_core.backends.cuda.launch import NO_INPUTS, NULL, WARP, Argument, Launch, PinnedMemory, Run, ceil_div
from dflash_core.backends.cuda.layers.head import Reported, all_listed
from dflash_core.backends.cuda.sequence_passes import SequencePasses
from dflash_core.backends.cuda.state import (
    MAX_DEPTH,
    MAX_NODES,
    NODE_LOG_PROBS,
    PASS_ROWS,
    RING_SLOT,
    STEP_SLOTS,
    width_for,
)
from dflash_core.knobs import Knobs
from dflash_core.log_probs import MAX_TOP, LogProbs
from dflash_core.sampling import Sampler

DRAFT_VOCABULARY = Knobs().draft_vocabulary
TREE_THREADS = 4 * WARP
TOPS = (0, 5, MAX_TOP)


def widths_of(nodes: int) -> tuple[int, ...]:
    """The rows of the passes over a tree of so many nodes."""
    return tuple(width_for(min(PASS_ROWS, nodes - node0)) for node0 in range(0, nodes, PASS_ROWS))


@dataclass(frozen=True, slots=True)
class StepKind:
    """The key of a graph.

    `widths`: rows of each target pass; `drafts`: whether the drafter proposes inside the step; `sampled`: sampling
    instead of greedy decoding; `passes`: passes of the drafter; `vocabulary`: tokens that it chooses from, 0 for all;
    `windowed`: the target's full-attention layers see only a window; `text`: the tree copies successors from the
    conversation's text; `listed`: of a sampled step, see `draws.all_listed`; `top`: log-probabilities are reported,
    with those of so many of the likeliest tokens, one of TOPS; None: they are not. Such a step samples.
    """

    widths: tuple[int, ...]
    drafts: bool
    sampled: bool
    passes: int = 1
    vocabulary: int = DRAFT_VOCABULARY
    windowed: bool = False
    text: bool = False
    listed: bool = False
    top: int | None = None

    @staticmethod
    def holding(
        drafted: int, knobs: Knobs, vocab: int, *, drafts: bool, passes: int = 1, log_probs: LogProbs | None = None
    ) -> StepKind:  # fmt: skip
        """The smallest graph for trees of `drafted` nodes below the root, and for draws from `vocab` tokens by `knobs`;
        `passes`: passes of the drafter; `log_probs`: what records the log-probabilities, if anything does."""
        vocabulary = knobs.draft_vocabulary if drafts else DRAFT_VOCABULARY
        top = None if log_probs is None else next(top for top in TOPS if log_probs.top <= top)
        sampled = top is not None or not Sampler(knobs).greedy
        listed = sampled and all_listed(knobs, vocab)
        passes = passes if drafts else 1
        return StepKind(widths_of(1 + drafted), drafts, sampled, passes, vocabulary, listed=listed, top=top)

    @property
    def nodes(self) -> int:
        return PASS_ROWS * (len(self.widths) - 1) + self.widths[-1]


class Steps:
    """Graphs of a session's steps, and the pinned memory to which they write their results."""

    def __init__(self, session: SequencePasses) -> None:
        # A weak reference: the session refers to this object, and its memory must be freed with its last reference.
        self._session, self.device = weakref.ref(session), session.device
        self.ring = self.device.pinned(STEP_SLOTS, RING_SLOT)
        self.cancel = self.device.pinned(1, np.int32)
        self.copied = self.device.pinned(STEP_SLOTS, np.uint64)  # per slot, a bit for each node copied from the text
        self.trace: Tensor | None = None
        self._graphs: dict[object, Run] = {}

    @property
    def session(self) -> SequencePasses:
        """The session that these steps belong to."""
        session = self._session()
        assert session is not None, "the session of these steps was deleted"
        return session

    def force(self, paths: Sequence[Sequence[int]] | None) -> None:
        """Make the steps accept these paths of nodes below the root, one per step and from the start again, whatever
        the target draws.

        For measurements: KV, states and features change as if the target had drawn these nodes. None ends it.
        """
        self._graphs.clear()
        self.trace = None
        if paths is None:
            return
        table = np.zeros((len(paths), 1 + MAX_DEPTH), np.int32)
        for row, path in zip(table, paths, strict=True):
            row[0], row[1 : 1 + len(path)] = len(path), path
        self.trace = torch.from_numpy(table).to(self.device.torch_device)

    def graph(self, kind: StepKind) -> Run:
        """The graph of a kind, compiled and recorded on first use."""
        assert kind.nodes <= self.session.memory.capacity, "a larger tree than the sequence's memory holds"
        return self._recorded(kind, f"step {kind.widths}", lambda: self.launches(kind))

    def _recorded(self, key: object, name: str, launches: Callable[[], list[Launch]]) -> Run:
        if key not in self._graphs:
            self._graphs[key] = self.device.record(name, self.device.bind(launches()))
        return self._graphs[key]

    @cached_property
    def log_probs(self) -> PinnedMemory:
        """NODE_LOG_PROBS (STEP_SLOTS, nodes): what steps report of each node, if they do."""
        return self.device.pinned((STEP_SLOTS, self.session.memory.capacity), NODE_LOG_PROBS)

    def draining(self) -> Run:
        """The graph that adds everything pending to the drafter's cache, after the queued steps."""
        drafter = self.session.drafter
        assert drafter is not None, "the session has no drafter on the card"
        return self._recorded("drain", "drain", drafter.drain_launches)

    # A constrained step is three graphs: before the second the host edits the tree, before the third it writes masks.

    @cached_property
    def masks(self) -> PinnedMemory:
        """Where the host writes what may be drawn after each node: a row of `constraints.base.Mask` each."""
        return self.device.pinned((self.session.memory.capacity, ceil_div(self.session.head.vocab, 32)), np.uint32)

    def drafting(self, kind: StepKind) -> Run:
        """The graph that drafts and builds the tree."""
        kind = replace(kind, widths=(), sampled=False, windowed=False, listed=False, top=None)
        return self._recorded(("draft", kind), "draft", lambda: self._draft(kind))

    def passing(self, kind: StepKind) -> Run:
        """The graph of the first pass, up to the head's activations."""
        width, windowed = kind.widths[0], kind.windowed
        return self._recorded(("pass", width, windowed), f"pass {width}", lambda: self._first_pass(kind))

    def accepting(self, kind: StepKind, *, masked: bool) -> Run:
        """The graph of what follows: draws, within `masks` if `masked`, further passes, the walk and the commit."""
        name = f"accept {kind.widths}"
        return self._recorded(("accept", kind, masked), name, lambda: self.constrained_launches(kind, masked=masked)[1])

    def constrained_launches(self, kind: StepKind, *, masked: bool = True) -> tuple[list[Launch], list[Launch]]:
        """The launches of `passing` and of `accepting`."""
        session, masks = self.session, self.masks if masked else None
        first, *further = enumerate(kind.widths)
        # What a grammar forces may be a longer path than any draft.
        return self._first_pass(kind), [
            *self._draws(kind, *first, masks),
            *(launch for one in further for launch in (*self._pass(kind, *one), *self._draws(kind, *one, masks))),
            self._accept(),
            *session.commit_launches(kind.nodes),
        ]

    def launches(self, kind: StepKind) -> list[Launch]:
        """The launches of one step, from the newest token to the ring."""
        session, passes = self.session, enumerate(kind.widths)
        return [
            *self._draft(kind),
            *(launch for one in passes for launch in (*self._pass(kind, *one), *self._draws(kind, *one))),
            self._accept(),
            *session.commit_launches(self.longest(kind)),
        ]

    def draws(self, kind: StepKind) -> list[Launch]:
        """The launches of a step that draw from what its passes compute."""
        return [launch for one in enumerate(kind.widths) for launch in self._draws(kind, *one)]

    def longest(self, kind: StepKind) -> int:
        """The most positions that a step of a kind commits."""
        return min(kind.nodes, max(self.session.device_block, 1)) if kind.drafts else 1

    def _draft(self, kind: StepKind) -> list[Launch]:
        """From the newest token to the tree."""
        session = self.session
        head, state = session.draft_head(kind.vocabulary), session.state.pointer
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
        ]

    def _first_pass(self, kind: StepKind) -> list[Launch]:
        begin = Launch("tree.cu", "verify_begin", {}, 1, WARP, [self.session.stamps])
        return [begin, *self._pass(kind, 0, kind.widths[0])]

    def _pass(self, kind: StepKind, place: int, width: int) -> list[Launch]:
        return self.session.pass_launches(width, PASS_ROWS * place, windowed=kind.windowed)

    def _draws(self, kind: StepKind, place: int, width: int, masks: PinnedMemory | None = None) -> list[Launch]:
        head, acts, node0 = self.session.head, self.session.memory.buffers.acts, PASS_ROWS * place
        if not kind.sampled:
            return head.argmax_launches(acts, width, node0)
        reported = None if kind.top is None else Reported(self.log_probs, kind.top)
        return head.sample_launches(acts, width, node0, listed=kind.listed, masks=masks, reported=reported)

    def _accept(self) -> Launch:
        session, trace = self.session, self.trace
        args: list[Argument] = [
            session.state.pointer, np.uint64(self.ring.address), np.int32(STEP_SLOTS), np.uint64(self.cancel.address),
            NULL if trace is None else trace, np.int32(0 if trace is None else len(trace)), session.stamps,
        ]  # fmt: skip
        return Launch("accept.cu", "accept", {}, 1, MAX_NODES, args)
