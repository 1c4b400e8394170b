"""The feed-forward half of a layer, dense or with many experts, a few of which process each row; and a part with what
is given to the layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from dflash_core.arch import kinds
from dflash_core.errors import NumericsError
from dflash_core.models.matrix import BiasedMatrix, Matrix, Weights
from dflash_core.models.norm import rms_norm
from dflash_core.models.rows import Inputs


def _clamped_swiglu(gate: Tensor, up: Tensor) -> Tensor:
    gate, up = gate.clamp(max=kinds.CLAMP), up.clamp(-kinds.CLAMP, kinds.CLAMP)
    return gate * torch.sigmoid(kinds.CLAMP_ALPHA * gate) * (up + 1)


ACTIVATIONS: dict[kinds.Activation, Callable[[Tensor, Tensor], Tensor]] = {
    "silu": lambda gate, up: F.silu(gate) * up,
    "gelu_tanh": lambda gate, up: F.gelu(gate, approximate="tanh") * up,
    "clamped_swiglu": _clamped_swiglu,
}
"""What goes down of gate and up, for each activation."""


class SwiGLU:
    """ffn_down( activation(ffn_gate x, ffn_up x) )."""

    def __init__(self, weights: Weights, prefix: str, spec: kinds.SwiGLU) -> None:
        self.ffn_gate: Matrix = weights.matrix(prefix + "ffn_gate.weight")
        self.ffn_up: Matrix = weights.matrix(prefix + "ffn_up.weight")
        self.ffn_down: Matrix = weights.matrix(prefix + "ffn_down.weight")
        self.activation = ACTIVATIONS[spec.activation]

    def __call__(self, x: Tensor, inputs: Inputs | None = None) -> Tensor:
        return self.ffn_down(self.activation(self.ffn_gate(x), self.ffn_up(x)))


class PerLayerInput:
    """proj( gelu(inp_gate h) * what is given to this layer )."""

    def __init__(self, weights: Weights, prefix: str, spec: kinds.PerLayerInput) -> None:
        self.inp_gate: Matrix = weights.matrix(prefix + "inp_gate.weight")
        self.proj: Matrix = weights.matrix(prefix + "proj.weight")

    def __call__(self, x: Tensor, inputs: Inputs) -> Tensor:
        assert inputs.given is not None, "a layer without what is given to it"
        return self.proj(F.gelu(self.inp_gate(x), approximate="tanh") * inputs.given)


class Router:
    """Chooses the experts of each row and their weights, in float32 whatever the model's own type.

    Each row is scored separately: the order of its sums does not depend on the number of rows, so a pass of another
    width chooses the same experts.
    """

    def __init__(self, weights: Weights, prefix: str, spec: kinds.Experts) -> None:
        self.spec, self.layer = spec, prefix

        def vector(name: str, present: bool) -> Tensor | None:
            return _wide(weights.vector(prefix + name)) if present else None

        self.ffn_gate_inp = _wide(weights.vector(prefix + kinds.ROUTER))
        self.bias = vector(kinds.ROUTER_BIAS, spec.router_bias)
        self.exp_probs_b = vector(kinds.CHOICE_BIAS, spec.choice_bias)
        self.expert_scales = vector(kinds.EXPERT_SCALES, spec.expert_scales)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Rows (n, hidden) -> experts (n, used), the best first, and their weights. Raises NumericsError."""
        scores = torch.stack([(self.ffn_gate_inp * row).sum(-1) for row in _wide(x)])
        if self.bias is not None:
            scores = scores + self.bias
        if not scores.isfinite().all():
            raise NumericsError(
                f"the router {self.layer}{kinds.ROUTER} produced scores that are not finite, expected numbers; the file"
                " is damaged: get it again, or compare it with another conversion"
            )
        logs = F.logsigmoid(scores) if self.spec.router == "sigmoid" else scores - scores.logsumexp(-1, keepdim=True)
        order = scores if self.exp_probs_b is None else logs.exp() + self.exp_probs_b
        chosen = order.sort(dim=-1, descending=True, stable=True)[1][:, : self.spec.used]
        best = logs.gather(-1, chosen)
        shares = (best - best.logsumexp(-1, keepdim=True) if self.spec.normalised else best).exp() * self.spec.scale
        return chosen, shares if self.expert_scales is None else shares * self.expert_scales[chosen]


class SharedExpert:
    """The expert of every row: a SwiGLU, where it has a gate times its sigmoid, one number per row."""

    def __init__(self, weights: Weights, prefix: str, spec: kinds.Experts) -> None:
        gated = spec.shared_gate
        self.activation = ACTIVATIONS[spec.activation]
        self.ffn_gate_inp_shexp = _wide(weights.vector(prefix + kinds.SHARED_GATE)) if gated else None
        self.ffn_gate_shexp: Matrix = weights.matrix(prefix + "ffn_gate_shexp.weight")
        self.ffn_up_shexp: Matrix = weights.matrix(prefix + "ffn_up_shexp.weight")
        self.ffn_down_shexp: Matrix = weights.matrix(prefix + "ffn_down_shexp.weight")

    def __call__(self, x: Tensor) -> Tensor:
        out = self.ffn_down_shexp(self.activation(self.ffn_gate_shexp(x), self.ffn_up_shexp(x)))
        if self.ffn_gate_inp_shexp is None:
            return out
        return torch.sigmoid((_wide(x) * self.ffn_gate_inp_shexp).sum(-1, keepdim=True)).to(x.dtype) * out


class Experts:
    """The sum over the chosen e of weight e * ffn_down[e]( activation(ffn_gate[e] x, ffn_up[e] x) ), and of a shared
    expert's."""

    def __init__(self, weights: Weights, prefix: str, spec: kinds.Experts) -> None:
        self.spec = spec
        self.router = Router(weights, prefix, spec)
        self.router_scale = weights.vector(prefix + kinds.ROUTER_SCALE) if spec.router_scale else None
        # Gate and up of an expert: one matrix, rows of gate first, or one of each.
        names = [kinds.GATE_UP] if spec.fused else [f"ffn_{part}_exps.weight" for part in ("gate", "up")]
        self.gate_up = list(zip(*(_stack(weights, prefix + name, spec) for name in names), strict=True))
        self.ffn_down_exps = _stack(weights, prefix + kinds.DOWN, spec)
        self.activation = ACTIVATIONS[spec.activation]
        self.shared = SharedExpert(weights, prefix, spec) if spec.shared else None

    def __call__(self, x: Tensor, inputs: Inputs | None = None) -> Tensor:
        chosen, shares = self.router(self._scored(x, inputs))
        out = torch.zeros_like(x)
        # Expert by expert, in order: the terms of a row and their order depend on no other row.
        for expert in sorted({*chosen.flatten().tolist()}):
            rows, places = (chosen == expert).nonzero(as_tuple=True)
            share = shares[rows, places].to(x.dtype)[:, None]
            out[rows] += share * self._expert(expert, x[rows])
        return out if self.shared is None else out + self.shared(x)

    def _scored(self, x: Tensor, inputs: Inputs | None) -> Tensor:
        if self.router_scale is None:
            return x
        assert inputs is not None, "a router that reads the residual stream, without it"
        return rms_norm(inputs.h, None, self.spec.eps) * self.router_scale / math.sqrt(x.shape[-1])

    def _expert(self, expert: int, x: Tensor) -> Tensor:
        gate, up = torch.cat([matrix(x) for matrix in self.gate_up[expert]], dim=-1).chunk(2, dim=-1)
        return self.ffn_down_exps[expert](self.activation(gate, up))


def _stack(weights: Weights, name: str, spec: kinds.Experts) -> Sequence[Matrix]:
    slabs = weights.stack(name)
    if not spec.biases:
        return slabs
    biases = weights.vector(name.removesuffix(".weight") + ".bias")
    return [BiasedMatrix(slab, bias) for slab, bias in zip(slabs, biases, strict=True)]


def _wide(x: Tensor) -> Tensor:
    """At least float32: router scores are not rounded to a narrower type."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
