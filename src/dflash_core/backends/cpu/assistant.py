"""A Gemma assistant on the CPU: proposes between two steps, token by token, over the target's own keys and values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from dflash_core.arch.assistant import AssistantConfig
from dflash_core.backends.base import Logits
from dflash_core.backends.cpu.hidden_rows import HiddenRows
from dflash_core.cache_types import CachePair
from dflash_core.drafters.assistant import NEEDS_KEYS, capabilities
from dflash_core.drafters.base import DraftLogits, LoadedModel, OpenedModel
from dflash_core.drafters.draw_noise import likeliest, ranked
from dflash_core.errors import MismatchError
from dflash_core.knobs import Knobs
from dflash_core.models.assistant import Assistant
from dflash_core.models.matrix import Weights
from dflash_core.models.rows import LayerState
from dflash_core.models.target import TargetModel
from dflash_core.tree import NO_CANDIDATES, Candidates


class CpuAssistantDrafter:
    """Implements `drafters.base.Drafter`, `DenseDrafter` and `ReadsKeys`. Of its own it has only the target's hidden
    states: drafting after an earlier position starts from that one's."""

    def __init__(self, model: Assistant) -> None:
        self.capabilities = capabilities(model.config)
        self._model = model
        self._states: Sequence[LayerState] = ()
        self.begin()

    @property
    def nbytes(self) -> Mapping[str, int]:
        return {"drafter KV": self._hidden.nbytes}

    def begin(self) -> None:
        self._hidden = HiddenRows(self._model.output_norm, self._model.config.target_width)

    def use_keys(self, states: Sequence[LayerState]) -> None:
        self._states = states

    @torch.inference_mode()
    def observe(self, tokens: Sequence[int], hidden: Tensor | None) -> None:
        assert hidden is not None, "a drafter that is not given its captured layer"
        self._hidden.append(self._model.hidden(hidden))

    def propose(self, root: int, knobs: Knobs, at: int | None = None) -> Candidates:
        length = len(self._hidden) if at is None else at
        return ranked(self._chain(root, knobs.mtp_depth, length, knobs), knobs, length) if length else NO_CANDIDATES

    def logits(self, root: int, window: int, at: int | None = None) -> Logits:
        return self._chain(root, self.capabilities.depths, len(self._hidden) if at is None else at)

    @torch.inference_mode()
    def _chain(self, root: int, depths: int, length: int, knobs: Knobs | None = None) -> Logits:
        """Logits (depths, vocab): of each depth after the best token of the one above, with `knobs` as `ranked`."""
        token, state, rows = root, self._hidden.of(length - 1, length), list[Tensor]()
        for depth in range(depths):
            logits, state = self._model.forward(token, state, length, self._states)
            rows.append(logits)
            token = likeliest(logits.float().numpy(), knobs, length + depth)
        array: Logits = torch.stack(rows).float().numpy()
        return array

    def rows(self, begin: int, end: int) -> tuple[Tensor, ...]:
        return (self._hidden.of(begin, end).clone(),)

    def resume(self, begin: int, tokens: Sequence[int], rows: Iterator[Tensor]) -> None:
        self._hidden.append(next(rows))

    def cut(self, length: int) -> None:
        self._hidden.cut(length)


class CpuAssistant(LoadedModel[AssistantConfig]):
    """A loaded assistant: implements `drafters.base.Draft` and `HostDraft`."""

    def __init__(self, opened: OpenedModel[AssistantConfig], model: Assistant, weight_bytes: int) -> None:
        super().__init__(opened, weight_bytes)
        self.model = model

    def drafter(self, kv: CachePair | None = None) -> CpuAssistantDrafter:
        """It has no keys and values of its own."""
        return CpuAssistantDrafter(self.model)

    def logits(self, features: DraftLogits, anchor: int) -> DraftLogits:
        raise MismatchError(NEEDS_KEYS)


def load(
    opened: OpenedModel[AssistantConfig], weights: Weights, target: TargetModel, weight_bytes: int
) -> CpuAssistant:
    """See `backends.cpu.target.Loader`."""
    return CpuAssistant(opened, Assistant(weights, opened.config, target), weight_bytes)
