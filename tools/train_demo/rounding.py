"""Fake quantisation: weights as ggml's Q4_0, Q5_0 and Q8_0 would store them, so that training sees what ships."""

from __future__ import annotations

import torch
from torch import Tensor

from .shapes import Shapes, Weights


def fake_quant(blocks: Tensor, kind: str) -> Tensor:
    """Float32 `blocks` (n, 32) quantised and dequantised, exactly as Q4_0, Q5_0 and Q8_0 round."""
    if kind == "Q8_0":
        d = blocks.abs().amax(dim=1, keepdim=True) / 127
        inverse = torch.where(d == 0, 0, 1 / d)
        scaled = blocks * inverse
        q = torch.trunc(scaled.abs() + 0.5) * scaled.sign()
        return q * d.half().float()
    half = {"Q4_0": 8, "Q5_0": 16}[kind]
    at = blocks.abs().argmax(dim=1, keepdim=True)
    d = blocks.gather(1, at) / -half
    inverse = torch.where(d == 0, 0, 1 / d)
    q = torch.trunc(blocks * inverse + (half + 0.5)).clamp(0, 2 * half - 1) - half
    return q * d.half().float()


def effective(weights: Weights, shapes: Shapes, strength: float, dtype: torch.dtype) -> Weights:
    """The weights that the forward pass uses: `strength` blends in the rounded values; gradients ignore the rounding.

    All tensors of one storage type are rounded as one long list of blocks: a handful of kernels instead of hundreds.
    """
    out = dict(weights)
    for kind in ("Q4_0", "Q5_0", "Q8_0"):
        names = [name for name, (_, k) in shapes.items() if k == kind]
        if not names:
            continue
        flat = torch.cat([weights[name].reshape(-1, 32) for name in names])
        if strength > 0:
            flat = flat + strength * (fake_quant(flat.detach(), kind) - flat.detach())
        parts = torch.split(flat.to(dtype), [weights[name].numel() // 32 for name in names])
        out.update({name: part.view(weights[name].shape) for name, part in zip(names, parts, strict=True)})
    return out


def quantised(weights: Weights, shapes: Shapes) -> Weights:
    """Float32 weights with every quantised tensor rounded to the values that the file can hold."""
    return {
        name: fake_quant(w.detach().reshape(-1, 32), shapes[name][1]).view(w.shape)
        if shapes[name][1] != "F32"
        else w.detach()
        for name, w in weights.items()
    }
