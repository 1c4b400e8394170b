"""Matrices in the quantised layouts of published folders, with the weights that they stand for.

Written from the formats' definitions alone: codes are drawn around given weights, packed word by word, and their values
computed in float64. Nothing of the program is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

Tensors = dict[str, Tensor]
AWQ = (0, 2, 4, 6, 1, 3, 5, 7)
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def words(codes: np.ndarray, order: Iterable[int] = range(8)) -> Tensor:
    """(n, m) codes of four bits to (n, m / 8) int32: nibble i of a word is code order[i] of its eight."""
    groups = codes.reshape(len(codes), -1, 8)
    packed = np.zeros(groups.shape[:2], np.uint32)
    for nibble, place in enumerate(order):
        packed |= groups[..., place].astype(np.uint32) << np.uint32(4 * nibble)
    return torch.from_numpy(packed.view(np.int32))


def grouped(
    rng: np.random.Generator, weight: np.ndarray, group: int, symmetric: bool, bf16: bool
) -> tuple[np.ndarray, np.ndarray, Tensor, np.ndarray]:
    """Codes (out, in), zeros and scales (out, groups), and the values (out, in) in float64. Half of the scales of
    symmetric ones are negative."""
    rows, columns = weight.shape
    parts = weight.reshape(rows, -1, group)
    if symmetric:
        zeros = np.full(parts.shape[:2], 8)
        scale = np.abs(parts).max(-1) / 7.5 * rng.choice([-1, 1], parts.shape[:2])
    else:
        low, high = parts.min(-1), parts.max(-1)
        scale = (high - low) / 15
        zeros = np.clip(np.round(-low / scale), 1, 15).astype(np.int64)
    scales = torch.from_numpy(scale).to(torch.bfloat16 if bf16 else torch.float16)
    exact = scales.double().numpy()[..., None]
    codes = np.clip(np.round(parts / np.where(exact == 0, 1, exact)) + zeros[..., None], 0, 15).astype(np.int64)
    values = (codes - zeros[..., None]) * exact
    return codes.reshape(rows, columns), zeros, scales, values.reshape(rows, columns)


def gptq(rng: np.random.Generator, name: str, weight: np.ndarray, **of: Any) -> tuple[Tensors, np.ndarray]:
    """`plus_one` False: zeros as they are, of the second version of the format."""
    plus_one, order = of.pop("plus_one", True), of.pop("g_idx", True)
    codes, zeros, scales, values = grouped(rng, weight, **of)
    found = {
        "qweight": words(codes).T,
        "qzeros": words(zeros.T - plus_one),
        "scales": scales.T,
    }
    if order:
        found["g_idx"] = torch.arange(weight.shape[1], dtype=torch.int32) // of["group"]
    return {f"{name}.{key}": value for key, value in found.items()}, values


def awq(rng: np.random.Generator, name: str, weight: np.ndarray, **of: Any) -> tuple[Tensors, np.ndarray]:
    codes, zeros, scales, values = grouped(rng, weight, **of)
    found = {"qweight": words(codes.T, AWQ), "qzeros": words(zeros.T, AWQ), "scales": scales.T}
    return {f"{name}.{key}": value for key, value in found.items()}, values


def packed(rng: np.random.Generator, name: str, weight: np.ndarray, **of: Any) -> tuple[Tensors, np.ndarray]:
    """compressed-tensors; symmetric ones have no zeros."""
    codes, zeros, scales, values = grouped(rng, weight, **of)
    found = {"weight_packed": words(codes), "weight_scale": scales}
    found["weight_shape"] = torch.tensor(weight.shape)
    if not of["symmetric"]:
        found["weight_zero_point"] = words(zeros.T).T
    return {f"{name}.{key}": value for key, value in found.items()}, values


def fp8(
    rng: np.random.Generator, name: str, weight: np.ndarray, scales: str, key: str = "weight_scale"
) -> tuple[Tensors, np.ndarray]:
    """`scales`: one per "tensor", "row" or "block" of 128 x 128."""
    rows, columns = weight.shape
    size = {"tensor": (rows, columns), "row": (1, columns), "block": (128, 128)}[scales]
    tiled = np.pad(weight, ((0, -rows % size[0]), (0, -columns % size[1])))
    shape = tiled.shape[0] // size[0], tiled.shape[1] // size[1]
    largest = np.abs(tiled.reshape(shape[0], size[0], shape[1], size[1])).max((1, 3))
    stored = torch.from_numpy(largest / 448).float()
    spread = stored.double().numpy().repeat(size[0], 0).repeat(size[1], 1)[:rows, :columns]
    codes = torch.from_numpy(np.clip(weight / spread, -448, 448)).to(torch.float8_e4m3fn)
    values = codes.double().numpy() * spread
    whole = stored.reshape(()) if scales == "tensor" else stored
    return {f"{name}.weight": codes, f"{name}.{key}": whole}, values


def nvfp4(rng: np.random.Generator, name: str, weight: np.ndarray, divides: bool) -> tuple[Tensors, np.ndarray]:
    """ModelOpt's names or, where the tensor's number divides, those of compressed-tensors."""
    rows, columns = weight.shape
    parts = weight.reshape(rows, -1, 16)
    whole = np.float32(np.abs(weight).max() / (6 * 448) * (1 if divides else rng.uniform(1, 2)))
    if divides:
        whole = np.float32(2.0) ** np.round(np.log2(whole))  # a number whose reciprocal is exact
    scale = torch.from_numpy(np.minimum(np.abs(parts).max(-1) / 6 / whole, 448)).to(torch.float8_e4m3fn)
    exact = scale.double().numpy()[..., None] * np.float64(whole)
    ratio = parts / np.where(exact == 0, 1, exact)
    codes = np.abs(ratio[..., None] - E2M1).argmin(-1)
    values = (E2M1[codes] * exact).reshape(rows, columns)
    codes = codes.reshape(rows, columns).astype(np.uint8)
    pairs = torch.from_numpy(codes[:, 0::2] | codes[:, 1::2] << 4)
    names = ("weight_packed", "weight_global_scale") if divides else ("weight", "weight_scale_2")
    number = torch.tensor(1 / whole if divides else whole)
    return {
        f"{name}.{names[0]}": pairs, f"{name}.weight_scale": scale, f"{name}.{names[1]}": number,
        f"{name}.{'input_global_scale' if divides else 'input_scale'}": torch.tensor(0.01),
    }, values  # fmt: skip


def mxfp4(weight: np.ndarray) -> tuple[Tensor, Tensor, np.ndarray]:
    """Blocks (.., rows, inputs / 32, 16) and scales (.., rows, inputs / 32) of weights (.., rows, inputs), and the
    values: an exponent per 32 inputs, two neighbours in a byte."""
    parts = weight.reshape(*weight.shape[:-1], -1, 32)
    exponent = np.floor(np.log2(np.abs(parts).max(-1))).astype(np.int64) - 2
    codes = np.abs(parts[..., None] / np.exp2(exponent)[..., None, None] - E2M1).argmin(-1)
    values = (E2M1[codes] * np.exp2(exponent)[..., None]).reshape(weight.shape)
    pairs = torch.from_numpy((codes[..., 0::2] | codes[..., 1::2] << 4).astype(np.uint8))
    return pairs, torch.from_numpy((exponent + 127).astype(np.uint8)), values


Layout = Callable[..., tuple[Tensors, np.ndarray]]
LAYOUTS: Mapping[str, tuple[Layout, Mapping[str, Any]]] = {
    "gptq-128-signed": (gptq, {"group": 128, "symmetric": True, "bf16": False}),
    "gptq-64-zeros": (gptq, {"group": 64, "symmetric": False, "bf16": False, "g_idx": False}),
    "gptq-32-bf16": (gptq, {"group": 32, "symmetric": True, "bf16": True}),
    "gptq-v2": (gptq, {"group": 128, "symmetric": False, "bf16": False, "plus_one": False}),
    "awq-128": (awq, {"group": 128, "symmetric": False, "bf16": False}),
    "awq-32": (awq, {"group": 32, "symmetric": False, "bf16": True}),
    "packed-128": (packed, {"group": 128, "symmetric": True, "bf16": True}),
    "packed-32-zeros": (packed, {"group": 32, "symmetric": False, "bf16": False}),
    "fp8-tensor": (fp8, {"scales": "tensor"}),
    "fp8-row": (fp8, {"scales": "row"}),
    "fp8-block": (fp8, {"scales": "block", "key": "weight_scale_inv"}),
    "nvfp4-modelopt": (nvfp4, {"divides": False}),
    "nvfp4-compressed": (nvfp4, {"divides": True}),
}


def in_layout(rng: np.random.Generator, name: str, layout: str, weight: np.ndarray) -> tuple[Tensors, np.ndarray]:
    """The tensors of the module `name` whose weights are about `weight` (out, in), and the exact values, float64."""
    make, of = LAYOUTS[layout]
    return make(rng, name, np.asarray(weight, np.float64), **of)
