"""Drafters on the CPU that draft a chain token by token, each from the token and the hidden state before it: MTP heads,
which write keys and values of their own, and Gemma's assistants, which read those of the target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from dflash_core.arch.assistant import AssistantConfig
from dflash_core.backends.base import PREFILL_CHUNK, Logits
from dflash_core.config import MtpConfig
from dflash_core.drafters import assistant, mtp
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.drafters.draft import Loaded
from dflash_core.drafters.draw_noise import likeliest, ranked
from dflash_core.knobs import Knobs
from dflash_core.models.assistant import Assistant
from dflash_core.models.kv_cache import grown
from dflash_core.models.matrix import Weights
from dflash_core.models.mtp import Mtp
from dflash_core.models.rows import LayerState
from dflash_core.models.target import TargetModel
from dflash_core.tree import NO_CANDIDATES, Candidates

Model = TypeVar("Model", Mtp, Assistant)
Pass = Callable[[int, Tensor, int], tuple[Tensor, Tensor]]
"""(token, the hidden state (1, width) before it, its depth) -> logits (vocab,), and the hidden state for the next."""


class ChainDrafter(ABC, Generic[Model]):
    """Implements `drafters.base.Drafter` and `DenseDrafter`. It stores the target's hidden state of every position:
    drafting after an earlier position starts from that one's."""

    def __init__(self, model: Model, capabilities: Capabilities, like: Tensor, width: int) -> None:
        """Hidden states have `width` numbers of the type of `like`."""
        self._model: Model = model
        self.capabilities, self._none = capabilities, like.new_empty(1, 0, width)
        self.begin()

    @property
    def nbytes(self) -> Mapping[str, int]:
        return {"drafter KV": self._hidden.nbytes}

    def begin(self, states: Sequence[LayerState] = ()) -> None:
        self._states, self._hidden, self._length = states, self._none, 0

    @torch.inference_mode()
    def observe(self, tokens: Sequence[int], hidden: Tensor | None) -> None:
        assert hidden is not None, "a drafter that is not given its captured layer"
        self._append(self._model.hidden(hidden))

    def propose(self, root: int, knobs: Knobs, at: int | None = None) -> Candidates:
        length = self._length if at is None else at
        return ranked(self._chain(root, knobs.mtp_depth, length, knobs), knobs, length) if length else NO_CANDIDATES

    def logits(self, root: int, window: int, at: int | None = None) -> Logits:
        return self._chain(root, self.capabilities.depths, self._length if at is None else at)

    @torch.inference_mode()
    def _chain(self, root: int, depths: int, length: int, knobs: Knobs | None = None) -> Logits:
        """Logits (depths, vocab): of each depth after the best token of the one above, with `knobs` as `ranked`."""
        run, token, hidden, rows = self._pass(length), root, self._hidden[0, length - 1 : length], list[Tensor]()
        for depth in range(depths):
            logits, hidden = run(token, hidden, depth)
            rows.append(logits)
            token = likeliest(logits.float().numpy(), knobs, length + depth)
        return torch.stack(rows).float().numpy()

    @abstractmethod
    def _pass(self, length: int) -> Pass:
        """What drafts a token after the first `length` positions."""

    def _append(self, hidden: Tensor) -> None:
        """The hidden states (n, width) of the next positions."""
        end = self._length + len(hidden)
        if end > self._hidden.shape[1]:
            self._hidden = grown(self._hidden, self._length, end)
        self._hidden[0, self._length : end] = hidden
        self._length = end

    def rows(self, begin: int, end: int) -> tuple[Tensor, ...]:
        return (self._hidden[0, begin:end].clone(),)

    def resume(self, begin: int, tokens: Sequence[int], rows: Iterator[Tensor]) -> None:
        self._append(next(rows))

    def cut(self, length: int) -> None:
        self._length = min(self._length, length)


class CpuMtpDrafter(ChainDrafter[Mtp]):
    """Pair k is (token k + 1, hidden k), so n committed positions make n - 1 pairs; the root and the last hidden make
    the next one. Pairs wait until a draft needs them: plain decoding does not pay for them."""

    def __init__(self, model: Mtp) -> None:
        super().__init__(model, mtp.capabilities(model.config), model.enorm, model.config.embedding_length)

    @property
    def nbytes(self) -> Mapping[str, int]:
        return {"drafter KV": self.cache.nbytes + self._hidden.nbytes}

    def begin(self, states: Sequence[LayerState] = ()) -> None:
        super().begin(states)
        self.cache = self._model.new_state()
        self._tokens: list[int] = []
        self._cached = 0  # pairs in the cache

    def observe(self, tokens: Sequence[int], hidden: Tensor | None) -> None:
        super().observe(tokens, hidden)
        self._tokens += tokens

    def _pass(self, length: int) -> Pass:
        self._update()
        # A chain writes its own pairs after the context, where the later ones are stored here.
        model, cache = self._model, self.cache if length == self._length else self.cache.copy()

        def run(token: int, hidden: Tensor, depth: int) -> tuple[Tensor, Tensor]:
            hidden = model.forward([token], hidden, length - 1 + depth, cache)
            return model.logits(hidden)[0], hidden

        return run

    def rows(self, begin: int, end: int) -> tuple[Tensor, ...]:
        self._update()
        # Pair p - 1 belongs to hidden p: both follow from the tokens up to p. There is none before the first.
        pairs = self.cache.positions(max(begin - 1, 0), max(end - 1, 0))
        if begin == 0 and end > 0:
            pairs = tuple(F.pad(rows, (0, 0, 1, 0)) for rows in pairs)
        return (*super().rows(begin, end), *pairs)

    def resume(self, begin: int, tokens: Sequence[int], rows: Iterator[Tensor]) -> None:
        super().resume(begin, tokens, rows)
        self._tokens += tokens
        k, v = next(rows), next(rows)
        self.cache.put(max(begin - 1, 0), iter((k[:, 1:], v[:, 1:]) if begin == 0 else (k, v)))
        self._cached = begin + len(tokens) - 1

    def cut(self, length: int) -> None:
        super().cut(length)
        del self._tokens[length:]
        self._cached = min(self._cached, max(length - 1, 0))

    @torch.inference_mode()
    def _update(self) -> None:
        """Bring the cache up to date with what was committed, with the target's own hiddens."""
        for at in range(self._cached, self._length - 1, PREFILL_CHUNK):
            end = min(at + PREFILL_CHUNK, self._length - 1)
            self._model.remember(self._tokens[at + 1 : end + 1], self._hidden[0, at:end], at, self.cache)
            self._cached = end


class CpuAssistantDrafter(ChainDrafter[Assistant]):
    def __init__(self, model: Assistant) -> None:
        super().__init__(model, assistant.capabilities(model.config), model.output_norm, model.config.target_width)

    def _pass(self, length: int) -> Pass:
        return lambda token, hidden, depth: self._model.forward(token, hidden, length, self._states)


def load_mtp(config: MtpConfig, weights: Weights, target: TargetModel) -> Loaded:
    """Keys and values are floats whatever the others are."""
    model = Mtp(weights, config, target)
    return model, lambda kv=None: CpuMtpDrafter(model)


def load_assistant(config: AssistantConfig, weights: Weights, target: TargetModel) -> Loaded:
    model = Assistant(weights, config, target)
    return model, lambda kv=None: CpuAssistantDrafter(model)
