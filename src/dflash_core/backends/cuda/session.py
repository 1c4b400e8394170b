"""One sequence on the card, driven from the host call by call, by the launches that a step's graph is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from dflash_core.backends.base import Checkpoint, Logits
from dflash_core.backends.cuda.buffers import (
    PASS_ROWS,
    PREFILL_ROWS,
    WAITING_ROWS,
    ChunkBuffers,
    DraftBuffers,
    TargetBuffers,
)
from dflash_core.backends.cuda.device_state import DeviceState
from dflash_core.backends.cuda.draft_pass import DraftPass
from dflash_core.backends.cuda.gdn import DeltaLaunch
from dflash_core.backends.cuda.head import Head
from dflash_core.backends.cuda.launch import At, Launch, Progress, Run
from dflash_core.backends.cuda.model import DeviceDraft, DeviceTarget
from dflash_core.backends.cuda.prefill import LEAST_ROWS, ChunkPass
from dflash_core.backends.cuda.state import MAX_NODES, Stop
from dflash_core.backends.cuda.step import CudaDecoder, StepKind, Steps
from dflash_core.backends.cuda.target_pass import TargetPass, ceil_div, norm_launch, width_for
from dflash_core.drafters.base import Drafter, ranked
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.drafters.dflash import capabilities
from dflash_core.errors import Code, ContextError, UnsupportedError
from dflash_core.knobs import Knobs, Mode
from dflash_core.policy.fixed import FixedPolicy
from dflash_core.tree import Candidates

COPY_THREADS = 256
MODES: tuple[Mode, ...] = ("ar", "auto")  # what answers are decoded with unless asked otherwise
# Passes that only host-driven calls make need no more than a few widths.
CHUNK_WIDTHS = (1, 16, 64)


@dataclass(slots=True)
class CudaCheckpoint:
    """Recurrent and convolution states at `length`, in the host's memory; keys and values are only cut."""

    length: int
    s: Tensor
    conv: Tensor
    draft: object = None  # a host-side drafter's own

    @property
    def nbytes(self) -> int:
        return self.s.nbytes + self.conv.nbytes


class CudaSession:
    """Implements `backends.base.Session` for a target and, if given, a drafter: one with a model on the device and its
    mask token, which proposes inside the steps, or one on the host, in lock-step with them.

    `captured`: the layers whose outputs passes record, where no drafter says so. `context`: positions it
    can hold. `capacity`: nodes of the largest tree, a multiple of 64.
    """

    def __init__(
        self,
        target: DeviceTarget,
        draft: DeviceDraft | None = None,
        mask_token: int = 0,
        captured: Sequence[int] = (),
        *,
        host_drafter: Drafter | None = None,
        context: int,
        capacity: int = PASS_ROWS,
    ) -> None:
        self.target, self.drafter, self.device = target, draft, target.device
        self.host_drafter = host_drafter
        if host_drafter is not None and host_drafter.capabilities.captured_layers:
            raise UnsupportedError(
                f"the {host_drafter.capabilities.kind} drafter reads captured layers on the host, which a card does "
                "not hand out; expected one that reads tokens alone",
                code=Code.NOT_ON_THIS_DEVICE,
            )
        self.captured_layers = tuple(draft.config.target_layers if draft else captured)
        self._tokens: list[int] = []  # of the last pass
        with self.device.stream():
            self.buffers = TargetBuffers(target, context, capacity, self.captured_layers)
            self.state = DeviceState(self.device.torch_device)
            chunk = ChunkBuffers(target, min(PREFILL_ROWS, context), draft) if ChunkPass.possible(target) else None
            self.head = Head(target, self.state, chunk.weights if chunk else None)
            self.draft_buffers = DraftBuffers(draft, context) if draft else None
            self.streams = self.buffers.kv.streams()
            self.stamps = torch.zeros(8, dtype=torch.int64, device=self.device.torch_device)
        self.draft_pass: DraftPass | None = None
        if draft is not None and self.draft_buffers is not None:
            self.draft_pass = DraftPass(draft, target, self.draft_buffers, self.state, mask_token)
        self.chunk_pass: ChunkPass | None = None
        if chunk is not None:
            self.chunk_pass = ChunkPass(target, self.buffers, chunk, self.state, self.draft_pass)
        self._bound: dict[tuple[object, ...], Run] = {}
        self._rows = 0
        self.steps = Steps(self)

    @property
    def length(self) -> int:
        return int(self.state.host["length"])

    @property
    def capabilities(self) -> Capabilities | None:
        if self.host_drafter is not None:
            return self.host_drafter.capabilities
        return capabilities(self.drafter.config, on_device=True) if self.drafter else None

    @property
    def device_block(self) -> int:
        """The block of a drafter that proposes inside the step; 0 where none does."""
        return self.drafter.config.block_size if self.drafter else 0

    # ---- Backend -------------------------------------------------------------------------------------------------

    def prefill(self, tokens: Sequence[int], cancelled: Callable[[], bool] | None = None) -> Logits:
        if self.chunk_pass is not None and len(tokens) >= LEAST_ROWS:
            return self._prefill_chunk(self.chunk_pass, tokens, cancelled)
        with self.device.stream():
            for begin in range(0, len(tokens), PASS_ROWS):
                part = tokens[begin : begin + PASS_ROWS]
                self._plant(part, range(-1, len(part) - 1))
                self._run_pass(len(part), 0, logits=False)
                self._commit(range(len(part)))
            return self._logits_of(self.buffers.h[len(part) - 1])

    def verify(self, tokens: Sequence[int], parents: Sequence[int]) -> Logits:
        with self.device.stream():
            self.ensure_capacity(len(tokens))
            self._plant(tokens, parents)
            rows = []
            for node0 in range(0, len(tokens), PASS_ROWS):
                live = min(PASS_ROWS, len(tokens) - node0)
                self._run_pass(live, node0, logits=True)
                rows.append(self.head.logits(live).to("cpu", copy=True))
            return torch.cat(rows).numpy()

    def commit(self, path: Sequence[int]) -> None:
        with self.device.stream():
            self._commit(path)

    def propose(self, root: int, knobs: Knobs, at: int | None = None) -> Candidates:
        if self.host_drafter is not None:
            return self.host_drafter.propose(root, knobs, at)
        return ranked(self.draft(root, knobs.draft_window, at), knobs, self.length if at is None else at)

    def draft(self, root: int, window: int, at: int | None = None) -> Logits:
        if self.draft_pass is None:
            raise ContextError("this drafter proposes tokens without logits; expected one with a model")
        assert self.draft_buffers is not None, "draft without a drafter"
        with self.device.stream():
            self._absorb()
            state, kv = self.state.host, self.draft_buffers.kv
            length = self.length
            begin = length if at is None else at
            # The block's own rows go behind the context; with `at`, where later positions stand.
            held = [t[:, :, begin : begin + self.device_block].clone() for t in (kv.k, kv.v)] if begin < length else []
            state["root"], state["draft_window"], state["draft_depth"] = root, window, self.device_block - 1
            state["stop"] = Stop.RUNNING
            state["length"] = state["absorbed"] = begin
            try:
                self.state.push()
                self._launch(("draft",), self.draft_launches)
                logits = self.head.draft_logits(self.device_block).to("cpu", copy=True).numpy()
            finally:
                state["length"] = state["absorbed"] = length
                for tensor, rows in zip((kv.k, kv.v), held):
                    tensor[:, :, begin : begin + self.device_block] = rows
        return logits

    def draft_launches(self) -> list[Launch]:
        """The block's forward and its logits."""
        assert self.draft_pass is not None and self.draft_buffers is not None, "no drafter"  # noqa: PT018
        forward = self.draft_pass.launches(self.head.full)
        return [*forward, *self.head.launches(self.draft_buffers.acts, self.device_block)]

    def checkpoint(self) -> CudaCheckpoint:
        with self.device.stream():
            self._absorb()
            self._flush()
            delta = self.buffers.delta
            draft = self.host_drafter.checkpoint() if self.host_drafter else None
            return CudaCheckpoint(self.length, delta.s.to("cpu", copy=True), delta.conv.to("cpu", copy=True), draft)

    def restore(self, checkpoint: Checkpoint | None) -> None:
        with self.device.stream():
            state, delta = self.state.host, self.buffers.delta
            if checkpoint is None:
                # Also where a turn broke off: the host's copy is then older than what the card holds, so nothing of it
                # may be followed.
                state["length"] = state["absorbed"] = state["pending"] = 0
                delta.s.zero_()
                delta.conv.zero_()
                if self.host_drafter is not None:
                    self.host_drafter.begin()
                return
            assert isinstance(checkpoint, CudaCheckpoint), "a checkpoint of another backend"
            self._absorb()
            state["pending"] = 0
            state["length"] = state["absorbed"] = checkpoint.length
            delta.s.copy_(checkpoint.s)
            delta.conv.copy_(checkpoint.conv)
            if self.host_drafter is not None:
                self.host_drafter.restore(checkpoint.draft)

    def decoder(self, knobs: Knobs, stop_ids: frozenset[int], context_length: int) -> CudaDecoder:
        """What decodes one answer behind the prompt that was read last."""
        return CudaDecoder(self, knobs, stop_ids, context_length)

    # ---- Session -------------------------------------------------------------------------------------------------

    def features(self) -> Logits:
        assert self.captured_layers, "features without captured layers"
        with self.device.stream():
            return self.buffers.features[: self._rows].to("cpu", copy=True).numpy()

    def observe(self, features: Logits) -> None:
        """Give the drafter features (n, layers * hidden) of the first n positions, for drafting behind them alone."""
        assert self.draft_buffers is not None, "features without a drafter"
        assert self.length == 0, "features of a sequence that has its own"
        with self.device.stream():
            rows = torch.from_numpy(np.ascontiguousarray(features, np.float32))
            for begin in range(0, len(rows), WAITING_ROWS):
                part = rows[begin : begin + WAITING_ROWS]
                self.draft_buffers.waiting[: len(part)] = part.to(self.device.torch_device)
                self.state.host["length"] += len(part)
                self._absorb()

    @property
    def nbytes(self) -> dict[str, int]:
        """Bytes held, by component of the memory breakdown."""
        held = {"target KV": self.buffers.kv.nbytes, "states": self.buffers.delta.state_bytes}
        if self.draft_buffers is not None:
            held["drafter KV"] = self.draft_buffers.kv.nbytes
        return held

    def _prefill_chunk(
        self, chunk_pass: ChunkPass, tokens: Sequence[int], cancelled: Callable[[], bool] | None
    ) -> Logits:
        rows = chunk_pass.chunk.rows
        for begin in range(0, len(tokens), rows):
            with self.device.stream():
                self._absorb()
                self._flush()
                part = tokens[begin : begin + rows]
                last = chunk_pass.run(part, cancelled)
                if self.host_drafter is not None:
                    self.host_drafter.observe(part, None)
        with self.device.stream():
            return self._logits_of(last)

    def _logits_of(self, h: Tensor) -> Logits:
        """Logits (vocab,) of one row of the residual (hidden,)."""
        self.buffers.h[0] = h
        self._launch(("last",), self._last_launches)
        row: Logits = self.head.logits(1)[0].to("cpu", copy=True).numpy()
        return row

    def _last_launches(self) -> list[Launch]:
        buffers, target = self.buffers, self.target
        norm = norm_launch(
            buffers.h, target.output_norm, target.config.rms_eps, 1, buffers.acts, self.head.full, At(buffers.one, 0), 0
        )
        return [norm, *self.head.launches(buffers.acts, 1)]

    # ---- Passes --------------------------------------------------------------------------------------------------

    def prepare(self, progress: Progress) -> None:
        """Compile what a first prompt and the default knobs need, all at once: the compiler uses every core."""
        policy = FixedPolicy(self.capabilities)
        usual = [policy.next(Knobs(mode=mode)) for mode in MODES]
        most = self.host_drafter.capabilities.depths if self.host_drafter else MAX_NODES
        kinds = dict.fromkeys(
            StepKind.holding(min(one.budget, most), Knobs(), drafts=one.mode != "ar" and self.drafter is not None)
            for one in usual
        )
        launches = [launch for kind in kinds for launch in self.steps.launches(kind)]
        for width in CHUNK_WIDTHS:
            launches += self.pass_launches(width, 0) + self.commit_launches(width)
        launches += self._last_launches() + self._flush_launches()
        if self.draft_pass is not None:
            launches += self._absorb_launches(PASS_ROWS, 0)
        if self.chunk_pass is not None:
            launches += self.chunk_pass.launches()
        with self.device.stream():
            self.device.bind(launches, progress)
            for width in CHUNK_WIDTHS:
                self._bind(("pass", width, 0), partial(self.pass_launches, width, 0))
            if self.chunk_pass is not None:
                self.chunk_pass.warm_up()

    def pass_launches(self, width: int, node0: int) -> list[Launch]:
        """A target pass up to the head's activations."""
        return list(TargetPass(self.target, self.buffers, self.state, width, node0).launches(self.head.full))

    def commit_launches(self, width: int) -> list[Launch]:
        """Move what was accepted to where a sequence has it: keys and values, and features for the drafter."""
        kv = self.buffers.kv
        chunks = kv.k.shape[-1] * 2 // 16
        launches = [
            Launch("accept.cu", "kv_commit", {}, len(self.streams), chunks,
                   [self.state.pointer, self.streams, np.int32(chunks), self.stamps]),
        ]  # fmt: skip
        if self.draft_buffers is not None:
            waiting = self.draft_buffers.waiting
            quads = ceil_div(self.buffers.tap_width, 4)
            launches.append(
                Launch("features.cu", "keep_features", {}, (ceil_div(quads, COPY_THREADS), width), COPY_THREADS,
                       [self.state.pointer, self.buffers.features, waiting, np.int32(self.buffers.tap_width),
                        np.int32(len(waiting))])
            )  # fmt: skip
        return launches

    def settle(self) -> None:
        """Leave nothing that waits: the drafter has seen all features."""
        self._absorb()

    def ensure_capacity(self, nodes: int) -> None:
        """Make room for trees of `nodes` nodes. Between turns: what was bound before is bound again."""
        if nodes <= self.buffers.capacity:
            return
        self._flush()
        self.buffers.grow(self.target, MAX_NODES)
        self._bound.clear()
        self.steps.clear()
        torch.cuda.empty_cache()  # what was there before: nobody asks for memory of that size again

    def _plant(self, tokens: Sequence[int], parents: Sequence[int]) -> None:
        assert self.length + len(tokens) <= self.buffers.slots, "positions behind the end of the sequence's memory"
        self.state.plant(tokens, parents)
        self.state.push()
        self._rows = len(tokens)
        self._tokens = list(tokens)

    def _run_pass(self, live: int, node0: int, *, logits: bool) -> None:
        width = width_for(live, CHUNK_WIDTHS)
        self._launch(("pass", width, node0), lambda: self.pass_launches(width, node0))
        if logits:
            self._launch(("logits", width), lambda: self.head.launches(self.buffers.acts, width))
        if node0 == 0:
            self.state.host["pending"] = 0  # the pass has brought the states up to date

    def _commit(self, path: Sequence[int]) -> None:
        if self._waiting + len(path) > WAITING_ROWS:
            self._absorb()
        if self.host_drafter is not None:
            self.host_drafter.observe([self._tokens[node] for node in path], None)
        self.state.commit(path)
        self.state.push()
        width = width_for(min(len(path), PASS_ROWS), CHUNK_WIDTHS) if len(path) <= PASS_ROWS else MAX_NODES
        self._launch(("commit", width), lambda: self.commit_launches(width))

    @property
    def _waiting(self) -> int:
        state = self.state.host
        return int(state["length"] - state["absorbed"]) if self.drafter else 0

    def _absorb(self) -> None:
        """Hand the features of newly committed positions to the drafter."""
        if self.draft_pass is None:
            return
        self.state.push()
        waiting = self._waiting
        for row0 in range(0, waiting, PASS_ROWS):
            rows = width_for(min(PASS_ROWS, waiting - row0), (16, 64))
            self._launch(("absorb", rows, row0), partial(self._absorb_launches, rows, row0))
        self.state.host["absorbed"] = self.state.host["length"]

    def _absorb_launches(self, rows: int, row0: int) -> list[Launch]:
        assert self.draft_pass is not None, "features without a drafter"
        return list(self.draft_pass.absorb(rows, row0))

    def _flush(self) -> None:
        """Bring recurrent and convolution states up to date with what was committed."""
        state = self.state.host
        if not state["pending"]:
            return
        self.state.push()
        self._launch(("flush",), self._flush_launches)
        state["pending"] = 0

    def _flush_launches(self) -> list[Launch]:
        memory = self.buffers.delta
        launch = DeltaLaunch.of(self.target.delta, 1, self.device.card.shared_bytes)
        defines = {name: launch.defines[name] for name in ("K_HEADS", "V_HEADS", "SLICES", "BATCH")}
        return [
            Launch(
                "gdn_flush.cu", "gdn_flush", defines, launch.flush_grid(len(memory.s)), launch.tree_block,
                [self.state.pointer, memory.s, memory.k, memory.u, memory.decay, memory.conv, memory.inputs,
                 np.int32(memory.capacity)],
            )
        ]  # fmt: skip

    def _launch(self, key: tuple[object, ...], launches: Callable[[], list[Launch]]) -> None:
        self._bind(key, launches)()

    def _bind(
        self, key: tuple[object, ...], launches: Callable[[], list[Launch]], progress: Progress | None = None
    ) -> Run:
        if key not in self._bound:
            self._bound[key] = self.device.bind(launches(), progress)
        return self._bound[key]
