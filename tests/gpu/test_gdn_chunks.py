"""gdn_chunks.cu against the recurrence in float64: any number of rows, from any state, in both layouts."""

from __future__ import annotations

import numpy as np
import pytest

from dflash_core.backends.cuda.layers.delta_shapes import DIM, DeltaShape, ScanLaunch
from dflash_core.backends.cuda.state import PASS_ROWS
from support import oracles
from support.engines import Engine
from support.grids import full
from support.oracles import DeltaState, DeltaWeights

HOPPER, GEFORCE, TURING = 232_448, 101_376, 65_536  # bytes of shared memory that one block may have
HALF = 2**-10  # operands are halves


def close(found: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    """Relative to the largest expected value of the last two dimensions."""
    scale = np.abs(expected).max(axis=(-2, -1), keepdims=True)
    assert np.isfinite(found).all()
    np.testing.assert_array_less(np.abs(found.astype(np.float64) - expected) / scale, tolerance)


@pytest.mark.parametrize("limit", [HOPPER, GEFORCE])
@pytest.mark.parametrize("n", [1, full(3), 64, full(65), 150])
def test_chunks_are_the_recurrence(engine: Engine, rng: np.random.Generator, n: int, limit: int) -> None:
    weights = DeltaWeights.random(rng, 1, 3)
    state = DeltaState.random(rng, weights)
    state = DeltaState(*(x.astype(np.float32).astype(np.float64) for x in (state.s, state.conv)))
    shape = DeltaShape.of(1, 3, DIM, DIM, oracles.TAPS)
    launch = ScanLaunch.of(shape, limit)
    assert launch is not None
    chunks = -(-n // PASS_ROWS) + 1  # one more, which must not be touched
    padded, live = chunks * PASS_ROWS, (chunks - 1) * PASS_ROWS
    qkv = np.full((padded, weights.channels), np.nan, np.float32)
    gates = np.full((padded, 6), np.nan, np.float32)
    qkv[:n], gates[:n] = rng.standard_normal((n, weights.channels)), rng.standard_normal((n, 6))

    count, s = engine.array(np.array([n, 77], np.int32)), engine.array(state.s.astype(np.float32))
    q, k = (engine.poisoned((1, padded, DIM), np.float16) for _ in range(2))
    v, w = (engine.poisoned((3, padded, DIM), np.float16) for _ in range(2))
    p, out = engine.poisoned((3, padded, PASS_ROWS), np.float16), engine.poisoned((padded, 3, DIM), np.float16)
    decay, beta = (engine.poisoned((3, padded), np.float32) for _ in range(2))
    rows = np.int32(padded)
    constants = [engine.array(x) for x in (weights.conv, weights.a, weights.dt, state.conv.astype(np.float32))]
    rows_kernel, solve_kernel, scan_kernel = (
        engine.kernel("gdn_chunks.cu", name, launch.defines) for name in ("gdn_rows", "gdn_solve", "gdn_scan")
    )
    for heads in launch.turns:
        part = qkv[:, DIM * heads.start : DIM * heads.stop].copy()
        arguments = [count, np.int32(heads.start), engine.array(part), engine.array(gates), *constants]
        rows_kernel((len(heads), chunks), 256, [*arguments, q, k, v, decay, beta, rows])
    values = v.numpy()[:, :n]
    solve_kernel(launch.solve_grid(chunks), 128, [count, q, k, v, decay, beta, w, p, rows], shared=launch.solve_shared)
    scan_kernel(launch.scan_grid, 256, [count, q, k, v, w, p, decay, s, out, rows], shared=launch.scan_shared)

    exact, alpha, rate = (x[:n].astype(np.float64) for x in (qkv, gates[:, :3], gates[:, 3:]))
    nodes = oracles.delta_tree(weights, exact, alpha, rate, range(-1, n - 1), state)
    close(q.numpy()[:, :n], np.stack([node.q for node in nodes], 1), HALF)
    close(k.numpy()[:, :n], np.stack([node.k for node in nodes], 1), HALF)
    close(values, np.stack([node.v for node in nodes], 1), HALF)
    close(out.numpy()[:n], np.stack([node.out for node in nodes]), 8 * HALF)
    close(s.numpy(), nodes[-1].after.s, 8 * HALF)
    totals = np.stack([node.decay for node in nodes], 1)
    starts = np.concatenate([np.zeros((3, 1)), totals], 1)[:, np.arange(n) // PASS_ROWS * PASS_ROWS]
    np.testing.assert_allclose(decay.numpy()[:, :n], totals - starts, rtol=1e-4, atol=1e-5)
    for rest in (q, k, v, w, p, decay, beta):
        assert np.isnan(rest.numpy()[:, live:]).all()
    assert np.isnan(out.numpy()[live:]).all()


def test_a_card_without_room_for_a_chunk_is_told_apart() -> None:
    assert ScanLaunch.of(DeltaShape(1, 3), TURING) is None
