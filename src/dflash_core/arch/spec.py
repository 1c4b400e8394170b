"""A whole model as plain data, read once from its file; later code does not read metadata keys."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypeVar

from dflash_core.arch.kinds import FeedForward, Mixer, Shapes
from dflash_core.cache_types import CachePair

Kind = TypeVar("Kind")


EMBEDDING = -1  # among layers whose outputs are captured: what layer 0 reads


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """h += mixer(attn_norm h); h += ffn(ffn_norm h). `ffn_norm`: the architecture's name of the second norm."""

    mixer: Mixer
    ffn: FeedForward
    ffn_norm: str = "ffn_norm.weight"

    def tensors(self, hidden: int) -> Shapes:
        return {
            "attn_norm.weight": (hidden,),
            **self.mixer.tensors(hidden),
            self.ffn_norm: (hidden,),
            **self.ffn.tensors(hidden),
        }

    def active_numbers(self, hidden: int) -> int:
        """The number of weights that one row is multiplied by."""
        return sum(map(math.prod, self.tensors(hidden).values())) - self.ffn.idle_numbers(hidden)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """An embedding, layers, a norm and a head.

    layers: the trunk, without MTP blocks, which may follow it: each of them is a layer `nextn` with additional tensors
    (`kinds.NextN`). vocab_size: rows of the embedding, padding
    rows included. file_type: "Q4_K_M", or empty where the file does not say. notes: settings without effect.
    """

    name: str
    architecture: str
    context_length: int
    embedding_length: int
    vocab_size: int
    rms_eps: float
    layers: tuple[LayerSpec, ...]
    tied_output: bool = False
    nextn_predict_layers: int = 0
    nextn: LayerSpec | None = None
    file_type: str = ""
    notes: tuple[str, ...] = field(default=(), compare=False)

    @property
    def block_count(self) -> int:
        return len(self.layers)

    @property
    def recurrent(self) -> bool:
        """Whether any layer has a state that cannot be truncated to an earlier position."""
        return any(layer.mixer.state_numbers for layer in self.layers)

    @property
    def mixers(self) -> dict[Mixer, tuple[int, ...]]:
        """The layers that have each mixer, in order of first appearance."""
        found: dict[Mixer, tuple[int, ...]] = {}
        for index, layer in enumerate(self.layers):
            found[layer.mixer] = (*found.get(layer.mixer, ()), index)
        return found

    def of(self, kind: type[Kind]) -> tuple[Kind, ...]:
        """The mixers of one kind, layer by layer."""
        return tuple(layer.mixer for layer in self.layers if isinstance(layer.mixer, kind))

    @property
    def parameters(self) -> int:
        """Weights of the trunk, embedding and head."""
        return sum(map(math.prod, self.tensors().values()))

    @property
    def active_parameters(self) -> int:
        """Active weights per token: without the experts that it does not use, and without the embedding, unless that is
        also the head."""
        idle = sum(layer.ffn.idle_numbers(self.embedding_length) for layer in self.layers)
        embedding = 0 if self.tied_output else self.vocab_size * self.embedding_length
        return self.parameters - idle - embedding

    def position_bytes(self, kv: CachePair) -> int:
        """Bytes that its layers store per position: keys and values of the types `kv`."""
        return sum(layer.mixer.position_bytes(kv) for layer in self.layers)

    def tensors(self) -> Shapes:
        """Every tensor of the trunk, in the order of a forward pass."""
        hidden = self.embedding_length
        shapes: Shapes = {"token_embd.weight": (self.vocab_size, hidden)}
        for index, layer in enumerate(self.layers):
            shapes |= layer_tensors(index, layer, hidden)
        shapes["output_norm.weight"] = (hidden,)
        if not self.tied_output:
            shapes["output.weight"] = (self.vocab_size, hidden)
        return shapes


def layer_tensors(index: int, layer: LayerSpec, hidden: int) -> Shapes:
    """The tensors of layer `index` by their names in the file."""
    return {f"blk.{index}.{name}": shape for name, shape in layer.tensors(hidden).items()}
