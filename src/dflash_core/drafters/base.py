"""The seam between a sequence and what drafts for it.

A `Draft` is what was loaded, a `Drafter` its state over one sequence. The session that owns the sequence tells the
drafter of every commit and cuts it back together with itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from dflash_core.cache_types import CachePair
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.errors import not_finite
from dflash_core.knobs import Knobs
from dflash_core.tree import Candidates, candidates

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from dflash_core.arch.spec import ModelSpec
    from dflash_core.drafters.dflash import OpenedDFlash
    from dflash_core.drafters.mtp import OpenedMtp
    from dflash_core.formats.gguf import GGUFFile
    from dflash_core.formats.weights import WeightFile
    from dflash_core.progress import Progress

DraftLogits = npt.NDArray[np.float32]
"""float32 (depths, vocab): a row per position below the root."""


class Drafter(Protocol):
    """Proposes tokens after one sequence. A new one is before the first token."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def nbytes(self) -> Mapping[str, int]:
        """Bytes held now, by component of the memory breakdown."""

    def begin(self) -> None:
        """Forget everything: another sequence begins."""

    def observe(self, tokens: Sequence[int], hidden: Tensor | None) -> None:
        """`tokens` were committed, in this order. `hidden` (tokens, layers * width): the outputs of the captured layers
        there, concatenated in the order of `capabilities.captured_layers`; None where it asks for none."""

    def propose(self, root: int, knobs: Knobs, at: int | None = None) -> Candidates:
        """Ranked tokens for each depth after what was committed and `root`; fewer depths, even none, where it has
        nothing to say. Raises NumericsError.

        With `at` it uses the first `at` committed positions only, as it did when there were no others. Changes nothing.
        """

    def cut(self, length: int) -> None:
        """Go back to the first `length` positions of this sequence."""

    def rows(self, begin: int, end: int) -> tuple[Tensor, ...]:
        """Copies of what it keeps of the positions begin..end, each made of the tokens up to there alone."""

    def resume(self, begin: int, tokens: Sequence[int], rows: Iterator[Tensor]) -> None:
        """Take `tokens`, the committed ones from position `begin` on, with the tensors that `rows` gave of them."""


@runtime_checkable
class DenseDrafter(Drafter, Protocol):
    """A drafter that gives a probability to every token of the vocabulary."""

    def logits(self, root: int, window: int, at: int | None = None) -> DraftLogits:
        """Logits (depths, vocab) after `root`; `window`: positions that it looks back at, 0 for all; `at` as in
        `Drafter.propose`."""


@runtime_checkable
class KeepsContext(Drafter, Protocol):
    """A drafter with keys and values of all positions."""

    def keep_as(self, kv: CachePair) -> None:
        """Before anything is observed: how they are kept, floats where nothing is said."""


class DraftModel(Protocol):
    """The model of a drafter that has one."""

    @property
    def name(self) -> str: ...
    @property
    def block_count(self) -> int:
        """Its layers."""

    def position_bytes(self, kv: CachePair) -> int:
        """What it keeps for every position."""


class DraftTarget(Protocol):
    """What a drafter knows of its target: `backends.base.Target` has it, and more."""

    @property
    def config(self) -> ModelSpec: ...
    @property
    def file(self) -> GGUFFile: ...
    @property
    def mask_token_id(self) -> int | None: ...

    def load_dflash(self, opened: OpenedDFlash, dtype: torch.dtype) -> Draft:
        """A DFlash drafter's weights, held as this target's are. Raises OutOfMemoryError."""

    def load_mtp(self, opened: OpenedMtp, dtype: torch.dtype) -> Draft:
        """An MTP head's weights, held as this target's are. Raises OutOfMemoryError, UnsupportedError."""


class ForTarget(Protocol):
    """What a drafter says of itself, opened or loaded."""

    @property
    def target(self) -> DraftTarget: ...
    @property
    def capabilities(self) -> Capabilities: ...
    @property
    def config(self) -> DraftModel | None:
        """Of a drafter with a model of its own; None for one without."""

    @property
    def notes(self) -> tuple[str, ...]: ...


class Draft(ForTarget, Protocol):
    """A loaded drafter, bound to its target."""

    @property
    def weight_bytes(self) -> int:
        """What its weights take in memory as they are held."""

    def logits(self, features: DraftLogits, anchor: int) -> DraftLogits:
        """Draft rows 1..block-1 after a context: (block - 1, vocab) float32.

        `features` (n, layers * hidden): what `Target.hidden(ids, capabilities.captured_layers)` gives for the n tokens
        before the anchor. Raises MismatchError for another width and for a drafter without logits, ContextError for an
        anchor that is not in the vocabulary.
        """


@runtime_checkable
class HostDraft(Protocol):
    """A loaded drafter that proposes on the host, in lock-step with the target's steps."""

    def drafter(self) -> Drafter:
        """Its state over a new sequence."""


class OpenedDraft(ForTarget, Protocol):
    """A drafter whose header was read and found to fit `target`."""

    @property
    def file(self) -> WeightFile | None:
        """Its weights; None for a drafter without."""

    def load(self, *, dtype: torch.dtype | None = None, progress: Progress | None = None) -> Draft:
        """Read the weights, held like the target's, in float32 by default. Raises OutOfMemoryError."""


class DraftOpener(Protocol):
    """How a kind of drafter is opened, see drafters/registry.py."""

    def __call__(self, path: str | Path, target: DraftTarget, /) -> OpenedDraft:
        """Read its header only. Raises FormatError, UnsupportedError, MismatchError."""


def ranked(logits: DraftLogits, knobs: Knobs, position: int) -> Candidates:
    """The best tokens of each row of dense draft logits (depths, vocab), drafted after `position` tokens.

    Raises NumericsError where a row's best is no number; -inf rules a single token out.
    """
    check_finite(logits, position)
    return candidates(logits, knobs.tree_width, knobs.tree_temperature)


def check_finite(logits: DraftLogits, position: int, model: str = "drafter") -> None:
    """Raises NumericsError where the best of a row of logits (n, vocab) is no number; -inf rules a token out."""
    if not np.isfinite(logits.max(axis=-1)).all():
        raise not_finite(model, position)
