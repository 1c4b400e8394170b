"""Matmul launches in an engine: random weights of any ggml types, packed, planned, run and compared in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dflash_core.backends.cuda.activations import INT8, Rounding
from dflash_core.backends.cuda.plan import Card, Plan, Product, Shape, plan
from dflash_core.backends.cuda.repack import repack, tile_type
from dflash_core.formats.quants import Bytes, to_float32
from support import acts
from support.blocks import random_blocks
from support.engines import Engine

# A small card: several k slices and row groups with little work for the emulator.
SMALL = Card(multiprocessors=7, shared_bytes=227 * 1024)

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


@dataclass
class Weights:
    """Matrices of one launch: dequantised (rows, k) float64, and packed in the engine."""

    shapes: tuple[Shape, ...]
    columns: int
    dense: list[Float64]
    packed: list[Any]

    def launch(self, deal: Plan) -> np.void:
        return as_argument(deal.pack([array.address for array in self.packed]))


def as_argument(data: bytes) -> np.void:
    """A struct passed by value."""
    return np.frombuffer(data, f"V{len(data)}")[0]


def random_weights(engine: Engine, rng: np.random.Generator, columns: int, *types: tuple[str, int]) -> Weights:
    """Matrices of (type, rows)."""
    return weights_of(engine, columns, *((name, random_blocks(rng, name, rows, columns)) for name, rows in types))


def weights_of(engine: Engine, columns: int, *matrices: tuple[str, Bytes]) -> Weights:
    """Matrices of (type, bytes per row as in a file)."""
    shapes, dense, packed = [], [], []
    for name, raw in matrices:
        shapes.append(Shape(name, len(raw)))
        dense.append(to_float32(raw, name)[:, :columns].astype(np.float64))
        packed.append(engine.array(repack(torch.from_numpy(raw), name, columns).numpy()))
    return Weights(tuple(shapes), columns, dense, packed)


def seen_q8(x: Float32, bits: int = 0, spans: int = 1) -> Float64:
    """Activations as the int8 path rounds them."""
    q, scale = acts.quantize_q8(x, bits, spans)
    return (q * np.repeat(scale, q.shape[-1] // spans, axis=-1).astype(np.float64)).reshape(len(x), -1)[:, : x.shape[1]]


def seen_f16(x: Float32) -> Float64:
    """Activations as the f16 path rounds them."""
    h, scale = acts.quantize_f16(x)
    return (h.astype(np.float64) * scale[..., None]).reshape(len(x), -1)[:, : x.shape[1]]


def expected(weights: Weights, x: Float32, rounding: Rounding = INT8) -> list[Float64]:
    """(columns, rows) per matrix, of the rounded activations."""
    bits = Product(tuple(weights.shapes), 0, rounding).plane_bits
    return [
        (seen_f16(x) if rounding.half or tile_type(s.type).half_activations else seen_q8(x, bits, rounding.spans)) @ w.T
        for s, w in zip(weights.shapes, weights.dense)
    ]


def packed(engine: Engine, deal: Plan, x: Float32) -> tuple[Any, Any]:
    """Activations in the forms that the launch reads, as the engine's int8 and f16 arrays."""
    forms = {"PLANE_BITS": 0, "SPANS": 1, **deal.forms}
    q8 = acts.pack_q8(x, int(str(forms["PLANE_BITS"])), int(str(forms["SPANS"]))) if deal.needs_q8 else None
    f16 = acts.pack_f16(x) if deal.needs_f16 else None
    first, second = (engine.poisoned((8,), np.uint8) if form is None else engine.array(form) for form in (q8, f16))
    return first, second


def multiply(
    engine: Engine,
    weights: Weights,
    x: Float32,
    card: Card = SMALL,
    *,
    rounding: Rounding = INT8,
    split_k: int | None = None,
) -> tuple[Plan, Float32]:
    """Run a launch over the rows of `x`; the plan and the partials (split_k, len(x), stride), NaN where none wrote."""
    deal = plan(weights.shapes, weights.columns, card, rounding=rounding, split_k=split_k)
    return deal, multiply_as(engine, weights, x, deal)


def multiply_as(engine: Engine, weights: Weights, x: Float32, deal: Plan) -> Float32:
    """The partials of a launch as it is planned."""
    n = len(x)
    q8, f16 = packed(engine, deal, x)
    out = engine.poisoned((deal.split_k, n, deal.stride), np.float32)
    launch = weights.launch(deal)
    for first, count in deal.passes(n):
        kernel = engine.kernel("matmul.cu", "matmul", deal.defines(count))
        args = [launch, q8, f16, out, np.int32(n), np.int32(first // 8)]
        kernel(deal.grid, 32 * deal.warps_at(count), args, shared=deal.shared_bytes(count))
    found: Float32 = out.numpy()
    return found


def parts(deal: Plan, planes: Sequence[Any] | Float32) -> list[Float64]:
    """Planes summed, cut into the launch's matrices: (columns, rows) each."""
    total = np.asarray(planes, np.float64).sum(0)
    return [total[:, at : at + s.rows] for at, s in zip(deal.offsets, deal.shapes)]
