"""Attention in float64 for kernel tests: heads projected, normalised and rotated; attention; activation buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dflash_core.backends.cuda.layers.split_attention import HeadShape
from dflash_core.cache_types import CachePair
from dflash_core.models.cache_rows import CODECS
from dflash_core.models.norm import Rotary, rms_norm
from support.engines import Engine

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
BASE = 1e7
RING = 704  # slots
EPS = 0.03  # so large that leaving it out changes results


def frequencies(rotary: int) -> npt.NDArray[np.float32]:
    return Rotary(rotary, BASE, torch.float32).frequencies.numpy()


def rotated(x: Floats, positions: npt.ArrayLike, rotary: int) -> Floats:
    """x (heads, n, head_dim): angles are float32 products, as in the reference; their cosines are exact."""
    angle = torch.tensor(np.asarray(positions, np.float32)[:, None] * frequencies(rotary)).double()
    return Rotary(rotary, BASE, torch.float64)(torch.tensor(x), (angle.cos(), angle.sin())).numpy()


def normed(x: Floats, weight: npt.ArrayLike) -> Floats:
    return rms_norm(torch.tensor(x), torch.tensor(np.asarray(weight, np.float64)), EPS).numpy()


def planes(rng: np.random.Generator, count: int, rows: int, width: int) -> npt.NDArray[np.float32]:
    """Partials as a matmul writes them: f32 (count, rows, width)."""
    return rng.standard_normal((count, rows, width)).astype(np.float32)


def attention(q: npt.ArrayLike, k: npt.ArrayLike, v: npt.ArrayLike, visible: Bools) -> tuple[Floats, Floats]:
    """q (kv heads, rows, group, d) with scores in powers of two, k and v (kv heads, m, d), visible (rows, m).

    Returns the output in q's shape, and how far one rounding of the weights to half precision can move it.
    """
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    k, v = (np.where(visible.any(axis=0)[:, None], x, 0) for x in (k, v))  # what no row sees may be NaN
    scores = np.where(visible[None, :, None], np.einsum("hrgd,hmd->hrgm", q, k), -np.inf)
    weights = np.exp2(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    out = np.einsum("hrgm,hmd->hrgd", weights, v)
    return out, np.einsum("hrgm,hmd->hrgd", weights, np.abs(v)) * 2**-11 + 2e-6


@dataclass(frozen=True)
class Cache:
    """Keys and values f16 (kv heads, slots, head_dim), NaN from slot `live` on; or as bytes of other types. `newest`: a
    ring, of the halves of a recent window."""

    k: npt.NDArray[Any]
    v: npt.NDArray[Any]
    newest: Cache | None = None

    def loaded(self, engine: Engine) -> tuple[list[Any], list[Any]]:
        """Arguments of kernels: keys, values and slots, of the newest too where there is a ring."""
        own = [engine.array(self.k), engine.array(self.v), np.int32(self.k.shape[1])]
        return own, self.newest.loaded(engine)[0] if self.newest else []

    def kept(self, kv: CachePair) -> Cache:
        """Stored in the types `kv`, and in a ring of RING halves too where it has a recent window."""
        kept = [
            CODECS[kind.name].pack(torch.tensor(np.nan_to_num(x.astype(np.float32)))).view(torch.uint8).numpy()
            for x, kind in ((self.k, kv.k), (self.v, kv.v))
        ]
        positions = np.arange(max(self.k.shape[1] - RING, 0), self.k.shape[1])
        rings = [np.zeros((x.shape[0], RING, x.shape[2]), np.float16) for x in (self.k, self.v)]
        for ring, x in zip(rings, (self.k, self.v), strict=True):
            ring[:, positions % RING] = x[:, positions]
        return Cache(*kept, newest=Cache(*rings) if kv.recent else None)

    @staticmethod
    def random(rng: np.random.Generator, heads: HeadShape, live: int, slots: int, first: int = 0) -> Cache:
        """`first`: slots before it are NaN too."""
        k, v = (rng.standard_normal((heads.kv_heads, slots, heads.head_dim)).astype(np.float16) for _ in range(2))
        for x in (k, v):
            x[:, live:] = x[:, :first] = np.nan
        return Cache(k, v)


def queries(rng: np.random.Generator, heads: HeadShape, rows: int, live: int) -> npt.NDArray[np.float16]:
    """(kv heads, rows, group, head_dim), scaled; rows from `live` on are NaN."""
    q = rng.standard_normal((heads.kv_heads, rows, heads.group, heads.head_dim)) * 2 * heads.query_scale
    q[:, live:] = np.nan
    return q.astype(np.float16)


def side_by_side(x: Floats) -> Floats:
    """(kv heads, rows, group, d) -> (rows, heads * d)."""
    return x.transpose(1, 0, 2, 3).reshape(x.shape[1], -1)
