"""The DFlash drafter on the CPU: proposes between two steps, and borrows the target's embedding and head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dflash_core.backends.base import Logits
from dflash_core.config import DraftConfig
from dflash_core.drafters.base import ranked
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.drafters.dflash import capabilities, checked_features
from dflash_core.formats.weights import WeightFile
from dflash_core.ids import check_ids
from dflash_core.knobs import Knobs
from dflash_core.models.dflash import DFlash
from dflash_core.models.kv_cache import KVCache
from dflash_core.models.target import TargetModel
from dflash_core.tree import Candidates

if TYPE_CHECKING:
    from dflash_core.backends.cpu.target import CpuTarget

# Features wait until this many rows are there or a draft needs them, so that plain decoding rarely pays for them.
PENDING_ROWS = 256


class CpuDFlashDrafter:
    """Implements `drafters.base.Drafter` and `DenseDrafter`: its cache holds keys and values of captured features."""

    def __init__(self, model: DFlash, target: TargetModel, mask_token: int) -> None:
        self.capabilities = capabilities(model.config)
        self._model, self._target, self._mask_token = model, target, mask_token
        self.begin()

    @property
    def nbytes(self) -> Mapping[str, int]:
        return {"drafter KV": sum(cache.nbytes for cache in self.caches)}

    def begin(self) -> None:
        self.caches: list[KVCache] = self._model.new_states()
        self._length = self._cached = 0  # positions observed, and those of them that are in the caches
        self._pending: list[Tensor] = []

    def observe(self, tokens: Sequence[int], hidden: Tensor | None) -> None:
        assert hidden is not None, "a drafter that is not given its captured layers"
        self._pending.append(hidden)
        self._length += len(tokens)
        if self._length - self._cached >= PENDING_ROWS:
            self._update()

    def propose(self, root: int, knobs: Knobs, at: int | None = None) -> Candidates:
        return ranked(self.logits(root, knobs.draft_window, at), knobs, self._length if at is None else at)

    @torch.inference_mode()
    def logits(self, root: int, window: int, at: int | None = None) -> Logits:
        self._update()
        length, caches = self._length, self.caches
        if at is not None and at < length:
            # A pass writes its own rows behind the context, where here the later positions stand.
            length, caches = at, [cache.copy() for cache in caches]
        block = [root] + [self._mask_token] * self.capabilities.depths
        out = self._model.forward(self._target.token_embd.rows(block), length, caches, window)
        rows: Logits = self._target.output(out[1:]).float().numpy()
        return rows

    def cut(self, length: int) -> None:
        self._update()  # some of what is pending may stay
        self._length = self._cached = length

    @torch.inference_mode()
    def _update(self) -> None:
        """Bring the caches up to date with what was observed; rows of rejected nodes never get there."""
        if self._pending:
            self._model.update_cache(torch.cat(self._pending), self._cached, self.caches)
            self._pending.clear()
            self._cached = self._length


class CpuDFlash:
    """A loaded DFlash drafter: implements `drafters.base.Draft` and `HostDraft`."""

    def __init__(
        self,
        file: WeightFile,
        config: DraftConfig,
        model: DFlash,
        target: CpuTarget,
        mask_token: int,
        weight_bytes: int,
        notes: tuple[str, ...] = (),
    ) -> None:
        """`weight_bytes`: what the weights take as they are held."""
        self.file, self.config, self.model, self.target = file, config, model, target
        self.mask_token, self.weight_bytes, self.notes = mask_token, weight_bytes, notes

    @property
    def capabilities(self) -> Capabilities:
        return capabilities(self.config)

    def drafter(self) -> CpuDFlashDrafter:
        return CpuDFlashDrafter(self.model, self.target.model, self.mask_token)

    def logits(self, features: Logits, anchor: int) -> Logits:
        array = checked_features(features, self.config)
        check_ids([anchor], self.target.config.vocab_size)
        drafter = self.drafter()
        # Of a context only its features count here; which tokens they belong to does not.
        rows = torch.from_numpy(array).to(self.model.output_norm.dtype)
        drafter.observe(range(len(array)), rows)
        return drafter.logits(int(anchor), 0)
