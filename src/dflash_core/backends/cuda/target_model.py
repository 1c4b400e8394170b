"""A target's weights on the device, with layers of the kinds that its spec names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dflash_core.arch import kinds
from dflash_core.arch.spec import OUTPUT_SCALE, LayerSpec, ModelSpec
from dflash_core.backends.cuda.activations import DEFAULT, Activations
from dflash_core.backends.cuda.launch import Device
from dflash_core.backends.cuda.layers.attention import AttentionLayers
from dflash_core.backends.cuda.layers.base import FeedForwardLayer, MixerLayers, Upload
from dflash_core.backends.cuda.layers.delta_net import DeltaNetLayers
from dflash_core.backends.cuda.layers.embedding import Embedding
from dflash_core.backends.cuda.layers.experts import Experts
from dflash_core.backends.cuda.layers.feed_forward import SwiGLU
from dflash_core.backends.cuda.projection import AnyProjection, Matrix

# The class for each kind of layer; called with (device, spec, activations), and (device, upload, prefix, spec,
# activations).
MIXERS: dict[type, Callable[[Device, Any, Activations], MixerLayers]] = {
    kinds.Attention: AttentionLayers,
    kinds.DeltaNet: DeltaNetLayers,
}
FEED_FORWARDS: dict[type, Callable[[Device, Upload, str, Any, Activations], FeedForwardLayer]] = {
    kinds.SwiGLU: SwiGLU,
    kinds.Experts: Experts,
}


@dataclass(frozen=True, slots=True)
class Block:
    """One layer. Its mixer is the `place`-th of target.mixers[group]. post_attn_norm, post_ffn_norm: of what the mixer
    and the feed-forward add to the residual stream. output_scale (1,): of the stream after the layer."""

    attn_norm: Tensor
    group: int
    place: int
    ffn_norm: Tensor
    ffn: FeedForwardLayer
    post_attn_norm: Tensor | None = None
    post_ffn_norm: Tensor | None = None
    output_scale: Tensor | None = None


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
        groups = list(spec.mixers)
        self.embedding = Embedding(upload, spec.embedding_length, on_host=embedding_on_host)
        self.blk: list[Block] = []
        for index, layer in enumerate(spec.layers):
            self.blk.append(self._block(upload, index, layer, groups.index(layer.mixer)))
            if progress:
                progress(index + 1, spec.block_count)
        self.output_norm = upload.vector("output_norm.weight")
        self.output: Matrix = upload.matrix("token_embd.weight" if spec.tied_output else "output.weight")

    def _block(self, upload: Upload, index: int, layer: LayerSpec, group: int) -> Block:
        prefix = f"blk.{index}."

        def vector(name: str) -> Tensor | None:
            return upload.vector(prefix + name) if name else None

        attn_norm, ffn_norm = upload.vector(prefix + "attn_norm.weight"), upload.vector(prefix + layer.ffn_norm)
        self.mixers[group].load(upload, prefix)
        ffn = FEED_FORWARDS[type(layer.ffn)](self.device, upload, prefix, layer.ffn, self.activations)
        place = self.spec.mixers[layer.mixer].index(index)
        after = vector(layer.post_attn_norm), vector(layer.post_ffn_norm)
        return Block(attn_norm, group, place, ffn_norm, ffn, *after, vector(OUTPUT_SCALE if layer.output_scale else ""))

    def projections(self) -> tuple[list[AnyProjection], list[AnyProjection]]:
        """The projections that read the residual stream, and those whose results are added to it."""
        pairs: list[tuple[AnyProjection, AnyProjection]]
        pairs = [self.mixers[block.group].projections(block.place) for block in self.blk]
        pairs += [(block.ffn.inputs, block.ffn.out) for block in self.blk]
        return [inputs for inputs, _ in pairs], [out for _, out in pairs]

    @property
    def norms_after(self) -> bool:
        """Whether anything is done to what a branch gives, or to the residual stream, before the next norm."""
        after = ((block.post_attn_norm, block.post_ffn_norm, block.output_scale) for block in self.blk)
        return any(one is not None for of_block in after for one in of_block)

    @property
    def chunked(self) -> bool:
        """Whether the card can process prompts in chunks."""
        return all(mixer.chunked for mixer in self.mixers) and all(block.ffn.chunked for block in self.blk)

    def idle_bytes(self, rows: int) -> float:
        """Bytes of weights that a pass of `rows` rows does not read, on average: experts, if rows choose at random."""
        return sum(block.ffn.idle_bytes(rows) for block in self.blk)
