"""The kinds of layers, as plain data: their sizes, their tensors, and their state per sequence.

Each kind lists its tensors here and nowhere else. To run, a kind also needs a file in models/ (the CPU reference) and
one in backends/cuda/layers/, each with a line in the table there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dflash_core.arch.rope import Scaling
from dflash_core.cache_types import CachePair

Shapes = dict[str, tuple[int, ...]]
"""Tensor name -> shape in torch order."""


class Mixer(Protocol):
    """What mixes the rows of a sequence."""

    @property
    def title(self) -> str:
        """The name of its kind, as in "full-attention layers"."""

    @property
    def label(self) -> str:
        """Its kind in a table's first column."""

    def tensors(self, hidden: int) -> Shapes:
        """Its tensors in a model of width `hidden`."""

    def describe(self) -> str:
        """Its sizes, as shown to users."""

    def position_bytes(self, kv: CachePair) -> int:
        """Bytes that it stores per position: keys and values of the types `kv`."""

    @property
    def state_numbers(self) -> int:
        """Numbers that it stores whatever the length: a recurrent state."""


class FeedForward(Protocol):
    """What maps every row separately."""

    def tensors(self, hidden: int) -> Shapes: ...

    def describe(self) -> str: ...

    def idle_numbers(self, hidden: int) -> int:
        """How many of its weights a row leaves out."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention: `heads` query heads over `kv_heads` heads of keys and values, `head_dim` wide each.

    rotary: dimensions of a head that are rotated, by the angles of `rope_base`. gated: attn_q holds for each head the
    query and then a gate, whose sigmoid multiplies the output. eps: of the norms over the heads of Q and K.
    window: positions that a query sees, including its own; 0 for all. scaling: of rotary positions.
    """

    heads: int
    kv_heads: int
    head_dim: int
    rotary: int
    rope_base: float
    eps: float
    gated: bool = False
    window: int = 0
    scaling: Scaling | None = None

    @property
    def title(self) -> str:
        return "sliding-window attention" if self.window else "full-attention"

    @property
    def label(self) -> str:
        return "attention"

    @property
    def query_rows(self) -> int:
        """Rows of attn_q."""
        return (2 if self.gated else 1) * self.heads * self.head_dim

    @property
    def fused_rows(self) -> dict[str, int]:
        """Rows of what some files hold as one tensor, attn_qkv."""
        key_rows = self.kv_heads * self.head_dim
        return {"attn_q.weight": self.query_rows, "attn_k.weight": key_rows, "attn_v.weight": key_rows}

    def tensors(self, hidden: int) -> Shapes:
        return {
            **{name: (rows, hidden) for name, rows in self.fused_rows.items()},
            "attn_output.weight": (hidden, self.heads * self.head_dim),
            "attn_q_norm.weight": (self.head_dim,),
            "attn_k_norm.weight": (self.head_dim,),
        }

    def describe(self) -> str:
        window = f", over a window of {self.window:,}" if self.window else ""
        scaling = f", {self.scaling.describe()}" if self.scaling else ""
        return f"{self.heads} heads over {self.kv_heads} KV heads of {self.head_dim}{window}{scaling}"

    def position_bytes(self, kv: CachePair) -> int:
        return self.kv_heads * kv.row_bytes(self.head_dim)

    @property
    def state_numbers(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """A gated delta net: a recurrent state for each of `value_heads` heads, after a short causal convolution.

    Value head i reads key head i % key_heads. eps: of the norm over the heads of its output.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int
    eps: float

    @property
    def title(self) -> str:
        return "gated delta net"

    @property
    def label(self) -> str:
        return "delta net"

    @property
    def inner(self) -> int:
        """Width of all value heads side by side."""
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Channels of the convolution: q, k and v side by side."""
        return 2 * self.key_heads * self.key_dim + self.inner

    def tensors(self, hidden: int) -> Shapes:
        return {
            "attn_qkv.weight": (self.channels, hidden),
            "attn_gate.weight": (self.inner, hidden),
            "ssm_conv1d.weight": (self.channels, self.conv_kernel),
            "ssm_dt.bias": (self.value_heads,),
            "ssm_a": (self.value_heads,),
            "ssm_beta.weight": (self.value_heads, hidden),
            "ssm_alpha.weight": (self.value_heads, hidden),
            "ssm_norm.weight": (self.value_dim,),
            "ssm_out.weight": (hidden, self.inner),
        }

    def describe(self) -> str:
        return (
            f"{self.value_heads} V heads of {self.value_dim} over {self.key_heads} K heads of {self.key_dim},"
            f" convolution {self.conv_kernel}"
        )

    def position_bytes(self, kv: CachePair) -> int:
        return 0

    @property
    def state_numbers(self) -> int:
        return self.value_heads * self.key_dim * self.value_dim + (self.conv_kernel - 1) * self.channels


@dataclass(frozen=True, slots=True)
class NextN:
    """The parts of an MTP block ("nextn") in addition to a layer: it joins the token after a position with the hidden
    state there.

    own_norm, own_embedding, own_head: whether it has these itself, or uses the model's.
    """

    own_norm: bool = True
    own_embedding: bool = False
    own_head: bool = False

    def tensors(self, hidden: int, vocab: int) -> Shapes:
        shapes: Shapes = {
            "nextn.eh_proj.weight": (hidden, 2 * hidden),
            "nextn.enorm.weight": (hidden,),
            "nextn.hnorm.weight": (hidden,),
        }
        if self.own_norm:
            shapes[NORM] = (hidden,)
        if self.own_embedding:
            shapes[EMBEDDING] = (vocab, hidden)
        if self.own_head:
            shapes[HEAD] = (vocab, hidden)
        return shapes


NORM, EMBEDDING, HEAD = (f"nextn.{name}.weight" for name in ("shared_head_norm", "embed_tokens", "shared_head_head"))
"""The tensors of an MTP block that may be missing: the model's own replace them."""


@dataclass(frozen=True, slots=True)
class SwiGLU:
    """ffn_down( silu(ffn_gate x) * (ffn_up x) ), `width` wide inside."""

    width: int

    def tensors(self, hidden: int) -> Shapes:
        return {
            "ffn_gate.weight": (self.width, hidden),
            "ffn_up.weight": (self.width, hidden),
            "ffn_down.weight": (hidden, self.width),
        }

    def describe(self) -> str:
        return f"feed-forward {self.width:,}"

    def idle_numbers(self, hidden: int) -> int:
        return 0


ROUTER, SHARED_GATE = "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight"
GATE_UP, DOWN = "ffn_gate_up_exps.weight", "ffn_down_exps.weight"
"""Tensors of experts: what scores a row for each, the shared one's gate, and what routed ones hold."""


@dataclass(frozen=True, slots=True)
class Experts:
    """For every row the `used` best of `count` experts, each a SwiGLU `width` wide, by the scores of a router.

    An expert's output is multiplied by its share of the softmax over all scores, or over those of the chosen ones where
    it is `normalised`, times `scale`. shared: width of an additional expert of every row, its output multiplied by
    the sigmoid of a gate, one number per row; 0 where there is none. fused: gate and up of an expert are one tensor,
    rows of gate first. Expert e is slab e of a tensor; of equal scores the lower expert counts as the better one.
    """

    count: int
    used: int
    width: int
    shared: int = 0
    normalised: bool = True
    scale: float = 1.0
    fused: bool = False

    def tensors(self, hidden: int) -> Shapes:
        shapes: Shapes = {ROUTER: (self.count, hidden)}
        if self.fused:
            shapes[GATE_UP] = (self.count, 2 * self.width, hidden)
        else:
            shapes |= {f"ffn_{part}_exps.weight": (self.count, self.width, hidden) for part in ("gate", "up")}
        shapes[DOWN] = (self.count, hidden, self.width)
        if self.shared:
            shapes |= {
                SHARED_GATE: (hidden,),
                "ffn_gate_shexp.weight": (self.shared, hidden),
                "ffn_up_shexp.weight": (self.shared, hidden),
                "ffn_down_shexp.weight": (hidden, self.shared),
            }
        return shapes

    def describe(self) -> str:
        shared = f" and a shared one of {self.shared:,}" if self.shared else ""
        return f"{self.used} of {self.count} experts of {self.width:,}{shared}"

    def idle_numbers(self, hidden: int) -> int:
        return (self.count - self.used) * 3 * hidden * self.width
