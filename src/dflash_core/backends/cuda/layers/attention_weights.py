"""Attention on a card: the weights of a layer, and the frequencies of its rotary positions."""

from __future__ import annotations

import torch
from torch import Tensor

from dflash_core.arch import kinds
from dflash_core.backends.cuda.activations import Activations
from dflash_core.backends.cuda.launch import Device
from dflash_core.backends.cuda.projection import Matrix, Projection
from dflash_core.backends.cuda.upload import Upload
from dflash_core.models.norm import Rotary


class AttentionWeights:
    """A layer of the target or of the drafter: query, key and value in one projection.

    `pair`: the key and value matrices, if they have been read already.
    """

    def __init__(
        self,
        device: Device,
        upload: Upload,
        prefix: str,
        activations: Activations,
        spec: kinds.Attention,
        pair: tuple[Matrix, Matrix] | None = None,
    ) -> None:
        names = ["attn_q.weight"] if pair else [*projected_rows(spec)]
        matrices = [upload.matrix(prefix + name) for name in names]
        gates = [upload.matrix(prefix + "attn_gate.weight")] if spec.gate == "softplus" else []
        self.inputs = Projection(device, [*matrices, *(pair or ()), *gates], activations.inputs)
        self.out = Projection(device, [upload.matrix(prefix + "attn_output.weight")], activations.inputs)
        self.q_norm = self.k_norm = torch.empty(0, device=device.torch_device)  # a null pointer
        if spec.qk_norm:
            self.q_norm = upload.vector(prefix + "attn_q_norm.weight")
        if spec.qk_norm and spec.kv_from is None:
            self.k_norm = upload.vector(prefix + "attn_k_norm.weight")
        if turn_factor(spec) != 1:
            # The factor of cosines and sines is applied to norms before them, where there are any.
            for norm in (self.q_norm, self.k_norm):
                norm[: spec.rotary] *= turn_factor(spec)
        self.bias = _input_bias(upload, prefix, spec, device.torch_device)
        self.out_bias = upload.vector(prefix + "attn_output.bias") if "attn_output" in spec.biases else None
        self.sinks = upload.vector(prefix + "attn_sinks.weight") if spec.sinks else None


def turn_factor(spec: kinds.Attention) -> float:
    """The factor of cosines and sines."""
    return spec.scaling.attention if spec.scaling else 1.0


def projected_rows(spec: kinds.Attention) -> dict[str, int]:
    """The rows of query, key and value by their matrices' names, of those that there are."""
    there = spec.tensors(0)
    return {name: rows for name, rows in spec.fused_rows.items() if name in there}


def _input_bias(upload: Upload, prefix: str, spec: kinds.Attention, on: torch.device) -> Tensor | None:
    """The biases of query, key and value, next to each other as their products are; zeros for one without."""
    if not {"attn_q", "attn_k", "attn_v"} & {*spec.biases}:
        return None
    parts = []
    for name, rows in projected_rows(spec).items():
        part = name.removesuffix(".weight")
        there = part in spec.biases
        parts.append(upload.vector(f"{prefix}{part}.bias") if there else torch.zeros(rows, device=on))
    return torch.cat(parts)


def frequencies(spec: kinds.Attention, device: Device, factors: Tensor | None = None) -> Tensor:
    """Frequencies of the rotary embedding, over `factors` where there are any, rounded as in the reference."""
    rotary = Rotary(spec.rotary, spec.rope_base, torch.float32, spec.scaling, factors)
    return rotary.frequencies.to(device.torch_device)
