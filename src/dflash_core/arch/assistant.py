"""Gemma's assistants as plain data: small models that draft for a target and read its keys and values."""

from __future__ import annotations

from dataclasses import dataclass, field

from dflash_core.arch.kinds import Attention, Shapes
from dflash_core.arch.spec import LayerSpec, layer_tensors, rope_factors
from dflash_core.cache_types import CachePair

CELLS_USED = 32
"""Cells of tokens that a published assistant with centroids gives logits to; no setting of a GGUF file says it."""


@dataclass(frozen=True, slots=True)
class AssistantConfig:
    """A Gemma assistant. Its layers read keys and values of the target's: `Attention.kv_from` is a layer of the target,
    which has `target_layers` of width `target_width`. cells: centroids of its tokens, 0 where all tokens get logits."""

    name: str
    layers: tuple[LayerSpec, ...]
    embedding_length: int
    target_width: int
    target_layers: int
    vocab_size: int
    rms_eps: float
    cells: int = 0
    cells_used: int = CELLS_USED
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def kind(self) -> str:
        return "assistant"

    @property
    def block_count(self) -> int:
        return len(self.layers)

    @property
    def sources(self) -> tuple[int, ...]:
        """The target's layer whose keys and values each layer reads."""
        found = (layer.mixer.kv_from for layer in self.layers if isinstance(layer.mixer, Attention))
        return tuple(layer for layer in found if layer is not None)

    def position_bytes(self, kv: CachePair) -> int:
        """The target's hidden state of the position, as floats."""
        return 4 * self.target_width

    def tensors(self) -> Shapes:
        """Every tensor, in the order of a forward pass."""
        shapes: Shapes = {"nextn.pre_projection.weight": (self.embedding_length, 2 * self.target_width)}
        for index, layer in enumerate(self.layers):
            shapes |= layer_tensors(index, layer, self.embedding_length) | rope_factors(layer)
        shapes |= {
            "output_norm.weight": (self.embedding_length,),
            "token_embd.weight": (self.vocab_size, self.embedding_length),
            "nextn.post_projection.weight": (self.target_width, self.embedding_length),
        }
        if self.cells:
            shapes["masked_embd_centroids.weight"] = (self.cells, self.embedding_length)
            shapes["masked_embd_ordering"] = (self.vocab_size,)
        return shapes
