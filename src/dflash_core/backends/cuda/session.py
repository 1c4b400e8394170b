"""One sequence on the card, as the host uses it: prompts, states, drafts and answers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from dflash_core.attention_window import AttentionWindow
from dflash_core.backends.base import AnswerOptions, Checkpoint, Logits, PrefillCancelled
from dflash_core.backends.cuda.constrained_step import ConstrainedCudaDecoder
from dflash_core.backends.cuda.kv import copies
from dflash_core.backends.cuda.prefill import MIN_ROWS, PartsAhead
from dflash_core.backends.cuda.sequence import CudaCheckpoint
from dflash_core.backends.cuda.sequence_passes import CHUNK_WIDTHS, SequencePasses
from dflash_core.backends.cuda.state import MAX_NODES, PASS_ROWS
from dflash_core.backends.cuda.step import CudaDecoder
from dflash_core.backends.cuda.step_graphs import StepKind, Steps
from dflash_core.drafters.draw_noise import ranked
from dflash_core.errors import ContextError
from dflash_core.knobs import Knobs
from dflash_core.policy.base import FixedPolicy
from dflash_core.policy.queued import CHOICES
from dflash_core.progress import Progress
from dflash_core.sampling import check_finite
from dflash_core.snapshots.base import Snapshot, SnapshotError, check_rows, check_tensors
from dflash_core.tree import Candidates, check_path, check_tree

USUAL = ("plain", "auto")  # what most answers are drafted with
MIN_CHUNK_ROWS = 64  # the fewest rows of a prompt chunk; rows are halved down to this if memory is short


class CudaSession(SequencePasses):
    """Implements `backends.opened.Session`. See `SequencePasses` for the arguments."""

    _verified: Sequence[int] = ()  # the parents of the tree of the last `verify`, until a path of it is committed

    @cached_property
    def steps(self) -> Steps:
        return Steps(self)

    # ---- Backend -------------------------------------------------------------------------------------------------

    def prefill(self, tokens: Sequence[int], cancelled: Callable[[], bool] | None = None) -> Logits:
        self.device.host.pause()
        read = self.prefill_chunk if self.in_chunks(len(tokens)) else self._prefill_passes
        return read(tokens, cancelled)

    def in_chunks(self, count: int) -> bool:
        shortest = MIN_ROWS if self.chunks_from is None else self.chunks_from
        return self.chunk_pass is not None and count >= shortest

    def verify(self, tokens: Sequence[int], parents: Sequence[int]) -> Logits:
        check_tree(tokens, parents, self.target.spec.vocab_size)
        self._verified = parents
        with self.device.stream():
            if self.target.cache is not None:
                self.target.cache.between_steps()
            self.stage_tree(tokens, parents)
            rows = []
            for node0 in range(0, len(tokens), PASS_ROWS):
                live = min(PASS_ROWS, len(tokens) - node0)
                self._run_pass(live, node0, logits=True)
                rows.append(self.head.on_host(live))
            return torch.cat(rows).numpy()

    def commit(self, path: Sequence[int]) -> None:
        check_path(path, self._verified)
        self._verified = ()
        with self.device.stream():
            self._commit(path)

    def propose(self, root: int, knobs: Knobs, at: int | None = None) -> Candidates:
        if self.host_drafter is not None:
            return self.host_drafter.propose(root, knobs, at)
        if self.drafter is None:
            raise ContextError("this session has no drafter; open it with one")
        head, position = self.draft_head(knobs.draft_vocabulary), self.length if at is None else at
        with self.device.stream():
            found = self.drafter.pairs(root, knobs, at, head, self.launch) if knobs.by_parent else None
            if found is not None:
                check_finite(found.log_probs.astype(np.float32), position)
                return found
            logits = self.drafter.logits(root, knobs.draft_window, at, head, self.launch)
        return ranked(logits[: self.drafted(knobs)], knobs, position)

    def draft(self, root: int, window: int, at: int | None = None) -> Logits:
        if self.drafter is None:
            raise ContextError("this drafter proposes tokens without logits; expected one with a model")
        check_tree([root], [-1], self.target.spec.vocab_size)
        with self.device.stream():
            return self.drafter.logits(root, window, at, self.head, self.launch)

    def set_attention_window(self, window: AttentionWindow) -> None:
        if window != self.window:
            with self.device.stream():
                self.memory.window[:] = torch.tensor((window.size, window.sinks), dtype=torch.int32)
        self.window = window

    def checkpoint(self) -> CudaCheckpoint:
        with self.device.stream():
            self.update_drafter()
            self._flush()
            point = self.checkpoints.make(self.length)
            self.device.synchronize()
            return point

    def restore(self, checkpoint: Checkpoint | None) -> None:
        with self.device.stream():
            state, before = self.state.host, self.length
            self.checkpoints.before_cut(checkpoint.length if checkpoint is not None else 0)
            if checkpoint is None:
                # This also runs after an aborted turn: then the host's copy is older than the card's state, so none of
                # its values may be used.
                state["length"] = state["draft_length"] = state["pending"] = 0
                for memory in self.memory.states:
                    memory.restore(None)
                if self.host_drafter is not None:
                    self.host_drafter.begin()
                return
            assert isinstance(checkpoint, CudaCheckpoint), "this checkpoint comes from another backend"
            self.update_drafter()
            state["pending"] = 0
            state["length"] = state["draft_length"] = checkpoint.length
            for memory, saved in zip(self.memory.states, checkpoint.saved, strict=True):
                memory.restore(saved or (), checkpoint.length, before)
            if self.host_drafter is not None:
                self.host_drafter.cut(checkpoint.length)

    def rows(self, begin: int, end: int) -> tuple[Tensor, ...]:
        with self.device.stream(), self.memory.workspace():
            self.update_drafter()
            found = copies(self._positions(begin, end), self.device.host.empty)
            self.device.synchronize()
        return (*found, *(self.host_drafter.rows(begin, end) if self.host_drafter else ()))

    def reserve_host_memory(self, spans: Sequence[tuple[int, int]], most: int) -> None:
        pieces = self._like(self.length)
        for begin, end in spans:
            pieces += self._positions(begin, end)
        self.device.host.prepare([piece.nbytes for piece in pieces], most)

    def leave(self) -> None:
        self.device.host.close()

    def _like(self, length: int) -> list[Tensor]:
        """Tensors of the types and shapes of a checkpoint's after `length` positions."""
        return [tensor for memory in self.memory.states for tensor in memory.like(length)]

    def _positions(self, begin: int, end: int) -> list[Tensor]:
        """The card's per-position state of begin..end."""
        return [tensor for memory in self.memory.states for tensor in memory.positions(begin, end)]

    def state_of(self, length: int, tensors: Sequence[Tensor]) -> CudaCheckpoint:
        check_tensors(tensors, self._like(length))
        rest = iter(tensors)
        return CudaCheckpoint(
            length, [tuple(itertools.islice(rest, len(memory.like(length)))) for memory in self.memory.states]
        )

    def resume(self, snapshot: Snapshot) -> None:
        self.restore(None)
        length = snapshot.length
        if length > self.memory.slots - MAX_NODES:
            raise SnapshotError(f"{length:,} positions, expected at most {self.memory.slots - MAX_NODES:,}")
        check_rows(snapshot.pages, self.rows(0, 0), length)
        point = self.state_of(length, snapshot.state.tensors)
        try:
            with self.device.stream(), self.memory.workspace():
                self._copy_to_card(point, snapshot)
        except BaseException:
            self.restore(None)
            raise

    def _copy_to_card(self, point: CudaCheckpoint, snapshot: Snapshot) -> None:
        """Fill the empty sequence with that of a snapshot, in stream order; `point` is its state."""
        length, tokens = snapshot.length, snapshot.tokens.tolist()
        try:
            for memory, saved in zip(self.memory.states, point.saved, strict=True):
                memory.restore(saved or (), length)
            for page in snapshot.pages:
                rows = iter(page.tensors)
                for tensor in self._positions(page.begin, page.end):
                    tensor.copy_(next(rows), non_blocking=True)
                if self.host_drafter is not None:
                    self.host_drafter.resume(page.begin, tokens[page.begin : page.end], rows)
        finally:
            self.device.synchronize()  # the card reads page-locked memory until then
        self.state.host["length"] = self.state.host["draft_length"] = length

    @property
    def cuts_anywhere(self) -> bool:
        return self.memory.target.reaches(1, self.memory.slots)

    def cut(self, length: int) -> bool:
        states = self.memory.states
        if not all(memory.reaches(length, self.length) for memory in states):
            return False
        self.restore(CudaCheckpoint(length, [() for _ in states]))
        return True

    def decoder(self, options: AnswerOptions) -> CudaDecoder:
        kind = CudaDecoder if options.constraint is None else ConstrainedCudaDecoder
        return kind(self, self.steps, options)

    # ---- Session -------------------------------------------------------------------------------------------------

    def features(self) -> Logits:
        assert self.captured_layers, "this session captures no layers, so it has no features"
        with self.device.stream():
            return self.memory.captured.rows[: len(self._tokens)].to("cpu", copy=True).numpy()

    @property
    def nbytes(self) -> dict[str, int]:
        """Bytes of the sequence, by component of the memory breakdown."""
        return self.memory.nbytes

    def _prefill_passes(self, tokens: Sequence[int], cancelled: Callable[[], bool] | None) -> Logits:
        ahead = PartsAhead(self.device, cancelled)
        with self.device.stream():
            rows = self.pass_rows
            parts = [tokens[begin : begin + rows] for begin in range(0, len(tokens), rows)]
            for at, part in enumerate(parts):
                if at and ahead.given_up():
                    raise PrefillCancelled(at * rows)
                self.stage_tree(part, range(-1, len(part) - 1))
                self._run_pass(len(part), 0, logits=False)
                self._commit(range(len(part)))
            return self._logits_of(self.memory.buffers.h[len(part) - 1])

    def prefill_chunk(self, tokens: Sequence[int], cancelled: Callable[[], bool] | None = None) -> Logits:
        """`prefill` in chunks, however few tokens there are. Raises as it does."""
        chunk_pass = self.chunk_pass
        assert chunk_pass is not None, "this card or target has no chunks"
        rows, begin = chunk_pass.chunk.rows, 0
        while begin < len(tokens):
            with self.device.stream():
                self.update_drafter()
                self._flush()
                part = tokens[begin : begin + rows]
                self.checkpoints.before_growing(self.length + len(part))
                try:
                    last = chunk_pass.run(part, cancelled, self.window)
                except PrefillCancelled:
                    raise PrefillCancelled(begin) from None
                except torch.OutOfMemoryError:  # another program took memory meanwhile
                    if rows <= MIN_CHUNK_ROWS:
                        raise
                    torch.cuda.empty_cache()
                    rows = max(rows // 2, MIN_CHUNK_ROWS)
                    continue
                if self.host_drafter is not None:
                    self.host_drafter.observe(part, None)
            begin += len(part)
        with self.device.stream():
            return self._logits_of(last)

    def prepare(self, progress: Progress, knobs: Knobs) -> None:
        """Compile what a first prompt and the usual steps need, greedy and sampled ones, in one batch: the compiler
        uses every core. Record the graphs of these steps with the sampling of `knobs`."""
        kinds, text = self._usual_kinds(knobs), self.memory.text
        launches = [launch for kind in kinds for launch in self.steps.launches(kind)]
        for other in (Knobs(), Knobs(temperature=1.0)):
            launches += [launch for kind in self._usual_kinds(other) for launch in self.steps.draws(kind)]
        if text is not None:
            launches.append(text.launch(0))
        widths = [width for width in CHUNK_WIDTHS if width <= self.pass_rows]
        for width in widths:
            launches += self.pass_launches(width, 0) + self.commit_launches(width)
        launches += self._last_launches() + self._flush_launches()
        if self.drafter is not None:
            launches += self.drafter.drain_launches()
        if self.chunk_pass is not None:
            launches += self.chunk_pass.launches()
        with self.device.stream():
            self.device.bind(launches, progress)
            for kind in kinds:  # in the middle of an answer, the first draft would wait for it
                self.steps.graph(kind)
            for depth in range(1, Knobs().mtp_depth):  # `auto` falls to these; they need no other kernels
                for kind in self._auto_kinds(knobs.replace(mtp_depth=depth)):
                    self.steps.graph(kind)
            if text is not None:
                text.prepare()
            if self.drafter is not None:
                self.steps.draining()
            for width in widths:
                self._bound_pass(width, 0, windowed=False)
            if self.chunk_pass is not None:
                self.chunk_pass.warm_up()

    def _usual_kinds(self, knobs: Knobs) -> Sequence[StepKind]:
        """Of steps as `knobs` say, of plain ones, and of those that `auto` drafts."""
        policy = FixedPolicy(self.capabilities)
        longest = min(self.host_drafter.capabilities.depths if self.host_drafter else MAX_NODES, self.max_drafted)
        kinds = dict[StepKind, None]()
        for used in (knobs, *(knobs.replace(drafting=one) for one in USUAL)):
            step = policy.next(used)
            drafts = step.mode != "plain" and self.drafter is not None
            kinds[self._kind(min(step.budget, longest), used, drafts=drafts)] = None
        return tuple(kinds | dict.fromkeys(self._auto_kinds(knobs)))

    def _auto_kinds(self, knobs: Knobs) -> Iterator[StepKind]:
        """Of the widths that `auto` chooses from."""
        if self.drafter is not None:
            copies = self.memory.text is not None
            for rows in CHOICES:
                yield replace(self._kind(rows - 1, knobs, drafts=True), text=copies)

    def read_in_passes(self, below: int, progress: Progress) -> None:
        """From now on run prompts of fewer than `below` tokens in passes of PASS_ROWS rows, if memory permits."""
        if self.memory.capacity < PASS_ROWS:
            return
        self.chunks_from, self.pass_rows = below, PASS_ROWS
        with self.device.stream():
            self.device.bind(self.pass_launches(PASS_ROWS, 0) + self.commit_launches(PASS_ROWS), progress)

    def _kind(self, drafted: int, knobs: Knobs, *, drafts: bool) -> StepKind:
        passes = self.drafter.passes(knobs) if self.drafter else 1
        return StepKind.holding(drafted, knobs, self.head.vocab, drafts=drafts, passes=passes)
