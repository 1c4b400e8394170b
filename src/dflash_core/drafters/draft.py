"""A drafter as it is opened and loaded for one target; and several of one target together: the policy picks one for
each step, or the `draft` knob names it. All of them observe the sequence; only the chosen one proposes, on the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dflash_core.cache_types import CachePair
from dflash_core.config import unused_heads
from dflash_core.drafters.base import Drafter, DraftModel
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.errors import Code, ContextError, UnsupportedError
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


class DraftTarget(Protocol):
    """The part of `backends.opened.Target` that a drafter uses."""

    @property
    def config(self) -> ModelSpec: ...
    @property
    def file(self) -> GGUFFile: ...

    def load_draft(self, opened: Draft, dtype: torch.dtype | None = None) -> Draft:
        """The drafter with its weights, stored like this target's, in float32 by default. Raises OutOfMemoryError, and
        UnsupportedError for a kind without a loader for this machine."""


@dataclass(frozen=True, slots=True)
class TargetHeader:
    """Implements `DraftTarget` for a target whose weights are not loaded: shows whether a drafter fits it."""

    file: GGUFFile
    config: ModelSpec

    def load_draft(self, opened: Draft, dtype: torch.dtype | None = None) -> Draft:
        raise AssertionError("only the header of this target is known")


@dataclass(frozen=True, slots=True)
class Draft:
    """A drafter whose header was read and found to fit `target`, and after `load` its weights.

    `config`: that of its own model, complete for this target; None for one without. `files`: its tensors and no others,
    one for each of its models. `parts`: of several drafters together, each. `model`: its network, once loaded;
    `weight_bytes`: in their stored form. `drafter`: makes its state over a new sequence, given the types of its keys
    and values of all positions, or None for floats; None for one that proposes inside a card's steps.
    """

    target: DraftTarget
    capabilities: Capabilities
    config: Any = None  # a DraftModel
    files: tuple[WeightFile, ...] = ()
    notes: tuple[str, ...] = ()
    parts: tuple[Draft, ...] = ()
    model: Any = None
    weight_bytes: int = 0
    drafter: Callable[..., Drafter] | None = None

    @property
    def file(self) -> WeightFile:
        """Of a single drafter with a model."""
        return self.files[0]

    def load(self, *, dtype: torch.dtype | None = None, progress: Progress | None = None) -> Draft:
        """Read the weights, see `DraftTarget.load_draft`."""
        if self.parts:
            loaded = [part.load(dtype=dtype, progress=progress) for part in self.parts]
            if not all(part.drafter for part in loaded):
                raise not_on_a_card(self.capabilities)
            return several(self.target, loaded)
        if self.config is None:  # there is nothing to load
            return self
        (progress or silent)("loading the drafter", 0.0)
        return self.target.load_draft(self, dtype)


Loaded = tuple[Any, Callable[..., Drafter]]
"""What a loader of `drafters/kinds.py` makes on the CPU: `Draft.model` and `Draft.drafter`."""
DraftOpener = Callable[[str | Path, DraftTarget], Draft]
"""How a kind of drafter is opened, see drafters/kinds.py: by name or file, and reading no more than the header. Raises
FormatError, UnsupportedError, MismatchError."""


def several(target: DraftTarget, parts: Sequence[Draft]) -> Draft:
    """Drafters of different kinds. Raises ContextError for two of one kind: the knob could not distinguish them."""
    kinds = [part.capabilities.kind for part in parts]
    if len(set(kinds)) < len(kinds):
        raise ContextError(f"two drafters of one kind ({', '.join(kinds)}), expected one of each; leave one out")
    unused = unused_heads(target.config)  # as a single drafter gets it
    models = [part.config for part in parts if part.config is not None]
    return Draft(
        target, together([part.capabilities for part in parts]), SeveralModels(models) if models else None,
        files=tuple(file for part in parts for file in part.files),
        notes=tuple(note for part in parts for note in part.notes if not ("mtp" in kinds and note == unused)),
        parts=tuple(parts), weight_bytes=sum(part.weight_bytes for part in parts),
        drafter=lambda kv: SeveralDrafters([part.drafter(kv) for part in parts if part.drafter]),
    )  # fmt: skip


def not_on_a_card(several: Capabilities) -> UnsupportedError:
    """The error for several drafters where steps run on a card."""
    return UnsupportedError(
        f"{len(several.parts)} drafters at once ({several.kind}) on a card, expected one; load one of them, or run "
        "them on the CPU",
        code=Code.NOT_ON_THIS_DEVICE,
    )


def together(parts: Sequence[Capabilities]) -> Capabilities:
    """What drafters can do among them."""
    return Capabilities(
        "+".join(part.kind for part in parts),
        max(part.block for part in parts),
        captured_layers=tuple(sorted({layer for part in parts for layer in part.captured_layers})),
        knobs=frozenset({"draft"}).union(*(part.knobs for part in parts)),
        parts=tuple(parts),
    )


class SeveralDrafters:
    """Implements `drafters.base.Drafter`."""

    def __init__(self, parts: Sequence[Drafter]) -> None:
        self.capabilities = together([part.capabilities for part in parts])
        self.parts = tuple(parts)

    @property
    def nbytes(self) -> Mapping[str, int]:
        return Counter[str]() + sum((Counter(part.nbytes) for part in self.parts), Counter[str]())

    def begin(self, states: Sequence[LayerState] = ()) -> None:
        for part in self.parts:
            part.begin(states)

    def observe(self, tokens: Sequence[int], hidden: Tensor | None) -> None:
        layers = self.capabilities.captured_layers
        for part in self.parts:
            own = part.capabilities.captured_layers
            if hidden is None or not own:
                part.observe(tokens, None)
                continue
            rows = hidden.view(len(tokens), len(layers), -1)
            part.observe(tokens, rows[:, [layers.index(layer) for layer in own]].flatten(1))

    def propose(self, root: int, knobs: Knobs, at: int | None = None) -> Candidates:
        chosen = (part for part in self.parts if part.capabilities.kind == knobs.draft)
        return next(chosen, self.parts[0]).propose(root, knobs, at)

    def rows(self, begin: int, end: int) -> tuple[Tensor, ...]:
        return tuple(tensor for part in self.parts for tensor in part.rows(begin, end))

    def resume(self, begin: int, tokens: Sequence[int], rows: Iterator[Tensor]) -> None:
        for part in self.parts:
            part.resume(begin, tokens, rows)

    def cut(self, length: int) -> None:
        for part in self.parts:
            part.cut(length)


class SeveralModels:
    """Implements `drafters.base.DraftModel` for all of them."""

    def __init__(self, models: Sequence[DraftModel]) -> None:
        self.models = tuple(models)
        self.name = " and ".join(model.name for model in models)
        self.kind = "+".join(model.kind for model in models)
        self.block_count = sum(model.block_count for model in models)

    def position_bytes(self, kv: CachePair) -> int:
        return sum(model.position_bytes(kv) for model in self.models)
