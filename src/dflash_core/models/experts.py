"""A feed-forward half with many experts, a few of which process each row."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dflash_core.arch import kinds
from dflash_core.errors import NumericsError
from dflash_core.models.matrix import Matrix, Weights


class Router:
    """Chooses the experts of each row and their weights, in float32 whatever the model's own type.

    Each row is scored separately: the order of its sums does not depend on the number of rows, so a pass of another
    width chooses the same experts.
    """

    def __init__(self, weights: Weights, prefix: str, spec: kinds.Experts) -> None:
        self.spec, self.layer = spec, prefix
        self.ffn_gate_inp = _wide(weights.vector(prefix + kinds.ROUTER))

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Rows (n, hidden) -> experts (n, used), the best first, and their weights. Raises NumericsError."""
        scores = torch.stack([(self.ffn_gate_inp * row).sum(-1) for row in _wide(x)])
        if not scores.isfinite().all():
            raise NumericsError(
                f"the router {self.layer}{kinds.ROUTER} produced scores that are not finite, expected numbers; the file"
                " is damaged: get it again, or compare it with another conversion"
            )
        best, chosen = (part[:, : self.spec.used] for part in scores.sort(dim=-1, descending=True, stable=True))
        total = (best if self.spec.normalised else scores).logsumexp(-1, keepdim=True)
        return chosen, (best - total).exp() * self.spec.scale


class SharedExpert:
    """The expert of every row: a SwiGLU times the sigmoid of a gate, one number per row."""

    def __init__(self, weights: Weights, prefix: str) -> None:
        self.ffn_gate_inp_shexp = _wide(weights.vector(prefix + kinds.SHARED_GATE))
        self.ffn_gate_shexp: Matrix = weights.matrix(prefix + "ffn_gate_shexp.weight")
        self.ffn_up_shexp: Matrix = weights.matrix(prefix + "ffn_up_shexp.weight")
        self.ffn_down_shexp: Matrix = weights.matrix(prefix + "ffn_down_shexp.weight")

    def __call__(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid((_wide(x) * self.ffn_gate_inp_shexp).sum(-1, keepdim=True)).to(x.dtype)
        return gate * self.ffn_down_shexp(F.silu(self.ffn_gate_shexp(x)) * self.ffn_up_shexp(x))


class Experts:
    """sum over the chosen e of weight e * ffn_down[e]( silu(ffn_gate[e] x) * (ffn_up[e] x) ), plus a shared expert."""

    def __init__(self, weights: Weights, prefix: str, spec: kinds.Experts) -> None:
        self.router = Router(weights, prefix, spec)
        # Gate and up of an expert: one matrix, rows of gate first, or one of each.
        names = [kinds.GATE_UP] if spec.fused else [f"ffn_{part}_exps.weight" for part in ("gate", "up")]
        self.gate_up = list(zip(*(weights.stack(prefix + name) for name in names), strict=True))
        self.ffn_down_exps = weights.stack(prefix + kinds.DOWN)
        self.shared = SharedExpert(weights, prefix) if spec.shared else None

    def __call__(self, x: Tensor) -> Tensor:
        chosen, shares = self.router(x)
        out = torch.zeros_like(x)
        # Expert by expert, in order: the terms of a row and their order depend on no other row.
        for expert in sorted({*chosen.flatten().tolist()}):
            rows, places = (chosen == expert).nonzero(as_tuple=True)
            share = shares[rows, places].to(x.dtype)[:, None]
            out[rows] += share * self._expert(expert, x[rows])
        return out if self.shared is None else out + self.shared(x)

    def _expert(self, expert: int, x: Tensor) -> Tensor:
        gate, up = torch.cat([matrix(x) for matrix in self.gate_up[expert]], dim=-1).chunk(2, dim=-1)
        return self.ffn_down_exps[expert](F.silu(gate) * up)


def _wide(x: Tensor) -> Tensor:
    """At least float32: router scores are not rounded to a narrower type."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
