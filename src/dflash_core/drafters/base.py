"""The interface between a sequence and its drafter: a `Draft` is a loaded drafter, a `Drafter` its state over one
sequence. The session that owns the sequence passes every commit to the drafter and truncates both together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from dflash_core.cache_types import CachePair
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.knobs import Knobs
from dflash_core.progress import Progress, silent
from dflash_core.tree import Candidates

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from dflash_core.arch.spec import ModelSpec
    from dflash_core.formats.gguf import GGUFFile
    from dflash_core.formats.weights import WeightFile
    from dflash_core.models.rows import LayerState

Config = TypeVar("Config", bound="DraftModel", covariant=True)


class Drafter(Protocol):
    """Proposes tokens after one sequence. A new one is before the first token. `nbytes`: in use now, by component of
    the memory breakdown."""

    @property
    def capabilities(self) -> Capabilities: ...
    @property
    def nbytes(self) -> Mapping[str, int]: ...

    def begin(self) -> None:
        """Begin a new, empty sequence."""

    def observe(self, tokens: Sequence[int], hidden: Tensor | None) -> None:
        """`tokens` were committed, in this order. `hidden` (tokens, layers * width): the outputs of the captured layers
        there, concatenated in the order of `capabilities.captured_layers`; None if it needs none."""

    def propose(self, root: int, knobs: Knobs, at: int | None = None) -> Candidates:
        """Ranked tokens for each depth after what was committed and `root`; fewer depths, even none, where it has
        no proposal. Raises NumericsError.

        With `at` it uses only the first `at` committed positions, as if there were no others. The state does not
        change.
        """

    def cut(self, length: int) -> None:
        """Truncate to the first `length` positions of this sequence."""

    def rows(self, begin: int, end: int) -> tuple[Tensor, ...]:
        """Copies of the state of the positions begin..end, each of which depends only on the tokens up to it."""

    def resume(self, begin: int, tokens: Sequence[int], rows: Iterator[Tensor]) -> None:
        """Restore `tokens`, the committed ones from position `begin` on, with the tensors that `rows` returned for
        them."""


@runtime_checkable
class DenseDrafter(Drafter, Protocol):
    """A drafter that gives a probability to every token of the vocabulary."""

    def logits(self, root: int, window: int, at: int | None = None) -> npt.NDArray[np.float32]:
        """Logits (depths, vocab) after `root`; `window`: positions that it sees, 0 for all; `at` as in
        `Drafter.propose`."""


@runtime_checkable
class ReadsKeys(Protocol):
    """A drafter that reads keys and values of the target's layers on the CPU; on a card, a drafter inside the step gets
    them there."""

    def use_keys(self, states: Sequence[LayerState]) -> None:
        """The states of the target's layers for this sequence. Committed positions are theirs after every commit."""


class DraftModel(Protocol):
    """A drafter's own model, as far as plans and descriptions need it. `kind`: its row in drafters/kinds.py."""

    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def block_count(self) -> int: ...

    def position_bytes(self, kv: CachePair) -> int:
        """Bytes that it stores per position, with keys and values of the types `kv`."""


class DraftTarget(Protocol):
    """The part of `backends.opened.Target` that a drafter uses."""

    @property
    def config(self) -> ModelSpec: ...
    @property
    def file(self) -> GGUFFile: ...

    def load_draft(self, opened: OpenedModel[DraftModel], dtype: torch.dtype | None = None) -> Draft:
        """A drafter's weights, stored like this target's, in float32 by default. Raises OutOfMemoryError, and
        UnsupportedError for a kind without a loader for this machine."""


@dataclass(frozen=True, slots=True)
class TargetHeader:
    """Implements `DraftTarget` for a target whose weights are not loaded: shows whether a drafter fits it."""

    file: GGUFFile
    config: ModelSpec

    def load_draft(self, opened: OpenedModel[DraftModel], dtype: torch.dtype | None = None) -> Draft:
        raise AssertionError("only the header of this target is known")


class ForTarget(Protocol):
    """The description of a drafter, opened or loaded. `config`: that of its own model, None for one without; `files`:
    its weights, one for each of its models."""

    @property
    def target(self) -> DraftTarget: ...
    @property
    def capabilities(self) -> Capabilities: ...
    @property
    def config(self) -> DraftModel | None: ...
    @property
    def files(self) -> tuple[WeightFile, ...]: ...
    @property
    def notes(self) -> tuple[str, ...]: ...


class Draft(ForTarget, Protocol):
    """A loaded drafter, bound to its target. `weight_bytes`: in their stored form."""

    @property
    def weight_bytes(self) -> int: ...


@runtime_checkable
class HostDraft(Protocol):
    """A loaded drafter that proposes on the host, in lock-step with the target's steps."""

    def drafter(self, kv: CachePair | None = None) -> Drafter:
        """Its state over a new sequence. `kv`: the types of its keys and values of all positions; None: floats."""


class OpenedDraft(ForTarget, Protocol):
    """A drafter whose header was read and found to fit `target`."""

    def load(self, *, dtype: torch.dtype | None = None, progress: Progress | None = None) -> Draft:
        """Read the weights, see `DraftTarget.load_draft`."""


@dataclass(frozen=True, slots=True)
class OpenedModel(Generic[Config]):
    """Implements `OpenedDraft` for a drafter with weights. `config` is complete for this target; `file` holds the
    drafter's tensors and no others."""

    target: DraftTarget
    config: Config
    file: WeightFile
    capabilities: Capabilities
    notes: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[WeightFile, ...]:
        return (self.file,)

    def load(self, *, dtype: torch.dtype | None = None, progress: Progress | None = None) -> Draft:
        (progress or silent)("loading the drafter", 0.0)
        return self.target.load_draft(self, dtype)


class LoadedModel(Generic[Config]):
    """The part of `Draft` that the header gives, for a drafter with weights. `weight_bytes`: in their stored form."""

    def __init__(self, opened: OpenedModel[Config], weight_bytes: int) -> None:
        self.opened, self.weight_bytes = opened, weight_bytes
        self.target, self.file, self.files, self.notes = opened.target, opened.file, opened.files, opened.notes
        self.capabilities = opened.capabilities

    @property
    def config(self) -> Config:
        return self.opened.config


DraftOpener = Callable[[str | Path, DraftTarget], OpenedDraft]
"""How a kind of drafter is opened, see drafters/kinds.py: by name or file, and reading no more than the header. Raises
FormatError, UnsupportedError, MismatchError."""
