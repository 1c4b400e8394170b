"""A layer on a card: its parts and norms in the order of `LayerSpec.residuals`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dflash_core.arch import kinds, spec
from dflash_core.backends.cuda.activations import Activations
from dflash_core.backends.cuda.launch import Device
from dflash_core.backends.cuda.layers.base import FeedForward, Upload
from dflash_core.backends.cuda.layers.experts import Experts
from dflash_core.backends.cuda.layers.feed_forward import SwiGLU
from dflash_core.backends.cuda.layers.per_layer import PerLayerInput, PerLayerInputs

# The class for each kind of feed-forward; called with (device, upload, prefix, spec, activations).
FEED_FORWARDS: dict[type, Callable[[Device, Upload, str, Any, Activations], FeedForward]] = {
    kinds.SwiGLU: SwiGLU,
    kinds.Experts: Experts,
}


@dataclass(frozen=True, slots=True)
class Branch:
    """See `spec.Branch`. Without a feed-forward its part is the layer's mixer."""

    ffn: FeedForward | None
    norm: Tensor | None
    post_norm: Tensor | None


@dataclass(frozen=True, slots=True)
class Residual:
    """See `spec.Residual`; one of a single branch has one norm of what is added, not two. factor (1,): of the residual
    stream after it."""

    branches: tuple[Branch, ...]
    post_norm: Tensor | None
    factor: Tensor | None = None

    @property
    def plain(self) -> bool:
        """Whether the stream is the sum of itself and what a single branch gives."""
        after = (self.post_norm, self.factor, *(branch.post_norm for branch in self.branches))
        return len(self.branches) == 1 and all(one is None for one in after)


@dataclass(frozen=True, slots=True)
class Block:
    """One layer. Its mixer is the `place`-th of target.mixers[group]."""

    group: int
    place: int
    residuals: tuple[Residual, ...]

    @property
    def feed_forwards(self) -> Iterator[FeedForward]:
        """All of the layer, in order."""
        for residual in self.residuals:
            yield from (branch.ffn for branch in residual.branches if branch.ffn is not None)


def residuals_of(
    device: Device,
    upload: Upload,
    index: int,
    layer: spec.LayerSpec,
    activations: Activations,
    given: PerLayerInputs | None,
    load_mixer: Callable[[str], None],
) -> tuple[Residual, ...]:
    """Upload layer `index`. `given`: per-layer inputs, of a model that has them. `load_mixer`: called with the
    prefix of its tensors when its mixer's turn has come."""
    prefix = f"blk.{index}."

    def vector(name: str) -> Tensor | None:
        return upload.vector(prefix + name) if name else None

    def branch(of: spec.Branch) -> Branch:
        norm = vector(of.norm)
        ffn: FeedForward | None = None
        if of.part is layer.mixer:
            load_mixer(prefix)
        elif given is not None and isinstance(of.part, kinds.PerLayerInput):
            ffn = PerLayerInput(device, upload, prefix, activations, given, index)
        else:
            ffn = FEED_FORWARDS[type(of.part)](device, upload, prefix, of.part, activations)
        return Branch(ffn, norm, vector(of.post_norm))

    found = [Residual(tuple(map(branch, of.branches)), vector(of.post_norm)) for of in layer.residuals]
    if layer.output_scale:
        last = found[-1]
        found[-1] = Residual(last.branches, last.post_norm, vector(spec.OUTPUT_SCALE))
    return tuple(found)
