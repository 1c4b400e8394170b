"""Sessions and machines as other code sees them; and what targets of every backend have in common: the header with its
text parts, and passes over plain ids."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from dflash_core import memory
from dflash_core.arch.folders.opening import open_model
from dflash_core.arch.spec import EMBEDDING, ModelSpec
from dflash_core.backends.base import PREFILL_CHUNK, AnswerOptions, Backend, Logits
from dflash_core.backends.decoder import AnswerDecoder
from dflash_core.cache_types import AUTO, CachePair
from dflash_core.config import read_target
from dflash_core.drafters import registry
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.drafters.draft import Draft
from dflash_core.errors import MismatchError
from dflash_core.fits import PREFILL_ROWS, MemoryEstimator
from dflash_core.formats.gguf import GGUFFile
from dflash_core.ids import check_ids
from dflash_core.knobs import Knobs
from dflash_core.memory import Component, MemoryBreakdown
from dflash_core.policy.costs import CostTable
from dflash_core.snapshots.base import Resumable

if TYPE_CHECKING:
    import torch

    from dflash_core.progress import Progress
    from dflash_core.text.template import ChatTemplate
    from dflash_core.text.tokenizer import Tokenizer


class Session(Backend, Resumable, Protocol):
    """A backend that decodes answers, can be stored, and shows the outputs of its target's layers."""

    def in_chunks(self, count: int) -> bool:
        """Whether `prefill` reads so many tokens by other arithmetic than a step's."""

    def decoder(self, options: AnswerOptions) -> AnswerDecoder:
        """What decodes one answer after the prompt that was read last. Raises KnobError."""

    def prepare(self, progress: Progress, knobs: Knobs) -> None:
        """Prepare what a first answer, with the sampling of `knobs`, would have to wait for."""

    @property
    def nbytes(self) -> Mapping[str, int]:
        """Bytes in use now, by component of the memory breakdown."""

    @property
    def cuts_anywhere(self) -> bool:
        """Whether `cut` succeeds for every length: all layers store all positions."""

    @property
    def max_drafted(self) -> int:
        """The most drafted tokens of a tree: the budgets that memory is reserved for."""

    def leave(self) -> None:
        """End of the session's use: it gives up the memory of its copies."""

    def features(self) -> Logits:
        """Outputs of the captured layers (n, layers * hidden) at the rows of the last verify, before its commit."""


class Machine(Protocol):
    """Where a pair runs: what it can do, and what memory there is. `Target.estimator` predicts a pair's share."""

    @property
    def name(self) -> str: ...

    @property
    def prefill_chunk(self) -> int:
        """Prompt tokens that one pass reads."""

    @property
    def tree_width(self) -> int:
        """Candidates per draft position that a step can keep, at most."""

    def step_costs(self, drafter: Capabilities) -> CostTable | None:
        """How the cost of a step with `drafter` grows with its rows, before any is measured; None where the knobs alone
        decide."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know of it, a line each."""

    def learn(self, session: Session, progress: Progress) -> None:
        """Measure what is not known of this machine yet, on an empty sequence that stays empty."""

    def available(self) -> int:
        """Bytes that weights and a sequence may take now."""

    def breakdown(self, components: tuple[Component, ...], session: Session | None = None) -> MemoryBreakdown:
        """The components and what the machine has now; with a session also what it and other processes hold."""


class Target(ABC):
    """A target model on one machine: its header at once, text parts on first use, weights after `load`. Raises
    FormatError or UnsupportedError.

    notes: what a user should know of how it was opened. host_bytes: of the token embedding of a target on a card, those
    that stay in main memory; host_experts: the routed experts that do. arithmetic: how states are computed, if there is
    a choice; a state computed in another way is not reused.
    """

    host_bytes = 0
    host_experts = memory.HostExperts()
    arithmetic = ""
    machine: Machine

    def __init__(self, path: str | Path) -> None:
        self.notes: tuple[str, ...] = ()
        self.program_bytes = memory.host_memory().process  # Python and torch, before any of the model
        self.file: GGUFFile
        self.config: ModelSpec
        self.file, self.config = read_target(open_model(path))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The file's own tokenizer. Raises FormatError or UnsupportedError."""
        from dflash_core.text.tokenizer import Tokenizer  # plans do without it, and without jinja

        return Tokenizer.from_metadata(self.file.metadata)

    @cached_property
    def template(self) -> ChatTemplate:
        """The file's own chat template, or plain ChatML. Raises TemplateError."""
        from dflash_core.text.template import ChatTemplate

        return ChatTemplate.for_tokenizer(self.tokenizer)

    @property
    def own_draft(self) -> str | None:
        return registry.own_kind(self.file, self.config)

    @property
    @abstractmethod
    def packed(self) -> bool:
        """Whether weights stay quantised and are dequantised at every use."""

    @property
    @abstractmethod
    def weight_bytes(self) -> int:
        """The memory that the weights take, in the form they have there."""

    @abstractmethod
    def estimator(self, draft: Draft | None) -> MemoryEstimator:
        """Predicts the memory that this target and `draft` would take here, by each choice of loading."""

    @abstractmethod
    def check_memory(self, draft: Draft | None, context: int | None, kv: str = AUTO) -> None:
        """Refuse, from only the headers, what cannot fit together: weights, a drafter's, and `context` positions, with
        keys and values stored as `kv` says. Raises OutOfMemoryError."""

    @abstractmethod
    def load(self, *, packed: bool | None = None, dtype: torch.dtype, progress: Progress) -> None:
        """Read the weights; `packed` None keeps them quantised only where floats would not fit. Raises
        OutOfMemoryError where they do not fit."""

    @abstractmethod
    def session(
        self,
        draft: Draft | None = None,
        captured: Sequence[int] = (),
        context: int = 0,
        kv: CachePair | None = None,
        rows: int = PREFILL_ROWS,
        nodes: int = 0,
    ) -> Session:
        """An empty sequence on this target; without a drafter, `captured` names the layers whose outputs it records.

        For backends that allocate at once, `context`: positions that it must hold, `rows`: of a prompt that it reads at
        once, and `nodes`: of its largest tree, 0 for the largest that there can be. `kv`: types of keys and
        values; None: as exactly as this machine stores them.
        """

    @abstractmethod
    def step_seconds(self, rows: int) -> float | None:
        """Predicted seconds of one pass of `rows` rows; None on machines where no step is slow."""

    @abstractmethod
    def load_draft(self, opened: Draft, dtype: torch.dtype | None = None) -> Draft: ...

    def logits(self, ids: Sequence[int], kv: str | CachePair | None = None) -> Logits:
        """Next-token logits at every position, (n, vocab) float32. `kv`: types of keys and values meanwhile, a name
        or two as K/V; None: as exactly as this machine stores them. Raises ContextError for ids that it does not have,
        and KnobError for an unknown type."""
        pair = CachePair.parse(kv) if isinstance(kv, str) else kv
        return np.concatenate([logits for _, logits in self._passes((), ids, pair)])

    def hidden(self, ids: Sequence[int], layers: Sequence[int]) -> Logits:
        """Outputs of `layers` (residual stream after the layer) at every position, concatenated in that order:
        (n, len(layers) * hidden) float32. `arch.spec.EMBEDDING` stands for what the first layer reads. Raises
        ContextError for ids and MismatchError for layers that the model does not have."""
        plain = [int(layer) for layer in layers]  # an array is as good as a list
        wrong = [layer for layer in plain if not EMBEDDING <= layer < self.config.block_count]
        if wrong or not plain:
            what = f"layer {wrong[0]} does not exist" if wrong else "no layer named"
            raise MismatchError(f"{what}; this target has 0..{self.config.block_count - 1}")
        return np.concatenate([features for features, _ in self._passes(plain, ids)])

    def _passes(
        self, captured: Sequence[int], ids: Sequence[int], kv: CachePair | None = None
    ) -> Iterator[tuple[Logits, Logits]]:
        """Run a prompt chunk by chunk: outputs of captured layers, if any, and logits of each."""
        plain = check_ids(ids, self.config.vocab_size)
        session = self.session(captured=captured, context=len(plain), kv=kv)
        for at in range(0, len(plain), PREFILL_CHUNK):
            part = plain[at : at + PREFILL_CHUNK]
            logits = session.verify(part, range(-1, len(part) - 1))
            yield (session.features() if captured else logits[:, :0]), logits
            session.commit(range(len(part)))
