"""A target's weights on the device: layers of the kinds that its spec names, with their parts and norms in the order of
`LayerSpec.residuals`; and the launches of one layer in a pass."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from dflash_core.arch import kinds, spec
from dflash_core.arch.spec import LayerSpec, ModelSpec
from dflash_core.backends.cuda.activations import DEFAULT, Activations
from dflash_core.backends.cuda.expert_cache import ExpertCache
from dflash_core.backends.cuda.launch import At, Device, Launch
from dflash_core.backends.cuda.layers import base
from dflash_core.backends.cuda.layers.attention import AttentionLayers
from dflash_core.backends.cuda.layers.base import FeedForward, MixerLayers, Pass
from dflash_core.backends.cuda.layers.delta_net import DeltaNetLayers
from dflash_core.backends.cuda.layers.embedding import Embedding, PerLayerInput, PerLayerInputs
from dflash_core.backends.cuda.layers.experts import Experts
from dflash_core.backends.cuda.layers.feed_forward import SwiGLU
from dflash_core.backends.cuda.layers.norm import Added, norm_launch
from dflash_core.backends.cuda.projection import AnyProjection, Matrix
from dflash_core.backends.cuda.upload import Upload

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


def block_launches(
    block: Block,
    mixer: base.Branch,
    scope: Pass,
    before: Added | None,
    captured: At | None = None,
    captured_width: int = 0,
) -> Generator[Launch, None, Added]:
    """One layer: its parts and norms in the order of `LayerSpec.residuals`. Its first norm adds `before`, what the
    layer before it has left. Returns what this one leaves.

    `captured`: where the first norm also writes the sum, in rows of `captured_width`.
    """
    buffers = scope.buffers
    for residual in block.residuals:
        given: list[Added] = []
        for branch in residual.branches:
            part = branch.ffn or mixer
            yield norm_launch(
                scope, branch.norm, part.inputs, added=before, captured=captured, captured_width=captured_width,
                normed=part.normed(buffers), normed_by=part.normed_by,
            )  # fmt: skip
            before = captured = None
            own = replace(scope, buffers=buffers.aside) if given else scope
            yield from part.launches(own)
            given.append(Added(part.out.split_k, own.buffers.narrow, part.out_bias, branch.post_norm))
        first, *others = given
        if others:
            (other,) = others
            before = replace(first, norm=residual.post_norm, other=other, first_norm=first.norm, factor=residual.factor)
        else:
            norm = first.norm if residual.post_norm is None else residual.post_norm
            before = replace(first, norm=norm, factor=residual.factor)
    assert before is not None, "a layer without parts"
    return before


# The class for each kind of mixer; called with (device, spec, activations).
MIXERS: dict[type, Callable[[Device, Any, Activations], MixerLayers]] = {
    kinds.Attention: AttentionLayers,
    kinds.DeltaNet: DeltaNetLayers,
}


class DeviceTarget:
    """The target's weights. `activations`: how inputs of products are rounded; `embedding_on_host`: keep the token
    embedding in host memory. A head that shares the embedding's tensor still has its own tiles on the card."""

    def __init__(
        self,
        device: Device,
        upload: Upload,
        spec: ModelSpec,
        activations: Activations = DEFAULT,
        progress: Callable[[int, int], None] | None = None,
        *,
        embedding_on_host: bool = False,
    ) -> None:
        self.device, self.spec, self.activations = device, spec, activations
        self.mixers = [MIXERS[type(mixer)](device, mixer, activations) for mixer in spec.mixers]
        self.embedding = Embedding(upload, spec.embedding_length, on_host=embedding_on_host)
        self.per_layer: PerLayerInputs | None = None
        if spec.per_layer_input:
            self.per_layer = PerLayerInputs(device, upload, spec, activations, on_host=embedding_on_host)
        self.cache: ExpertCache | None = None
        self.blk: list[Block] = []
        for index, layer in enumerate(spec.layers):
            self.blk.append(self._block(upload, index, layer))
            if progress:
                progress(index + 1, spec.block_count)
        self.output_norm = upload.vector("output_norm.weight")
        self.output: Matrix = upload.matrix("token_embd.weight" if spec.tied_output else "output.weight")

    def _block(self, upload: Upload, index: int, layer: LayerSpec) -> Block:
        group = list(self.spec.mixers).index(layer.mixer)
        mixers = self.mixers[group]
        residuals = residuals_of(
            self.device, upload, index, layer, self.activations, self.per_layer, partial(mixers.load, upload)
        )
        return Block(group, self.spec.mixers[layer.mixer].index(index), residuals)

    def projections(self) -> tuple[list[AnyProjection], list[AnyProjection]]:
        """The projections that read the residual stream, and those whose results are added to it."""
        pairs: list[tuple[AnyProjection, AnyProjection]]
        pairs = [self.mixers[block.group].projections(block.place) for block in self.blk]
        pairs += [(ffn.inputs, ffn.out) for ffn in self.feed_forwards]
        more = [self.per_layer.projection] if self.per_layer else []
        return [*more, *(inputs for inputs, _ in pairs)], [out for _, out in pairs]

    @property
    def feed_forwards(self) -> list[FeedForward]:
        return [ffn for block in self.blk for ffn in block.feed_forwards]

    @property
    def lenders(self) -> list[Block | None]:
        """For each group of mixers, the layer whose keys and values they read instead of their own."""
        sources = [mixer.kv_from if isinstance(mixer, kinds.Attention) else None for mixer in self.spec.mixers]
        return [None if source is None else self.blk[source] for source in sources]

    @property
    def plain(self) -> bool:
        """Whether nothing is done to what a branch gives, or to the residual stream, before the next norm."""
        return all(residual.plain for block in self.blk for residual in block.residuals)

    @property
    def side_by_side(self) -> bool:
        """Whether there are branches of which the next norm reads the sum."""
        return any(len(residual.branches) > 1 for block in self.blk for residual in block.residuals)

    @property
    def chunked(self) -> bool:
        """Whether the card can process prompts in chunks."""
        return all(mixer.chunked for mixer in self.mixers) and all(one.chunked for one in self.experts)

    def idle_bytes(self, rows: int) -> float:
        """Bytes on the card that a pass of `rows` rows does not read, on average: experts, if rows choose at random."""
        return sum(one.idle_bytes(rows) for one in self.experts)

    def bus_bytes(self, rows: int) -> float:
        """Bytes that such a pass reads from main memory."""
        return sum(one.bus_bytes(rows) for one in self.experts)

    def cache_experts(self, slots: int) -> None:
        """Cache `slots` experts on the card, of each layer whose experts are in main memory."""
        layers = [layer for layer in self.experts if layer.on_host]
        for layer in layers:
            layer.slots = slots
        self.cache = ExpertCache(self.device, layers, slots)

    @property
    def experts(self) -> list[Experts]:
        """Of the layers that have any, in their order."""
        return [ffn for ffn in self.feed_forwards if isinstance(ffn, Experts)]
