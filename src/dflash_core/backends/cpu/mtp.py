"""An MTP head on the CPU: proposes between two steps, token by token after what was committed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from dflash_core.backends.base import PREFILL_CHUNK, Logits
from dflash_core.backends.cpu.hidden_rows import HiddenRows
from dflash_core.cache_types import CachePair
from dflash_core.config import MtpConfig
from dflash_core.drafters.base import DraftLogits, LoadedModel, OpenedModel
from dflash_core.drafters.draw_noise import likeliest, ranked
from dflash_core.drafters.mtp import NEEDS_TOKENS, capabilities
from dflash_core.errors import MismatchError
from dflash_core.knobs import Knobs
from dflash_core.models.matrix import Weights
from dflash_core.models.mtp import Mtp
from dflash_core.models.target import TargetModel
from dflash_core.tree import NO_CANDIDATES, Candidates


class CpuMtpDrafter:
    """Implements `drafters.base.Drafter` and `DenseDrafter`.

    Pair k is (token k + 1, hidden k), so n committed positions make n - 1 pairs; the root and the last hidden make
    the next one. Pairs are kept until a draft needs them: plain decoding does not pay for them.
    """

    def __init__(self, model: Mtp) -> None:
        self.capabilities = capabilities(model.config)
        self._model = model
        self.begin()

    @property
    def nbytes(self) -> Mapping[str, int]:
        return {"drafter KV": self.cache.nbytes + self._hidden.nbytes}

    def begin(self) -> None:
        self.cache = self._model.new_state()
        self._hidden = HiddenRows(self._model.enorm, self._model.config.embedding_length)
        self._tokens: list[int] = []
        self._cached = 0  # pairs in the cache

    @torch.inference_mode()
    def observe(self, tokens: Sequence[int], hidden: Tensor | None) -> None:
        assert hidden is not None, "a drafter that is not given its captured layer"
        self._remember(tokens, self._model.hidden(hidden))

    def _remember(self, tokens: Sequence[int], hidden: Tensor) -> None:
        """Committed tokens, and the hiddens that the head reads at them."""
        self._hidden.append(hidden)
        self._tokens += tokens

    def propose(self, root: int, knobs: Knobs, at: int | None = None) -> Candidates:
        length = len(self._tokens) if at is None else at
        if not length:
            return NO_CANDIDATES
        return ranked(self._chain(root, knobs.mtp_depth, at, knobs), knobs, length)

    def logits(self, root: int, window: int, at: int | None = None) -> Logits:
        return self._chain(root, self.capabilities.depths, at)

    @torch.inference_mode()
    def _chain(self, root: int, depths: int, at: int | None, knobs: Knobs | None = None) -> Logits:
        """Logits (depths, vocab): of each depth after the best token of the one above, with `knobs` as `ranked`."""
        self._update()
        length, cache = len(self._tokens), self.cache
        if at is not None and at < length:
            # A chain writes its own pairs after the context, where the later ones are stored here.
            length, cache = at, cache.copy()
        token, hidden, rows = root, self._hidden.of(length - 1, length), list[Tensor]()
        for depth in range(depths):
            hidden = self._model.forward([token], hidden, length - 1 + depth, cache)
            rows.append(self._model.logits(hidden))
            token = likeliest(rows[-1][0].float().numpy(), knobs, length + depth)
        array: Logits = torch.cat(rows).float().numpy()
        return array

    def rows(self, begin: int, end: int) -> tuple[Tensor, ...]:
        self._update()
        # Pair p - 1 belongs to hidden p: both follow from the tokens up to p. There is none before the first.
        pairs = self.cache.positions(max(begin - 1, 0), max(end - 1, 0))
        if begin == 0 and end > 0:
            pairs = tuple(F.pad(rows, (0, 0, 1, 0)) for rows in pairs)
        return (self._hidden.of(begin, end).clone(), *pairs)

    def resume(self, begin: int, tokens: Sequence[int], rows: Iterator[Tensor]) -> None:
        self._remember(tokens, next(rows))
        k, v = next(rows), next(rows)
        self.cache.put(max(begin - 1, 0), iter((k[:, 1:], v[:, 1:]) if begin == 0 else (k, v)))
        self._cached = begin + len(tokens) - 1

    def cut(self, length: int) -> None:
        del self._tokens[length:]
        self._hidden.cut(length)
        self._cached = min(self._cached, max(length - 1, 0))

    @torch.inference_mode()
    def _update(self) -> None:
        """Bring the cache up to date with what was committed, with the target's own hiddens."""
        for at in range(self._cached, len(self._tokens) - 1, PREFILL_CHUNK):
            end = min(at + PREFILL_CHUNK, len(self._tokens) - 1)
            self._model.remember(self._tokens[at + 1 : end + 1], self._hidden.of(at, end), at, self.cache)
            self._cached = end


class CpuMtp(LoadedModel[MtpConfig]):
    """A loaded MTP head: implements `drafters.base.Draft` and `HostDraft`."""

    def __init__(self, opened: OpenedModel[MtpConfig], model: Mtp, weight_bytes: int) -> None:
        super().__init__(opened, weight_bytes)
        self.model = model

    def drafter(self, kv: CachePair | None = None) -> CpuMtpDrafter:
        """Its keys and values are floats whatever `kv` says."""
        return CpuMtpDrafter(self.model)

    def logits(self, features: DraftLogits, anchor: int) -> DraftLogits:
        raise MismatchError(NEEDS_TOKENS)

    @torch.inference_mode()
    def teacher_forced(self, tokens: Sequence[int], outputs: Logits) -> Logits:
        """Logits (n - 1, vocab) of n tokens with the outputs (n, hidden) of the target's last layer."""
        cache, parts = self.model.new_state(), list[Tensor]()
        hidden = self.model.hidden(torch.from_numpy(outputs).to(self.model.enorm.dtype))
        for at in range(0, len(tokens) - 1, PREFILL_CHUNK):
            end = min(at + PREFILL_CHUNK, len(tokens) - 1)
            parts.append(self.model.logits(self.model.forward(tokens[at + 1 : end + 1], hidden[at:end], at, cache)))
        array: Logits = torch.cat(parts).float().numpy()
        return array


def load(opened: OpenedModel[MtpConfig], weights: Weights, target: TargetModel, weight_bytes: int) -> CpuMtp:
    """See `backends.cpu.target.Loader`."""
    return CpuMtp(opened, Mtp(weights, opened.config, target), weight_bytes)
