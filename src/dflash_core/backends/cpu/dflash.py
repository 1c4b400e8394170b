"""Block drafters on the CPU: they propose between two steps, and use the target's embedding and head if they lack
them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from dflash_core.backends.base import Logits
from dflash_core.cache_types import CachePair
from dflash_core.config import DraftConfig
from dflash_core.drafters.dflash import capabilities
from dflash_core.drafters.draft import Loaded
from dflash_core.drafters.draw_noise import draw_noise, ranked, reranked
from dflash_core.knobs import Knobs
from dflash_core.models.dflash import DFlash
from dflash_core.models.kv_cache import KVCache
from dflash_core.models.matrix import Weights
from dflash_core.models.rows import LayerState
from dflash_core.models.target import TargetModel
from dflash_core.sampling import check_finite
from dflash_core.tree import Candidates

# Features wait until there are this many rows or a draft needs them, so that plain decoding rarely pays for them.
PENDING_ROWS = 256


class CpuDFlashDrafter:
    """Implements `drafters.base.Drafter` and `DenseDrafter`: its cache holds keys and values of captured features."""

    def __init__(self, model: DFlash, target: TargetModel, kv: CachePair | None = None) -> None:
        config = model.config
        self.capabilities = capabilities(config)
        self._model, self._target, self._kv = model, target, kv
        self._masks, self._depths = [config.mask_token] * (config.block_size - 1), config.depths
        self._conditional = config.heads.conditional
        self.begin()

    @property
    def nbytes(self) -> Mapping[str, int]:
        return {"drafter KV": sum(cache.nbytes for cache in self.caches)}

    def begin(self, states: Sequence[LayerState] = ()) -> None:
        self.caches: list[KVCache] = self._model.new_states(self._kv)
        self._length = self._cached = 0  # positions observed, and those of them that are in the caches
        self._pending: list[Tensor] = []

    def observe(self, tokens: Sequence[int], hidden: Tensor | None) -> None:
        assert hidden is not None, "a drafter that is not given its captured layers"
        self._pending.append(hidden)
        self._length += len(tokens)
        if self._length - self._cached >= PENDING_ROWS:
            self._update()

    def propose(self, root: int, knobs: Knobs, at: int | None = None) -> Candidates:
        hidden, logits = self.draft(root, knobs.draft_window, at)
        plain: Logits = logits.float().numpy()
        position = self._length if at is None else at
        if not (knobs.by_parent and self._conditional):
            return ranked(plain, knobs, position)
        check_finite(plain, position)
        found = self._model.conditional(root, hidden, logits, position, knobs.tree_temperature, knobs.tree_width)
        return reranked(found, draw_noise(knobs, position, found.tokens))

    def logits(self, root: int, window: int, at: int | None = None) -> Logits:
        return self.draft(root, window, at)[1].float().numpy()

    @torch.inference_mode()
    def draft(self, root: int, window: int, at: int | None = None) -> tuple[Tensor, Tensor]:
        """Hidden rows (depths, hidden) and logits (depths, vocab) of a block, as `logits`."""
        self._update()
        length, caches = self._length, self.caches
        if at is not None and at < length:
            # A pass writes its own rows after the context, where the later positions are stored here.
            length, caches = at, [cache.copy() for cache in caches]
        model, target = self._model, self._target
        block = [root, *self._masks]
        out = model.forward(model.embed(block, target.token_embd), length, caches, window)[-self._depths :]
        return out, model.spread(model.logits(out, target.output), target.spec.vocab_size)

    def rows(self, begin: int, end: int) -> tuple[Tensor, ...]:
        self._update()
        return tuple(tensor for cache in self.caches for tensor in cache.positions(begin, end))

    def resume(self, begin: int, tokens: Sequence[int], rows: Iterator[Tensor]) -> None:
        for cache in self.caches:
            cache.put(begin, rows)
        self._length = self._cached = begin + len(tokens)

    def cut(self, length: int) -> None:
        self._update()  # some pending rows may stay
        self._length = self._cached = length

    @torch.inference_mode()
    def _update(self) -> None:
        """Bring the caches up to date with what was observed; rows of rejected nodes never get there."""
        if self._pending:
            self._model.update_cache(torch.cat(self._pending), self._cached, self.caches)
            self._pending.clear()
            self._cached = self._length


def load(config: DraftConfig, weights: Weights, target: TargetModel) -> Loaded:
    model = DFlash(weights, config)
    return model, lambda kv=None: CpuDFlashDrafter(model, target, kv)
