"""Muon for the matrices, AdamW for the rest."""

from __future__ import annotations

import torch
from torch import Tensor


def orthogonalise(x: Tensor, steps: int = 5) -> Tensor:
    """Push the singular values of each matrix of x (n, rows, cols) towards 1 by Newton-Schulz steps."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = x.shape[1] > x.shape[2]
    y = x.bfloat16() if x.is_cuda else x
    if tall:
        y = y.transpose(1, 2)
    y = y / (y.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        s = y @ y.transpose(1, 2)
        y = a * y + (b * s + c * s @ s) @ y
    out: Tensor = (y.transpose(1, 2) if tall else y).float()
    return out


class Muon:
    """Nesterov momentum whose update is orthogonalised; matrices of one shape are handled as one batch."""

    def __init__(self, params: list[Tensor], momentum: float = 0.95, decay: float = 0.05) -> None:
        self.groups: dict[tuple[int, ...], list[Tensor]] = {}
        for p in params:
            self.groups.setdefault(tuple(p.shape), []).append(p)
        self.buffers = {shape: torch.zeros(len(ps), *shape, device=ps[0].device) for shape, ps in self.groups.items()}
        self.momentum, self.decay = momentum, decay

    @torch.no_grad()
    def step(self, lr: float) -> None:
        for shape, ps in self.groups.items():
            grad = torch.stack([p.grad for p in ps if p.grad is not None])
            buffer = self.buffers[shape].mul_(self.momentum).add_(grad, alpha=1 - self.momentum)
            update = orthogonalise(grad.lerp(buffer, self.momentum))
            scale = lr * max(1.0, shape[0] / shape[1]) ** 0.5
            for p, u in zip(ps, update.unbind(), strict=True):
                p.mul_(1 - lr * self.decay).add_(u, alpha=-scale)


TABLES = ("token_embd.weight", "output.weight", "selector_predecessor.weight", "selector_successor.weight")
"""Matrices with a row per token: few of their rows have a gradient in a step."""


class Optimiser:
    """Both optimisers after one `step(scale)`; `scale` is the schedule's share of the peak learning rates."""

    def __init__(self, weights: dict[str, Tensor], muon_lr: float = 0.02, adam_lr: float = 3e-3) -> None:
        def is_matrix(name: str, p: Tensor) -> bool:
            small = name.endswith(("ssm_alpha.weight", "ssm_beta.weight", "ssm_conv1d.weight"))
            return p.dim() == 2 and not small and name not in TABLES

        self.params = list(weights.values())
        self.muon = Muon([p for n, p in weights.items() if is_matrix(n, p)])
        self.rest = [p for n, p in weights.items() if not is_matrix(n, p)]
        self.adam = torch.optim.AdamW(
            self.rest, lr=adam_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=self.rest[0].is_cuda
        )
        self.muon_lr, self.adam_lr = muon_lr, adam_lr

    def step(self, scale: float) -> None:
        torch.nn.utils.clip_grad_norm_(self.rest, 1.0)
        self.muon.step(self.muon_lr * scale)
        for group in self.adam.param_groups:
            group["lr"] = self.adam_lr * scale
        self.adam.step()
        for p in self.params:
            p.grad = None
