"""An MTP head's weights on the device: one layer, and the projection of a token with the previous hidden state."""

from __future__ import annotations

from torch import Tensor

from dflash_core.arch import kinds
from dflash_core.backends.cuda.activations import DEFAULT, Activations
from dflash_core.backends.cuda.block import FEED_FORWARDS
from dflash_core.backends.cuda.launch import Device
from dflash_core.backends.cuda.layers.attention_weights import AttentionWeights, frequencies
from dflash_core.backends.cuda.layers.base import FeedForwardLayer, Upload
from dflash_core.backends.cuda.layers.embedding import Embedding
from dflash_core.backends.cuda.layers.split_attention import HeadShape
from dflash_core.backends.cuda.projection import AnyProjection, Matrix, Projection
from dflash_core.config import MtpConfig


class DeviceMtp:
    """`norm`, `embedding`, `head`: None if the target's are used."""

    def __init__(self, device: Device, upload: Upload, config: MtpConfig, activations: Activations = DEFAULT) -> None:
        prefix, layer, nextn = config.prefix, config.layer, config.nextn
        assert isinstance(layer.mixer, kinds.Attention), "an MTP block must have an attention mixer"
        self.device, self.config, self.spec = device, config, layer.mixer
        activations = activations.drafter
        self.heads = HeadShape(self.spec.head_dim, self.spec.heads, self.spec.kv_heads, self.spec.rotary)
        self.eh_proj = Projection(device, [upload.matrix(prefix + "nextn.eh_proj.weight")], activations.inputs)
        self.enorm = upload.vector(prefix + "nextn.enorm.weight")
        self.hnorm = upload.vector(prefix + "nextn.hnorm.weight")
        self.attn_norm = upload.vector(prefix + "attn_norm.weight")
        self.mixer = AttentionWeights(device, upload, prefix, activations, self.spec)
        self.ffn_norm = upload.vector(prefix + layer.ffn_norm)
        self.ffn: FeedForwardLayer = FEED_FORWARDS[type(layer.ffn)](device, upload, prefix, layer.ffn, activations)
        self.frequencies = frequencies(self.spec, device)
        self.norm: Tensor | None = upload.vector(prefix + kinds.NORM) if nextn.own_norm else None
        self.embedding: Embedding | None = None
        if nextn.own_embedding:
            self.embedding = Embedding(upload, config.embedding_length, prefix + kinds.EMBEDDING)
        self.head: Matrix | None = upload.matrix(prefix + kinds.HEAD) if nextn.own_head else None

    def projections(self) -> tuple[list[AnyProjection], list[AnyProjection]]:
        """The projections that read rows as wide as the residual stream, and those that write such rows."""
        return [self.mixer.inputs, self.ffn.inputs], [self.eh_proj, self.mixer.out, self.ffn.out]
