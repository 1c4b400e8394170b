"""The reference backend: one sequence in torch float32 on the CPU. Slow, plain, and the truth for every other one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dflash_core.backends.base import Checkpoint, Logits
from dflash_core.decoder import Decoder
from dflash_core.knobs import Knobs
from dflash_core.models.dflash import DFlash
from dflash_core.models.kv_cache import KVCache
from dflash_core.models.rows import LayerState, Rows
from dflash_core.models.target import TargetModel

# Features wait until this many rows are there or a draft needs them, so that plain decoding rarely pays for them.
ABSORB_ROWS = 256


@dataclass(slots=True)
class CpuCheckpoint:
    """The recurrent states at `length`; keys and values need no copy, they are only cut."""

    length: int
    states: list[LayerState | None]

    @property
    def nbytes(self) -> int:
        return sum(state.nbytes for state in self.states if state is not None)


class CpuSession:
    """Implements `backends.base.Backend` for a target and, if given, a drafter with the embedded mask token."""

    def __init__(
        self, target: TargetModel, draft: DFlash | None = None, mask_token: int = 0, taps: Sequence[int] = ()
    ) -> None:
        self.target, self.drafter, self.mask_token = target, draft, mask_token
        self.taps = draft.config.target_layers if draft else tuple(taps)
        self._reset()

    def _reset(self) -> None:
        self.length = 0
        self.states: list[LayerState] = self.target.new_states()
        self.draft_states: list[KVCache] = self.drafter.new_states() if self.drafter else []
        self._absorbed = 0
        self._waiting: list[Tensor] = []  # features of committed positions that the drafter has not seen
        self._features: Tensor | None = None

    @property
    def draft_block(self) -> int:
        return self.drafter.config.block_size if self.drafter else 0

    def _run(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        """One target pass over a tree: final hidden rows (n, hidden); the tapped outputs become the features."""
        rows = Rows.of(tokens, parents, self.length)
        h, taps = self.target.forward(rows, self.states, self.taps)
        self._features = torch.cat(taps, dim=-1) if taps else None
        return h

    @torch.inference_mode()
    def prefill(self, tokens: Sequence[int], cancelled: Callable[[], bool] | None = None) -> Logits:
        h = self._run(tokens, range(-1, len(tokens) - 1))
        self.commit(range(len(tokens)))
        return self._numpy(self.target.logits(h[-1:])[0])

    @torch.inference_mode()
    def draft(self, root: int, window: int, at: int | None = None) -> Logits:
        assert self.drafter is not None, "draft without a drafter"
        self._absorb()
        length, states = self.length, self.draft_states
        if at is not None and at < length:
            # A pass writes its own rows behind the context, where here the later positions stand.
            length, states = at, [cache.copy() for cache in states]
        block = [root] + [self.mask_token] * (self.draft_block - 1)
        out = self.drafter.forward(self.target.token_embd.rows(block), length, states, window)
        return self._numpy(self.target.output(out[1:]))

    @torch.inference_mode()
    def verify(self, tokens: Sequence[int], parents: Sequence[int]) -> Logits:
        return self._numpy(self.target.logits(self._run(tokens, parents)))

    def features(self) -> Logits:
        assert self._features is not None, "features without a pass that taps layers"
        return self._numpy(self._features)

    @torch.inference_mode()
    def absorb(self, features: Logits) -> None:
        assert self.drafter is not None, "features without a drafter"
        assert self.length == 0, "features of a sequence that has its own"
        rows = torch.from_numpy(np.ascontiguousarray(features)).to(self.drafter.output_norm.dtype)
        self.drafter.update_cache(rows, 0, self.draft_states)
        self.length = self._absorbed = len(rows)

    @torch.inference_mode()
    def commit(self, path: Sequence[int]) -> None:
        for state in self.states:
            state.commit(self.length, path)
        if self.drafter is not None and self._features is not None:
            self._waiting.append(self._features[list(path)])
        self._features = None
        self.length += len(path)
        if self.length - self._absorbed >= ABSORB_ROWS:
            self._absorb()

    @torch.inference_mode()
    def _absorb(self) -> None:
        """Hand the features of newly committed positions to the drafter; rejected rows never get there."""
        if self.drafter is not None and self._waiting:
            self.drafter.update_cache(torch.cat(self._waiting), self._absorbed, self.draft_states)
            self._waiting.clear()
            self._absorbed = self.length

    def prepare(self, progress: Callable[[str, float], None]) -> None:
        """Nothing: torch is ready as it is."""

    def decoder(self, knobs: Knobs, stop_ids: frozenset[int], context_length: int) -> Decoder:
        return Decoder(self, knobs, stop_ids, context_length)

    def checkpoint(self) -> CpuCheckpoint:
        self._absorb()
        return CpuCheckpoint(self.length, [state.checkpoint() for state in self.states])

    def restore(self, checkpoint: Checkpoint | None) -> None:
        if checkpoint is None:
            self._reset()
            return
        assert isinstance(checkpoint, CpuCheckpoint), "a checkpoint of another backend"
        self._absorb()
        kept = [state and state.checkpoint() for state in checkpoint.states]
        self.states = [copy or state for copy, state in zip(kept, self.states, strict=True)]
        self.length = self._absorbed = checkpoint.length

    @property
    def nbytes(self) -> dict[str, int]:
        """Bytes held now: recurrent states, target KV, drafter KV."""
        held = {"states": 0, "target KV": 0, "drafter KV": sum(cache.nbytes for cache in self.draft_states)}
        for state in self.states:
            held[state.component] += state.nbytes
        return held

    @staticmethod
    def _numpy(logits: Tensor) -> Logits:
        array: Logits = logits.float().numpy()
        return array
