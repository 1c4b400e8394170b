"""Several drafters of one target, loaded together: the policy picks one for each step, or the `draft` knob names it.
All of them observe the sequence; only the chosen one proposes, on the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from dflash_core.cache_types import CachePair
from dflash_core.config import unused_heads
from dflash_core.drafters.base import Draft, Drafter, DraftModel, DraftTarget, HostDraft, OpenedDraft, ReadsKeys
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.errors import Code, ContextError, UnsupportedError
from dflash_core.knobs import Knobs
from dflash_core.progress import Progress
from dflash_core.tree import Candidates

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from dflash_core.models.rows import LayerState

One = TypeVar("One", Draft, OpenedDraft)


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

    def begin(self) -> None:
        for part in self.parts:
            part.begin()

    def use_keys(self, states: Sequence[LayerState]) -> None:
        for part in self.parts:
            if isinstance(part, ReadsKeys):
                part.use_keys(states)

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


class _Together(Generic[One]):
    """The part of `drafters.base.ForTarget` of several drafters together."""

    def __init__(self, target: DraftTarget, parts: Sequence[One]) -> None:
        self.target = target
        self.parts: tuple[One, ...] = tuple(parts)
        self.capabilities = together([part.capabilities for part in parts])
        models = [part.config for part in parts if part.config is not None]
        self.config: DraftModel | None = SeveralModels(models) if models else None
        self.files = tuple(file for part in parts for file in part.files)
        drafts = any(part.capabilities.kind == "mtp" for part in parts)
        unused = unused_heads(target.config)  # as a single drafter gets it
        self.notes = tuple(note for part in parts for note in part.notes if not (drafts and note == unused))


class SeveralDrafts(_Together[Draft]):
    """Implements `drafters.base.Draft` and `HostDraft`."""

    @property
    def weight_bytes(self) -> int:
        return sum(part.weight_bytes for part in self.parts)

    def drafter(self, kv: CachePair | None = None) -> SeveralDrafters:
        return SeveralDrafters([part.drafter(kv) for part in self.parts if isinstance(part, HostDraft)])


class OpenedSeveral(_Together[OpenedDraft]):
    """Implements `drafters.base.OpenedDraft` with the headers of all."""

    def load(self, *, dtype: torch.dtype | None = None, progress: Progress | None = None) -> SeveralDrafts:
        loaded = tuple(part.load(dtype=dtype, progress=progress) for part in self.parts)
        if not all(isinstance(one, HostDraft) for one in loaded):
            raise not_on_a_card(self.capabilities)
        return SeveralDrafts(self.target, loaded)


def open_several(target: DraftTarget, parts: Sequence[OpenedDraft]) -> OpenedSeveral:
    """Drafters of different kinds. Raises ContextError for two of one kind: the knob could not distinguish them."""
    kinds = [part.capabilities.kind for part in parts]
    if len(set(kinds)) < len(kinds):
        raise ContextError(f"two drafters of one kind ({', '.join(kinds)}), expected one of each; leave one out")
    return OpenedSeveral(target, tuple(parts))
