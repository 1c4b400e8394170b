"""A Gemma assistant's weights on the device: layers with queries only, and projections between its width and the
target's."""

from __future__ import annotations

from functools import partial

from dflash_core.arch.assistant import AssistantConfig
from dflash_core.arch.kinds import Attention
from dflash_core.backends.cuda.activations import Activations
from dflash_core.backends.cuda.block import Block, residuals_of
from dflash_core.backends.cuda.drafters.cells import AssistantHead, CellHead, DenseHead
from dflash_core.backends.cuda.launch import Device
from dflash_core.backends.cuda.layers.attention import AttentionLayers
from dflash_core.backends.cuda.layers.base import Upload
from dflash_core.backends.cuda.layers.split_attention import SplitOrder
from dflash_core.backends.cuda.projection import AnyProjection, Projection
from dflash_core.cache_types import CachePair


class DeviceAssistant:
    """`mixers`: of each layer. Its final rows are rounded as those of the target's head are."""

    def __init__(self, device: Device, upload: Upload, config: AssistantConfig, activations: Activations) -> None:
        self.device, self.config = device, config
        own, rounding = activations.drafter, activations.head
        self.pre_projection = Projection(device, [upload.matrix("nextn.pre_projection.weight")], own.inputs)
        self.mixers: list[AttentionLayers] = []
        self.blk: list[Block] = []
        for index, layer in enumerate(config.layers):
            assert isinstance(layer.mixer, Attention), "an assistant's layers have attention mixers"
            mixer = AttentionLayers(device, layer.mixer, own)
            self.mixers.append(mixer)
            residuals = residuals_of(device, upload, index, layer, own, None, partial(mixer.load, upload))
            self.blk.append(Block(index, 0, residuals))
        self.output_norm = upload.vector("output_norm.weight")
        self.post_projection = Projection(device, [upload.matrix("nextn.post_projection.weight")], rounding)
        self.head: AssistantHead = CellHead(device, upload, config, rounding) if config.cells else DenseHead(upload)

    def projections(self) -> tuple[list[AnyProjection], list[AnyProjection]]:
        """The projections that read rows as wide as the residual stream, and those that write such rows."""
        pairs: list[tuple[AnyProjection, AnyProjection]]
        pairs = [mixer.projections(0) for mixer in self.mixers]
        pairs += [(ffn.inputs, ffn.out) for block in self.blk for ffn in block.feed_forwards]
        inputs = [*(one for one, _ in pairs), self.post_projection, *self.head.projections]
        return inputs, [self.pre_projection, *(out for _, out in pairs)]

    def split_orders(self, slots: int, kv: CachePair) -> list[SplitOrder]:
        """The order of sums in each layer's attention over a cache of `slots` positions."""
        card = self.device.card
        return [
            SplitOrder.of(mixer.heads, slots, card.multiprocessors, card.shared_bytes, trees=False, kv=kv)
            for mixer in self.mixers
        ]
