"""The kinds of layers, as plain data: their sizes, their tensors, and their state per sequence.

Each kind lists its tensors here and nowhere else. To run, a kind also needs a file in models/ (the CPU reference) and
one in backends/cuda/layers/, each with a line in the table there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from dflash_core.arch.rope import Scaling
from dflash_core.cache_types import CachePair

Shapes = dict[str, tuple[int, ...]]
"""Tensor name -> shape in torch order."""
Gate = Literal["none", "sigmoid", "softplus"]
"""What multiplies the output of attention: nothing; the sigmoid of a second half of each head's rows in attn_q, number
by number; the softplus of attn_gate, one number per head."""
Activation = Literal["silu", "gelu_tanh", "clamped_swiglu"]
"""How gate g and up u of a feed-forward become what goes down: silu(g) * u; gelu(g) * u, GELU in its tanh form; and
GPT-OSS's g * sigmoid(CLAMP_ALPHA * g) * (u + 1), with g at most CLAMP and u within -CLAMP..CLAMP."""
Router = Literal["softmax", "sigmoid"]
CLAMP, CLAMP_ALPHA = 7.0, 1.702
ROPE_FACTORS = "rope_freqs.weight"
"""The divisors of a rotary position's frequencies, one for each pair, the same for all layers that use them."""
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
"""LongRoPE's divisors, for contexts longer than those of the training and for others."""
PROJECTIONS = ("attn_q", "attn_k", "attn_v", "attn_output")
"""The products of attention, each of which may have a bias."""


class Part:
    """A part of a layer."""

    __slots__ = ()
    fused_name: ClassVar[str] = ""
    """What some files hold as one tensor, the rows of several one after the other: of `fused_rows`."""

    @property
    def fused_rows(self) -> dict[str, int]:
        return {}

    def tensors(self, hidden: int) -> Shapes:
        """Its tensors in a model of width `hidden`."""
        raise NotImplementedError

    def describe(self) -> str:
        """Its sizes, as shown to users."""
        raise NotImplementedError


class Mixer(Part):
    """What mixes the rows of a sequence. eps: of its norms."""

    __slots__ = ()
    eps: float
    label: ClassVar[str]
    """Its kind in a table's first column."""

    @property
    def title(self) -> str:
        """The name of its kind, as in "full-attention layers"."""
        raise NotImplementedError

    def position_bytes(self, kv: CachePair) -> int:
        """Bytes that it stores per position: keys and values of the types `kv`."""
        return 0

    @property
    def state_numbers(self) -> int:
        """Numbers that it stores whatever the length: a recurrent state."""
        return 0


class FeedForward(Part):
    """What maps every row separately."""

    __slots__ = ()

    def idle_numbers(self, hidden: int) -> int:
        """How many of its weights a row leaves out."""
        return 0


@dataclass(frozen=True, slots=True)
class Attention(Mixer):
    """Softmax attention: `heads` query heads over `kv_heads` heads of keys and values, `head_dim` wide each.

    rotary: dimensions of a head that are rotated, by the angles of `rope_base`; pair i is dimensions i and
    i + rotary / 2. eps: of the norms over heads. gate: of the output. window: positions that a query sees, including
    its own; 0 for all. scaling: of rotary positions. rope_factors: whether the file's ROPE_FACTORS divide the
    frequencies. interleaved: whether the file has a head's rows of attn_q and attn_k in the order of pairs
    (2i, 2i + 1); they are put into halves when read (`reading.in_halves`), so nothing else needs to know. scale: of the
    products of queries and keys; None for 1 / sqrt(head_dim). qk_norm: RMS norms over the heads of Q and K, before the
    rotation. v_norm: one without weights over those of V. biases: those of PROJECTIONS that have one. sinks: a number
    per head that counts in the softmax's sum as the score of a key without a value. key_is_value: V is the product of
    attn_k, before norm and rotation. query_growth: (s, length) where queries are multiplied by
    1 + s * log(1 + position // length). kv_from: the layer whose keys and values it reads instead of its own; None for
    its own.
    """

    label, fused_name = "attention", "attn_qkv.weight"
    heads: int
    kv_heads: int
    head_dim: int
    rotary: int
    rope_base: float
    eps: float
    gate: Gate = "none"
    window: int = 0
    scaling: Scaling | None = None
    rope_factors: bool = False
    interleaved: bool = False
    scale: float | None = None
    qk_norm: bool = True
    v_norm: bool = False
    biases: tuple[str, ...] = ()
    sinks: bool = False
    key_is_value: bool = False
    query_growth: tuple[float, int] | None = None
    kv_from: int | None = None

    @property
    def title(self) -> str:
        return "sliding-window attention" if self.window else "full-attention"

    @property
    def score_scale(self) -> float:
        """The factor of the products of queries and keys."""
        return self.head_dim**-0.5 if self.scale is None else self.scale

    @property
    def query_rows(self) -> int:
        """Rows of attn_q."""
        return (2 if self.gate == "sigmoid" else 1) * self.heads * self.head_dim

    @property
    def fused_rows(self) -> dict[str, int]:
        key_rows = self.kv_heads * self.head_dim
        return {"attn_q.weight": self.query_rows, "attn_k.weight": key_rows, "attn_v.weight": key_rows}

    def tensors(self, hidden: int) -> Shapes:
        shapes: Shapes = {name: (rows, hidden) for name, rows in self.fused_rows.items()}
        shapes["attn_output.weight"] = (hidden, self.heads * self.head_dim)
        shapes |= {f"{name}.bias": shapes[f"{name}.weight"][:1] for name in self.biases}
        if self.qk_norm:
            shapes |= {"attn_q_norm.weight": (self.head_dim,), "attn_k_norm.weight": (self.head_dim,)}
        if self.gate == "softplus":
            shapes["attn_gate.weight"] = (self.heads, hidden)
        if self.sinks:
            shapes["attn_sinks.weight"] = (self.heads,)
        unused = ["attn_v"] if self.key_is_value else []
        if self.kv_from is not None:
            unused = ["attn_k", "attn_v", "attn_k_norm"]
        return {name: shape for name, shape in shapes.items() if name.split(".")[0] not in unused}

    def describe(self) -> str:
        window = f", over a window of {self.window:,}" if self.window else ""
        scaling = f", {self.scaling.describe()}" if self.scaling else ""
        if self.query_growth:
            scaling += f", queries that grow every {self.query_growth[1]:,} positions"
        keys = "" if self.kv_from is None else f", keys and values of layer {self.kv_from}"
        return f"{self.heads} heads over {self.kv_heads} KV heads of {self.head_dim}{window}{scaling}{keys}"

    def position_bytes(self, kv: CachePair) -> int:
        return self.kv_heads * kv.row_bytes(self.head_dim) if self.kv_from is None else 0


@dataclass(frozen=True, slots=True)
class DeltaNet(Mixer):
    """A gated delta net: a recurrent state for each of `value_heads` heads, after a short causal convolution.

    Value head i reads key head i % key_heads. eps: of the norm over the heads of its output.
    """

    label = "delta net"
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
class SwiGLU(FeedForward):
    """ffn_down( activation(ffn_gate x, ffn_up x) ), `width` wide inside."""

    fused_name = "ffn_up.weight"
    width: int
    activation: Activation = "silu"

    @property
    def fused_rows(self) -> dict[str, int]:
        return {"ffn_gate.weight": self.width, "ffn_up.weight": self.width}

    def tensors(self, hidden: int) -> Shapes:
        shapes: Shapes = {name: (rows, hidden) for name, rows in self.fused_rows.items()}
        return shapes | {"ffn_down.weight": (hidden, self.width)}

    def describe(self) -> str:
        return f"feed-forward {self.width:,}"


@dataclass(frozen=True, slots=True)
class PerLayerInput(FeedForward):
    """proj( gelu(inp_gate h) * input ), GELU in its tanh form: `input` has `width` numbers for each token and layer.

    See `ModelSpec.per_layer_input`.
    """

    width: int

    def tensors(self, hidden: int) -> Shapes:
        return {"inp_gate.weight": (self.width, hidden), "proj.weight": (hidden, self.width)}

    def describe(self) -> str:
        return f"per-layer input {self.width:,}"


ROUTER, SHARED_GATE = "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight"
ROUTER_BIAS, ROUTER_SCALE, CHOICE_BIAS = "ffn_gate_inp.bias", "ffn_gate_inp.scale", "exp_probs_b.bias"
GATE_UP, DOWN, EXPERT_SCALES = "ffn_gate_up_exps.weight", "ffn_down_exps.weight", "ffn_down_exps.scale"
"""Tensors of experts: what scores a row for each, the shared one's gate, and what routed ones hold."""


@dataclass(frozen=True, slots=True)
class Experts(FeedForward):
    """For every row the `used` best of `count` experts, each a SwiGLU `width` wide, by the scores of a router.

    An expert's output is multiplied by its share, times `scale`. Its share is its softmax over all scores, or the
    sigmoid of its score (`router`); where `normalised`, divided by the sum of those of the chosen ones. shared: width
    of an additional expert of every row, its output multiplied by the sigmoid of a gate, one number per row, where
    `shared_gate`; 0 where there is none. fused: gate and up of an expert are one tensor, rows of gate first. Expert e
    is slab e of a tensor; of equal scores the lower expert counts as the better one.

    activation: of every expert. router_bias: added to the scores. choice_bias: added to the shares when the best are
    chosen, and not after. router_scale: the router does not read the normed row but the residual stream under a norm
    without weights, whose epsilon is `eps`, times ROUTER_SCALE / sqrt(hidden). expert_scales: a further factor of each
    expert's output, from the file. biases: of gate, up and down of routed experts.
    """

    count: int
    used: int
    width: int
    shared: int = 0
    normalised: bool = True
    scale: float = 1.0
    fused: bool = False
    activation: Activation = "silu"
    router: Router = "softmax"
    router_bias: bool = False
    choice_bias: bool = False
    router_scale: bool = False
    eps: float = 0.0
    expert_scales: bool = False
    shared_gate: bool = True
    biases: bool = False

    def tensors(self, hidden: int) -> Shapes:
        shapes: Shapes = {ROUTER: (self.count, hidden)}
        if self.router_bias:
            shapes[ROUTER_BIAS] = (self.count,)
        if self.router_scale:
            shapes[ROUTER_SCALE] = (hidden,)
        if self.choice_bias:
            shapes[CHOICE_BIAS] = (self.count,)
        if self.fused:
            shapes[GATE_UP] = (self.count, 2 * self.width, hidden)
        else:
            shapes |= {f"ffn_{part}_exps.weight": (self.count, self.width, hidden) for part in ("gate", "up")}
        shapes[DOWN] = (self.count, hidden, self.width)
        if self.biases:
            weights = [name for name in shapes if name.endswith("_exps.weight")]
            shapes |= {name.replace(".weight", ".bias"): shapes[name][:2] for name in weights}
        if self.expert_scales:
            shapes[EXPERT_SCALES] = (self.count,)
        if self.shared:
            shapes |= {SHARED_GATE: (hidden,)} if self.shared_gate else {}
            shapes |= {
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
