"""The gated delta net: linear attention with a recurrent state, over the rows of a tree.

Formulas: Qwen3.5's own definition; the tree form is derived in docs/delta-net.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dflash_core.arch import kinds
from dflash_core.cache_types import CachePair
from dflash_core.models.kv_cache import is_spine
from dflash_core.models.matrix import Matrix, Weights
from dflash_core.models.norm import rms_norm
from dflash_core.models.rows import Inputs, LayerState, Rows

L2_EPS = 1e-6


@dataclass(slots=True)
class DeltaRows:
    """The tensors of one pass that a commit needs: convolution inputs (kernel - 1 + n, channels), K (heads, n, dk),
    U (heads, n, dv) and G (heads, n) in float64."""

    inputs: Tensor
    taps: Tensor
    k: Tensor
    u: Tensor
    log_decay: Tensor


@dataclass
class DeltaState(LayerState):
    """Recurrent state S (v_heads, dk, dv) and the last conv_kernel - 1 inputs (kernel - 1, channels), oldest first."""

    s: Tensor
    conv: Tensor
    rows: DeltaRows | None = None
    component = "states"

    def reaches(self, length: int) -> bool:
        return False

    def tensors(self, length: int) -> tuple[Tensor, ...]:
        return self.s.clone(), self.conv.clone()

    def load(self, length: int, tensors: Iterator[Tensor]) -> None:
        self.s, self.conv, self.rows = next(tensors).clone(), next(tensors).clone(), None

    @property
    def nbytes(self) -> int:
        return self.s.nbytes + self.conv.nbytes

    def commit(self, length: int, path: Sequence[int]) -> None:
        """S' = e^{G_p} S + sum over the path of k_j e^{G_p - G_j} u_j^T; the conv state is p's own last inputs."""
        assert self.rows is not None, "commit without a pass"
        rows, last, dtype = self.rows, path[-1], self.s.dtype
        at = slice(len(path)) if is_spine(path) else torch.tensor(path)
        total, k = rows.log_decay[:, last], rows.k[:, at]
        if len(path) > 1:
            k = k * torch.exp(total[:, None] - rows.log_decay[:, at]).to(dtype)[..., None]
        # In place: the state is the largest tensor that a step writes.
        self.s.mul_(torch.exp(total).to(dtype)[:, None, None]).baddbmm_(k.transpose(1, 2), rows.u[:, at])
        self.conv = rows.inputs[rows.taps[last, 1:]]
        self.rows = None


class GatedDeltaNet:
    """A linear-attention layer. Value head i reads key head i % k_heads (GGUF's tiled order)."""

    def __init__(self, weights: Weights, prefix: str, spec: kinds.DeltaNet) -> None:
        self.spec = spec
        self.attn_qkv: Matrix = weights.matrix(prefix + "attn_qkv.weight")
        self.attn_gate: Matrix = weights.matrix(prefix + "attn_gate.weight")
        self.ssm_conv1d = weights.vector(prefix + "ssm_conv1d.weight")  # (channels, kernel), tap 0 the oldest
        self.ssm_alpha: Matrix = weights.matrix(prefix + "ssm_alpha.weight")
        self.ssm_beta: Matrix = weights.matrix(prefix + "ssm_beta.weight")
        self.ssm_a = weights.vector(prefix + "ssm_a")  # -exp(A_log)
        self.ssm_dt = weights.vector(prefix + "ssm_dt.bias")
        self.ssm_norm = weights.vector(prefix + "ssm_norm.weight")
        self.ssm_out: Matrix = weights.matrix(prefix + "ssm_out.weight")

    def new_state(self, kv: CachePair | None = None) -> DeltaState:
        """The state of an empty sequence; there are no keys and values."""
        c, like = self.spec, self.ssm_norm
        s = like.new_zeros(c.value_heads, c.key_dim, c.value_dim)
        return DeltaState(s, like.new_zeros(c.conv_kernel - 1, c.channels))

    def __call__(self, x: Tensor, inputs: Inputs) -> Tensor:
        c, n, rows, state = self.spec, len(x), inputs.rows, inputs.state
        assert isinstance(state, DeltaState), "a delta net without its state"
        key_width = c.key_heads * c.key_dim

        taken, taps = torch.cat((state.conv, self.attn_qkv(x))), rows.taps(c.conv_kernel)
        mixed = F.silu((taken[taps] * self.ssm_conv1d.T).sum(dim=1))
        q, k, v = mixed[:, :key_width], mixed[:, key_width : 2 * key_width], mixed[:, 2 * key_width :]
        q = self._l2(q.view(n, c.key_heads, -1)) / c.key_dim**0.5
        k = self._l2(k.view(n, c.key_heads, -1))
        repeat = c.value_heads // c.key_heads
        q, k = (t.transpose(0, 1).repeat(repeat, 1, 1) for t in (q, k))  # (v_heads, n, dk)
        v = v.view(n, c.value_heads, -1).transpose(0, 1)
        beta = torch.sigmoid(self.ssm_beta(x)).T[..., None]  # (v_heads, n, 1)
        log_decay = (self.ssm_a * F.softplus(self.ssm_alpha(x) + self.ssm_dt)).T  # (v_heads, n), <= 0

        out, u, total = self._delta(q, k, v, beta, log_decay, rows, state.s)
        state.rows = DeltaRows(taken, taps, k, u, total)
        gated = rms_norm(out, self.ssm_norm, c.eps) * F.silu(self.attn_gate(x).view(n, c.value_heads, -1))
        return self.ssm_out(gated.reshape(n, -1))

    @staticmethod
    def _l2(x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_EPS)

    @staticmethod
    def _delta(
        q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor, rows: Rows, s: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gated delta rule for every row from the committed state `s`: outputs (n, v_heads, dv), U and G.

        With G the decays summed along root..i and D_ij = exp(G_i - G_j) where j is i or an ancestor of i:
        (I + diag(beta) (strict D * K K^T)) U = diag(beta) (V - diag(e^G) K S),   O = diag(e^G) Q S + (D * Q K^T) U.
        """
        if len(rows.tokens) == 1:
            # For a single row D is 1 and the system is the identity: plain decoding computes neither.
            carried = torch.exp(log_decay)[..., None]
            u = beta * (v - carried * (k @ s))
            out = carried * (q @ s) + (q * k).sum(-1, keepdim=True) * u
            return out.transpose(0, 1), u, log_decay.double()
        # G in float64: it grows along a long chunk while the differences that matter stay small.
        total = log_decay.double() @ rows.sums
        gap = total[:, :, None] - total[:, None, :]
        # Masked before exp: between branches the difference can be positive and overflow.
        decay = torch.exp(gap.masked_fill_(rows.unrelated, -torch.inf).to(q.dtype))
        carried = torch.exp(total.to(q.dtype))[..., None]
        system = beta * (decay * (k @ k.transpose(1, 2))).tril(-1)
        known = beta * (v - carried * (k @ s))
        u = torch.linalg.solve_triangular(system, known, upper=False, unitriangular=True)
        out = carried * (q @ s) + (decay * (q @ k.transpose(1, 2))) @ u
        return out.transpose(0, 1), u, total
