"""Repacked weights and stored activations: bit for bit what the file and the numpy twin say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dflash_core.backends.cuda.packers import set_factors
from dflash_core.backends.cuda.repack import TILE_TYPES, packed_bytes, repack, tile_type
from dflash_core.errors import UnsupportedError
from dflash_core.formats.quants import BY_NAME, to_float32
from support import acts
from support.blocks import random_blocks
from support.engines import Engine

TYPES = [*TILE_TYPES, "BF16"]
ACTS_STORE = Path(__file__).parent / "acts_store.cu"


def dequantized(engine: Engine, packed: np.ndarray, name: str, rows: int, first: int = 0) -> np.ndarray:
    """(rows - 16 * first, k) float16 by the dequant kernel."""
    blocks, groups, _ = packed.shape
    stride = groups * 256 + 8
    out = engine.poisoned(((rows - 16 * first), stride), np.float16)
    held = tile_type(name)
    kernel = engine.kernel("dequant.cu", "dequant", {f"WITH_{held.name}": 1})
    args = [engine.array(packed), np.int32(held.number), np.int32(rows), np.int32(first), np.int32(groups), out]
    kernel((-(-groups // 8), blocks - first), 256, [*args, np.int32(stride)])
    values = out.numpy()
    assert np.isnan(values[:, groups * 256 :]).all()
    return values[:, : groups * 256]


@pytest.mark.parametrize("name", TYPES)
def test_tiles_hold_what_the_file_holds(engine: Engine, rng: np.random.Generator, name: str) -> None:
    rows, columns = 37, {32: 800, 64: 832, 128: 896, 256: 768}.get(BY_NAME[name].block, 800)
    raw = random_blocks(rng, name, rows, columns)
    packed = repack(torch.from_numpy(raw), name, columns).numpy()
    assert packed.nbytes == packed_bytes(name, rows, columns)
    want = to_float32(raw, name)
    got = dequantized(engine, packed, name, rows)
    assert np.array_equal(got[:, columns:], np.zeros_like(got[:, columns:]))
    # One rounding to half precision; two products in float32 may differ in the last of its bits before.
    close = np.abs(got[:, :columns].astype(np.float64) - want) <= np.abs(want) * 2.0**-11 * 1.001 + 2.0**-25
    assert close.all()
    exact = want.astype(np.float16)
    rounds_twice = name in ("Q4_K", "Q5_K", "Q4_1", "Q5_1", "F32", "F8_E4M3")
    assert (got[:, :columns] == exact).mean() > (0.999 if rounds_twice else 0.99999)


def test_part_of_the_rows(engine: Engine, rng: np.random.Generator) -> None:
    raw = random_blocks(rng, "Q5_K", 50, 512)
    packed = repack(torch.from_numpy(raw), "Q5_K", 512).numpy()
    whole = dequantized(engine, packed, "Q5_K", 50)
    assert np.array_equal(dequantized(engine, packed, "Q5_K", 50, first=2), whole[32:])


@pytest.mark.parametrize("name", TYPES)
def test_a_tile_takes_no_more_than_the_file(name: str) -> None:
    kind = BY_NAME[name]
    assert tile_type(name).bytes <= 16 * 256 // kind.block * kind.size * 1.02


def test_chunks_give_the_same_tiles(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = torch.from_numpy(random_blocks(rng, "Q6_K", 100, 512))
    whole = repack(raw, "Q6_K", 512)
    monkeypatch.setattr("dflash_core.backends.cuda.repack.CHUNK", 16 * 512 * 3)
    assert torch.equal(repack(raw, "Q6_K", 512), whole)
    out = torch.zeros_like(whole)
    assert repack(raw, "Q6_K", 512, out=out) is out
    assert torch.equal(out, whole)


def test_a_bf16_row_of_any_size_keeps_its_bits(rng: np.random.Generator) -> None:
    exponents = rng.integers(-28, 1, (16, 256)) + np.linspace(-90, 100, 16, dtype=np.int32)[:, None]
    mantissas = rng.uniform(0.5, 1, (16, 256)) * rng.choice([-1, 1], (16, 256))
    values = np.ldexp(mantissas, exponents).astype(np.float32)
    raw = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    tile = repack(torch.from_numpy(raw), "BF16", 256).numpy()[0, 0]
    scale = tile[:64].view(np.float32)
    # [chunk 16][g 8][t 4][pair 2][row half 2][2]
    halves = tile[64:].view(np.float16).reshape(16, 8, 4, 2, 2, 2).transpose(4, 1, 0, 2, 3, 5).reshape(16, 256)
    assert np.array_equal(halves.astype(np.float32) * scale[:, None], to_float32(raw, "BF16"))


def test_a_type_without_tiles_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"Q8_K has no CUDA kernel.*Q4_K.*run it on the CPU"):
        repack(torch.zeros(16, 292, dtype=torch.uint8), "Q8_K", 256)


@pytest.mark.parametrize("factors", [(0.375,), (0.25, -3.0, 1e-3)])
def test_a_matrix_of_nvfp4_has_a_factor(engine: Engine, rng: np.random.Generator, factors: tuple[float, ...]) -> None:
    raw = random_blocks(rng, "NVFP4", 48, 320)
    tiles = repack(torch.from_numpy(raw), "NVFP4", 320)
    set_factors(tiles, factors)
    want = to_float32(raw, "NVFP4") * np.repeat(np.float32(factors), 48 // len(factors))[:, None]
    found = dequantized(engine, tiles.numpy(), "NVFP4", 48)[:, :320]
    np.testing.assert_allclose(found, want, rtol=2.0**-11, atol=2.0**-25)


@pytest.mark.parametrize("columns", [256, 700])
def test_stored_activations(engine: Engine, rng: np.random.Generator, columns: int) -> None:
    x = (rng.normal(size=(11, columns)) * np.exp(8 * rng.normal(size=(11, 1)))).astype(np.float32)
    x[3] = 0
    x[4, 1] = 1e-42
    groups = -(-columns // 256)
    for bits, spans in ((0, 1), (0, 2), (2, 1), (3, 1), (4, 1)):
        q8, f16 = (engine.array(np.zeros((groups, size), np.uint8)) for size in (acts.Q8_GROUP, acts.F16_GROUP))
        kernel = engine.kernel(str(ACTS_STORE), "acts_rows", {"PLANE_BITS": bits, "SPANS": spans})
        kernel((groups, len(x)), 32, [engine.array(x), np.int32(columns), q8, f16])
        assert np.array_equal(f16.numpy(), acts.pack_f16(x).reshape(groups, -1))
        assert np.array_equal(q8.numpy(), acts.pack_q8(x, bits, spans).reshape(groups, -1)), (bits, spans)
