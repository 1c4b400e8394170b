"""rows.cu and attention_rows.cu against float64."""

from __future__ import annotations

import numpy as np
import pytest

from dflash_core.backends.cuda.layers.split_attention import HeadShape
from support import oracles
from support.engines import Array, Engine
from support.grids import full

EPS = 1e-6
HALF = 2**-11
THREADS = 256


def normal(rng: np.random.Generator, *shape: int) -> oracles.Float32s:
    return rng.standard_normal(shape).astype(np.float32)


def grid(width: int, rows: int) -> tuple[int, int]:
    return -(-width // (8 * THREADS)), rows


def check(found: Array, expected: np.ndarray, rows: int) -> None:
    """Rows below `rows` are `expected`, the rest untouched."""
    out = found.numpy()
    np.testing.assert_array_less(np.abs(out[:rows] - expected), HALF * np.abs(expected) + 1e-5)
    assert np.isnan(out[rows:]).all()


@pytest.mark.parametrize("width", [8, full(256), 640, full(2048), 5120])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_norm(engine: Engine, rng: np.random.Generator, width: int, dtype: type) -> None:
    h, weight, live = (normal(rng, 4, width) * 3).astype(dtype), normal(rng, width), 3
    h[live:] = np.nan
    out = engine.poisoned((4, width), np.float16)
    name = "rows_norm" if dtype is np.float32 else "rows_norm_f16"
    kernel = engine.kernel("rows.cu", name, {"WIDTH": width})
    count = engine.array(np.array([live], np.int32))
    kernel(4, THREADS, [count, engine.array(h), engine.array(weight), np.float32(EPS), out])
    check(out, oracles.rms_norm(h[:live].astype(np.float64), weight, EPS), live)


@pytest.mark.parametrize("width", [8, 512, 2176])
def test_swiglu(engine: Engine, rng: np.random.Generator, width: int) -> None:
    gate, up = (normal(rng, 3, width).astype(np.float16) for _ in range(2))
    gate[2:] = np.nan
    held = engine.array(gate)
    kernel = engine.kernel("rows.cu", "rows_swiglu", {"WIDTH": width})
    kernel(grid(width, 3), THREADS, [engine.array(np.array([2], np.int32)), held, engine.array(up)])
    check(held, oracles.silu(gate[:2].astype(np.float64)) * up[:2], 2)


@pytest.mark.parametrize("heads", [1, 3, 17])
def test_gated_norm(engine: Engine, rng: np.random.Generator, heads: int) -> None:
    width = 128 * heads
    x, gate = (normal(rng, 3, width).astype(np.float16) for _ in range(2))
    weight = normal(rng, 128)
    gate[2:] = np.nan
    held = engine.array(gate)
    kernel = engine.kernel("rows.cu", "rows_gated_norm", {"WIDTH": width})
    count = engine.array(np.array([2], np.int32))
    kernel(grid(width, 3), THREADS, [count, engine.array(x), held, engine.array(weight), np.float32(EPS)])
    normed = oracles.rms_norm(x[:2].reshape(2, heads, 128).astype(np.float64), weight, EPS).reshape(2, width)
    check(held, normed * oracles.silu(gate[:2].astype(np.float64)), 2)


def test_queries_keys_and_values(engine: Engine, rng: np.random.Generator) -> None:
    shape, rows, live, first, slots = HeadShape(64, 4, 2, 64), 5, 4, 9, 20
    projected = normal(rng, rows, 2 * (4 + 2) * 64)
    projected[live:] = np.nan
    norms, frequency = [normal(rng, 64) for _ in range(2)], np.exp(-rng.uniform(0, 5, 32)).astype(np.float32)
    q = engine.poisoned((2, rows * 2, 64), np.float16)
    k, v = (engine.poisoned((2, slots, 64), np.float16) for _ in range(2))
    defines = {"HEAD_DIM": 64, "ROTARY": shape.rotary, "GROUP": shape.group, "SPLIT_K": 1}
    kernel = engine.kernel("attention_rows.cu", "attn_rows", defines)
    arguments = [engine.array(np.array([live, first], np.int32)), engine.array(projected), np.int32(rows), np.int32(2)]
    arguments += [*(engine.array(norm) for norm in norms), engine.array(frequency), np.float32(EPS), np.float32(1)]
    kernel((2, rows), 128, [*arguments, q, k, v, np.int32(slots)])

    def rotated(x: np.ndarray, norm: np.ndarray) -> np.ndarray:
        x = oracles.rms_norm(x.astype(np.float64), norm, EPS)
        angle = (np.arange(first, first + live)[:, None] * frequency.astype(np.float64))[:, None]
        a, b = x[..., :32], x[..., 32:]
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)

    queries = projected[:live, : 2 * 4 * 64].reshape(live, 4, 2, 64)[:, :, 0]
    keys, values = projected[:live, 2 * 4 * 64 :].reshape(live, 2, 2, 64).transpose(1, 0, 2, 3)
    found = q.numpy().reshape(2, rows, 2, 64)
    np.testing.assert_allclose(
        found[:, :live], rotated(queries, norms[0]).reshape(live, 2, 2, 64).swapaxes(0, 1), atol=4e-3
    )
    assert np.isnan(found[:, live:]).all()
    for cache, expected in ((k, rotated(keys, norms[1])), (v, values)):
        np.testing.assert_allclose(cache.numpy()[:, first : first + live], expected.swapaxes(0, 1), atol=4e-3)
        assert np.isnan(cache.numpy()[:, :first]).all()
        assert np.isnan(cache.numpy()[:, first + live :]).all()
