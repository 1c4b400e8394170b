"""The Qwen3.5 target (GGUF architecture `qwen35`) in plain torch: attributes carry the GGUF tensor names.

Every pass runs a set of rows that hang behind the committed context as a tree: a prefill chunk is a chain of rows,
a verify pass the root and its drafts, plain decoding the root alone. One code path serves all three.
Formulas: Qwen3.5's own definition; the tree form of the gated delta net is this project's design, section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dflash_core.config import TargetConfig
from dflash_core.models.layers import FeedForward, KVCache, Rotary, attend, is_spine, rms_norm
from dflash_core.models.matrix import Matrix, Weights
from dflash_core.tree import ancestors, conv_taps

L2_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one pass. `length` positions are committed; row i sits at position length + depth of i.

    tokens: n ids; positions (n,); ancestors (n, n) bool, self included, and its complement `unrelated`; `sums` (n, n)
    float64, which adds up a row's ancestors; taps (n, conv_kernel), see tree.conv_taps.
    """

    tokens: tuple[int, ...]
    length: int
    positions: Tensor
    ancestors: Tensor
    unrelated: Tensor
    sums: Tensor
    taps: Tensor

    @staticmethod
    def of(tokens: Sequence[int], parents: Sequence[int], length: int, conv_kernel: int) -> Rows:
        mask = torch.from_numpy(ancestors(parents))
        positions = length + mask.sum(dim=1) - 1
        taps = torch.from_numpy(conv_taps(parents, conv_kernel))
        return Rows(tuple(tokens), length, positions, mask, ~mask, mask.T.double(), taps)

    @property
    def visible(self) -> Tensor:
        """(n, length + n) attention mask: all committed positions, ancestors, self."""
        return F.pad(self.ancestors, (self.length, 0), value=True)


@dataclass(slots=True)
class DeltaRows:
    """What a commit needs of one pass: convolution inputs (kernel - 1 + n, channels), K (heads, n, dk),
    U (heads, n, dv) and G (heads, n) in float64."""

    inputs: Tensor
    taps: Tensor
    k: Tensor
    u: Tensor
    log_decay: Tensor


@dataclass(slots=True)
class DeltaState:
    """Recurrent state S (v_heads, dk, dv) and the last conv_kernel - 1 inputs (kernel - 1, channels), oldest first."""

    s: Tensor
    conv: Tensor
    rows: DeltaRows | None = None

    def copy(self) -> DeltaState:
        """The committed state alone, on memory of its own."""
        return DeltaState(self.s.clone(), self.conv.clone())

    def keep(self, path: Sequence[int]) -> None:
        """S' = e^{G_p} S + sum over the path of k_j e^{G_p - G_j} u_j^T; the conv state is p's own last inputs."""
        assert self.rows is not None, "commit without a pass"
        rows, last, dtype = self.rows, path[-1], self.s.dtype
        at = slice(len(path)) if is_spine(path) else torch.tensor(path)
        total, k = rows.log_decay[:, last], rows.k[:, at]
        if len(path) > 1:
            k = k * torch.exp(total[:, None] - rows.log_decay[:, at]).to(dtype)[..., None]
        # In place: the state is the largest thing that a step writes.
        self.s.mul_(torch.exp(total).to(dtype)[:, None, None]).baddbmm_(k.transpose(1, 2), rows.u[:, at])
        self.conv = rows.inputs[rows.taps[last, 1:]]
        self.rows = None


class GatedDeltaNet:
    """A linear-attention layer. Value head i reads key head i % k_heads (GGUF's tiled order)."""

    def __init__(self, weights: Weights, prefix: str, config: TargetConfig) -> None:
        self.config = config
        self.attn_qkv: Matrix = weights.matrix(prefix + "attn_qkv.weight")
        self.attn_gate: Matrix = weights.matrix(prefix + "attn_gate.weight")
        self.ssm_conv1d = weights.vector(prefix + "ssm_conv1d.weight")  # (channels, kernel), tap 0 the oldest
        self.ssm_alpha: Matrix = weights.matrix(prefix + "ssm_alpha.weight")
        self.ssm_beta: Matrix = weights.matrix(prefix + "ssm_beta.weight")
        self.ssm_a = weights.vector(prefix + "ssm_a")  # -exp(A_log)
        self.ssm_dt = weights.vector(prefix + "ssm_dt.bias")
        self.ssm_norm = weights.vector(prefix + "ssm_norm.weight")
        self.ssm_out: Matrix = weights.matrix(prefix + "ssm_out.weight")

    def new_state(self) -> DeltaState:
        c, like = self.config, self.ssm_norm
        s = like.new_zeros(c.time_step_rank, c.state_size, c.value_head_dim)
        return DeltaState(s, like.new_zeros(c.conv_kernel - 1, c.conv_channels))

    def __call__(self, x: Tensor, rows: Rows, state: DeltaState) -> Tensor:
        c, n = self.config, len(x)
        key_width = c.group_count * c.state_size

        inputs = torch.cat((state.conv, self.attn_qkv(x)))
        mixed = F.silu((inputs[rows.taps] * self.ssm_conv1d.T).sum(dim=1))
        q, k, v = mixed[:, :key_width], mixed[:, key_width : 2 * key_width], mixed[:, 2 * key_width :]
        q = self._l2(q.view(n, c.group_count, -1)) / c.state_size**0.5
        k = self._l2(k.view(n, c.group_count, -1))
        repeat = c.time_step_rank // c.group_count
        q, k = (t.transpose(0, 1).repeat(repeat, 1, 1) for t in (q, k))  # (v_heads, n, dk)
        v = v.view(n, c.time_step_rank, -1).transpose(0, 1)
        beta = torch.sigmoid(self.ssm_beta(x)).T[..., None]  # (v_heads, n, 1)
        log_decay = (self.ssm_a * F.softplus(self.ssm_alpha(x) + self.ssm_dt)).T  # (v_heads, n), <= 0

        out = self._delta(q, k, v, beta, log_decay, rows, state, inputs)
        gated = rms_norm(out, self.ssm_norm, c.rms_eps) * F.silu(self.attn_gate(x).view(n, c.time_step_rank, -1))
        return self.ssm_out(gated.reshape(n, -1))

    @staticmethod
    def _l2(x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_EPS)

    @staticmethod
    def _delta(
        q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor, rows: Rows, state: DeltaState, inputs: Tensor
    ) -> Tensor:
        """The gated delta rule for every row from the committed state alone; returns (n, v_heads, dv).

        With G the decays summed along root..i and D_ij = exp(G_i - G_j) where j is i or an ancestor of i:
        (I + diag(beta) (strict D * K K^T)) U = diag(beta) (V - diag(e^G) K S),   O = diag(e^G) Q S + (D * Q K^T) U.
        """
        if len(rows.tokens) == 1:
            # A row alone meets no other: D is 1, the system is the identity, and plain decoding pays for neither.
            carried = torch.exp(log_decay)[..., None]
            u = beta * (v - carried * (k @ state.s))
            state.rows = DeltaRows(inputs, rows.taps, k, u, log_decay.double())
            return (carried * (q @ state.s) + (q * k).sum(-1, keepdim=True) * u).transpose(0, 1)
        # G in float64: it grows along a long chunk while the differences that matter stay small.
        total = log_decay.double() @ rows.sums
        gap = total[:, :, None] - total[:, None, :]
        # Masked before exp: between branches the difference can be positive and overflow.
        decay = torch.exp(gap.masked_fill_(rows.unrelated, -torch.inf).to(q.dtype))
        carried = torch.exp(total.to(q.dtype))[..., None]
        system = beta * (decay * (k @ k.transpose(1, 2))).tril(-1)
        known = beta * (v - carried * (k @ state.s))
        u = torch.linalg.solve_triangular(system, known, upper=False, unitriangular=True)
        state.rows = DeltaRows(inputs, rows.taps, k, u, total)
        out: Tensor = carried * (q @ state.s) + (decay * (q @ k.transpose(1, 2))) @ u
        return out.transpose(0, 1)


class GatedAttention:
    """A full-attention layer: q/k norms, partial rotary, grouped heads, and a sigmoid gate on the output."""

    def __init__(self, weights: Weights, prefix: str, config: TargetConfig) -> None:
        self.config = config
        self.attn_q: Matrix = weights.matrix(prefix + "attn_q.weight")  # per head: query rows, then gate rows
        self.attn_k: Matrix = weights.matrix(prefix + "attn_k.weight")
        self.attn_v: Matrix = weights.matrix(prefix + "attn_v.weight")
        self.attn_output: Matrix = weights.matrix(prefix + "attn_output.weight")
        self.attn_q_norm = weights.vector(prefix + "attn_q_norm.weight")
        self.attn_k_norm = weights.vector(prefix + "attn_k_norm.weight")
        self.rotary = Rotary(config.rope_dimension_count, config.rope_freq_base, weights.dtype)

    def new_state(self) -> KVCache:
        return KVCache(self.config.head_count_kv, self.config.key_length, self.attn_q_norm.dtype)

    def __call__(self, x: Tensor, rows: Rows, cache: KVCache) -> Tensor:
        c, n = self.config, len(x)
        q, gate = self.attn_q(x).view(n, c.head_count, 2, c.key_length).unbind(dim=2)
        k = self.attn_k(x).view(n, c.head_count_kv, -1).transpose(0, 1)
        v = self.attn_v(x).view(n, c.head_count_kv, -1).transpose(0, 1)
        angles = self.rotary.angles(rows.positions)
        q = self.rotary(rms_norm(q.transpose(0, 1), self.attn_q_norm, c.rms_eps), angles)
        k = self.rotary(rms_norm(k, self.attn_k_norm, c.rms_eps), angles)
        keys, values = cache.write(rows.length, k, v)
        out = attend(q, keys, values, rows.visible if n > 1 else None)
        return self.attn_output(out * torch.sigmoid(gate.reshape(n, -1)))


LayerState = DeltaState | KVCache


class Block:
    """One layer: h += mixer(norm h); h += ffn(norm h)."""

    def __init__(self, weights: Weights, index: int, config: TargetConfig) -> None:
        prefix = f"blk.{index}."
        self.eps = config.rms_eps
        self.attn_norm = weights.vector(prefix + "attn_norm.weight")
        self.post_attention_norm = weights.vector(prefix + "post_attention_norm.weight")
        kind = GatedAttention if config.full_attention[index] else GatedDeltaNet
        self.mixer: GatedAttention | GatedDeltaNet = kind(weights, prefix, config)
        self.ffn = FeedForward(weights, prefix)

    def __call__(self, h: Tensor, rows: Rows, state: LayerState) -> Tensor:
        h = h + self.mixer(rms_norm(h, self.attn_norm, self.eps), rows, state)  # type: ignore[arg-type]
        return h + self.ffn(rms_norm(h, self.post_attention_norm, self.eps))


class Qwen35:
    """The whole target. Holds weights only; what a conversation owns is in the list of layer states."""

    def __init__(
        self, weights: Weights, config: TargetConfig, progress: Callable[[int, int], None] | None = None
    ) -> None:
        self.config = config
        self.token_embd: Matrix = weights.matrix("token_embd.weight")
        self.blk: list[Block] = []
        for index in range(config.block_count):
            self.blk.append(Block(weights, index, config))
            if progress:
                progress(index + 1, config.block_count)
        self.output_norm = weights.vector("output_norm.weight")
        self.output: Matrix = self.token_embd if config.tied_output else weights.matrix("output.weight")

    def new_states(self) -> list[LayerState]:
        return [block.mixer.new_state() for block in self.blk]

    def forward(
        self, rows: Rows, states: Sequence[LayerState], taps: Sequence[int] = ()
    ) -> tuple[Tensor, list[Tensor]]:
        """Run rows behind the committed states. Returns the final hidden rows (n, hidden) before `output_norm`, and
        the output of each layer in `taps` (n, hidden), in that order. Nothing is committed."""
        h = self.token_embd.rows(rows.tokens)
        outputs: dict[int, Tensor] = {}
        for index, (block, state) in enumerate(zip(self.blk, states, strict=True)):
            h = block(h, rows, state)
            if index in taps:
                outputs[index] = h
        return h, [outputs[index] for index in taps]

    def logits(self, h: Tensor) -> Tensor:
        """Final hidden rows (n, hidden) -> logits (n, vocab)."""
        return self.output(rms_norm(h, self.output_norm, self.config.rms_eps))
