"""A whole model as plain data, read once from its file; later code does not read metadata keys."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypeVar

from dflash_core.arch.kinds import ROPE_FACTORS, Attention, FeedForward, Mixer, PerLayerInput, Shapes
from dflash_core.cache_types import CachePair

Kind = TypeVar("Kind")


EMBEDDING = -1  # among layers whose outputs are captured: what layer 0 reads


@dataclass(frozen=True, slots=True)
class Branch:
    """post_norm( part( norm(h) ) ): norms by the names of their tensors within a layer, "" for none."""

    part: Mixer | FeedForward
    norm: str = ""
    post_norm: str = ""


@dataclass(frozen=True, slots=True)
class Residual:
    """h += post_norm( sum of the branches ), all of which read the same h; post_norm as in `Branch`."""

    branches: tuple[Branch, ...]
    post_norm: str = ""


OUTPUT_SCALE = "layer_output_scale.weight"


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """A mixer and a feed-forward; `residuals` says how they are put together, which is written down nowhere else.

    ffn_norm: the architecture's name of the second norm. post_attn_norm, post_ffn_norm: norms of what is added to the
    residual stream, "" for none. beside: another feed-forward on the same residual; `ffn_own_norm` is then the norm of
    the first one's output before the sum. per_layer_input: width of a third part, which multiplies what is given for
    the token and the layer; 0 for none. output_scale: whether a number of the file multiplies the layer's output.
    """

    mixer: Mixer
    ffn: FeedForward
    ffn_norm: str = "ffn_norm.weight"
    post_attn_norm: str = ""
    post_ffn_norm: str = ""
    beside: Branch | None = None
    ffn_own_norm: str = ""
    per_layer_input: int = 0
    output_scale: bool = False

    @property
    def residuals(self) -> tuple[Residual, ...]:
        """What is added to the residual stream, in order. A factor of the whole stream follows if `output_scale`."""
        beside = () if self.beside is None else (self.beside,)
        found = [
            Residual((Branch(self.mixer, "attn_norm.weight"),), self.post_attn_norm),
            Residual((*beside, Branch(self.ffn, self.ffn_norm, self.ffn_own_norm)), self.post_ffn_norm),
        ]
        if self.per_layer_input:
            found.append(Residual((Branch(PerLayerInput(self.per_layer_input)),), "post_norm.weight"))
        return tuple(found)

    def tensors(self, hidden: int) -> Shapes:
        shapes: Shapes = {}
        for residual in self.residuals:
            for branch in residual.branches:
                shapes |= _norm(branch.norm, hidden) | branch.part.tensors(hidden) | _norm(branch.post_norm, hidden)
            shapes |= _norm(residual.post_norm, hidden)
        return shapes | ({OUTPUT_SCALE: (1,)} if self.output_scale else {})

    def active_numbers(self, hidden: int) -> int:
        """The number of weights that one row is multiplied by."""
        return sum(map(math.prod, self.tensors(hidden).values())) - self.ffn.idle_numbers(hidden)


def _norm(name: str, hidden: int) -> Shapes:
    return {name: (hidden,)} if name else {}


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """An embedding, layers, a norm and a head.

    layers: the trunk, without MTP blocks, which may follow it: each of them is a layer `nextn` with additional tensors
    (`kinds.NextN`). vocab_size: rows of the embedding, padding rows included. file_type: "Q4_K_M", or empty where the
    file does not say. notes: settings without effect.

    embedding_scale: of the rows of the embedding. Logits x are softcap * tanh(logit_scale * x / softcap), or
    logit_scale * x where softcap is 0. suppressed: tokens whose logits are -inf. per_layer_input: width P of what every
    token gives to every layer, 0 for none: with h the scaled embedding of the token, row l of
    (per_layer_token_embd * sqrt(P) + RMS(per_layer_model_proj h / sqrt(hidden); per_layer_proj_norm)) / sqrt(2).
    frequent_first: whether frequent tokens have the lowest ids, so that drafts may be chosen among the first ones.
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
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    softcap: float = 0.0
    suppressed: tuple[int, ...] = ()
    per_layer_input: int = 0
    frequent_first: bool = True
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
        """Active weights per token: without the experts that it does not use, and without embeddings, unless one is
        also the head."""
        idle = sum(layer.ffn.idle_numbers(self.embedding_length) for layer in self.layers)
        embedding = 0 if self.tied_output else self.vocab_size * self.embedding_length
        embedding += self.vocab_size * self.per_layer_input * self.block_count
        return self.parameters - idle - embedding

    def position_bytes(self, kv: CachePair) -> int:
        """Bytes that its layers store per position: keys and values of the types `kv`."""
        return sum(layer.mixer.position_bytes(kv) for layer in self.layers)

    def tensors(self) -> Shapes:
        """Every tensor of the trunk, in the order of a forward pass."""
        hidden = self.embedding_length
        shapes: Shapes = {"token_embd.weight": (self.vocab_size, hidden)}
        if width := self.per_layer_input:
            shapes |= {
                "per_layer_token_embd.weight": (self.vocab_size, self.block_count * width),
                "per_layer_model_proj.weight": (self.block_count * width, hidden),
                "per_layer_proj_norm.weight": (width,),
            }
        for layer in self.layers:
            shapes |= rope_factors(layer)
        for index, layer in enumerate(self.layers):
            shapes |= layer_tensors(index, layer, hidden)
        shapes["output_norm.weight"] = (hidden,)
        if not self.tied_output:
            shapes["output.weight"] = (self.vocab_size, hidden)
        return shapes


def rope_factors(layer: LayerSpec) -> Shapes:
    """The model's tensor that divides rotary frequencies, where the layer uses it."""
    mixer = layer.mixer
    return {ROPE_FACTORS: (mixer.rotary // 2,)} if isinstance(mixer, Attention) and mixer.rope_factors else {}


def reads_other_keys(layer: LayerSpec) -> bool:
    """Whether it reads keys and values of another layer."""
    return isinstance(layer.mixer, Attention) and layer.mixer.kv_from is not None


def layer_tensors(index: int, layer: LayerSpec, hidden: int) -> Shapes:
    """The tensors of layer `index` by their names in the file."""
    return {f"blk.{index}.{name}": shape for name, shape in layer.tensors(hidden).items()}
