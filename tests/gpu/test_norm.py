"""norm.cu, swiglu.cu and embed.cu against float64 and against the files' own dequantisers."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest

from dflash_core.backends.cuda.repack import TILE_TYPES
from dflash_core.formats.quants import to_float32
from support import oracles
from support.acts import F16_GROUP, Q8_GROUP, acts_f16, acts_q8
from support.blocks import random_blocks
from support.engines import Array, Engine

EPS = 1e-6


class Acts:
    """Buffers for a producer of `width` elements a row, poisoned."""

    def __init__(self, engine: Engine, width: int) -> None:
        groups = -(-width // 256)
        self.width = width
        self.q8 = engine.poisoned((groups, Q8_GROUP), np.uint8)
        self.f16 = engine.poisoned((groups, F16_GROUP), np.uint8)

    @property
    def arguments(self) -> list[Array]:
        return [self.q8, self.f16]

    def check(self, expected: oracles.Floats, tolerance: float = 3e-6, forms: Mapping[str, int] | None = None) -> None:
        """Both forms of the activations hold the rows `expected`, padding included. `tolerance` is that of the kernel's
        own arithmetic; `forms` are the defines of the int8 form that the kernel was compiled with."""
        bits, spans = (forms or {}).get("PLANE_BITS", 0), (forms or {}).get("SPANS", 1)
        padded = np.zeros((len(expected), -(-self.width // 256) * 256))
        padded[:, : self.width] = expected
        largest = np.abs(padded.reshape(len(expected), -1, 256)).max(-1).repeat(256, axis=1)
        halves = acts_f16(self.f16.numpy(), *padded.shape)
        np.testing.assert_array_less(np.abs(halves - padded), 2**-11 * np.abs(padded) + tolerance * largest + 1e-30)
        bytes_, step = acts_q8(self.q8.numpy(), *padded.shape, bits, spans)
        largest = np.abs(padded.reshape(len(expected), -1, 256 // spans)).max(-1).repeat(256 // spans, axis=1)
        np.testing.assert_array_less(np.abs(bytes_ - padded), 0.5001 * step + tolerance * largest + 1e-30)
        np.testing.assert_allclose(step, largest / (127 << bits), rtol=1e-5)


def normal(rng: np.random.Generator, *shape: int) -> oracles.Float32s:
    return rng.standard_normal(shape).astype(np.float32)


def count(engine: Engine, live: int) -> Array:
    return engine.array(np.array([live], np.int32))


@pytest.mark.parametrize(
    ("width", "splits", "rows"), [(384, 3, 1), (384, 0, 8), (5120, 7, 2), (640, 18, 3), (8, 1, 3), (9000, 5, 2)]
)
@pytest.mark.parametrize("tapped", [False, True])
def test_norm_adds_normalises_and_taps(
    engine: Engine, rng: np.random.Generator, width: int, splits: int, rows: int, tapped: bool
) -> None:
    live, node0 = int(rng.integers(1, rows + 1)), 64
    h, planes = normal(rng, rows, width) * 3, normal(rng, max(splits, 1), rows, width)
    h[live:], planes[:, live:] = np.nan, np.nan
    weight = normal(rng, width)
    residual, acts = engine.array(h), Acts(engine, width)
    tap = engine.poisoned((node0 + rows, width + 64), np.float32) if tapped else np.uint64(0)
    kernel = engine.kernel("norm.cu", "rms_norm", {"WIDTH": width, "SPLIT_K": splits})
    arguments = [residual, engine.array(planes), np.int32(rows), engine.array(weight), np.float32(EPS)]
    arguments += [*acts.arguments, tap, np.int32(width + 64), count(engine, node0 + live), np.int32(node0)]
    kernel(rows, 32 * min(32, -(-width // 256)), arguments)

    total = h[:live].astype(np.float64) + (planes[:, :live].astype(np.float64).sum(0) if splits else 0)
    after = residual.numpy()
    np.testing.assert_allclose(after[:live], total, rtol=1e-6, atol=3e-6)
    assert np.isnan(after[live:]).all(), "a dead row was written"
    acts.check(oracles.rms_norm(total, weight, EPS))
    if tapped:
        copied = tap.numpy()
        np.testing.assert_array_equal(copied[node0 : node0 + live, :width], after[:live])
        assert np.isnan(copied[:node0]).all()
        assert np.isnan(copied[node0 + live :]).all()
        assert np.isnan(copied[:, width:]).all()


def test_norm_of_the_planes_alone(engine: Engine, rng: np.random.Generator) -> None:
    """FRESH: h is written and not read."""
    width, splits, rows = 512, 3, 2
    planes, weight = normal(rng, splits, rows, width), normal(rng, width)
    residual, acts = engine.poisoned((rows, width), np.float32), Acts(engine, width)
    arguments = [residual, engine.array(planes), np.int32(rows), engine.array(weight), np.float32(EPS)]
    arguments += [*acts.arguments, np.uint64(0), np.int32(0), count(engine, rows), np.int32(0)]
    engine.kernel("norm.cu", "rms_norm", {"WIDTH": width, "SPLIT_K": splits, "FRESH": 1})(rows, 64, arguments)
    np.testing.assert_allclose(residual.numpy(), oracles.planes_sum(planes), rtol=1e-6, atol=3e-6)
    acts.check(oracles.rms_norm(oracles.planes_sum(planes), weight, EPS))


def test_a_row_is_the_same_alone_and_among_others(engine: Engine, rng: np.random.Generator) -> None:
    width, splits = 640, 4
    h, planes, weight = normal(rng, 9, width), normal(rng, splits, 9, width), normal(rng, width)
    outputs = []
    for rows in (1, 9):
        residual, acts = engine.array(h[:rows]), Acts(engine, width)
        arguments = [residual, engine.array(planes[:, :rows]), np.int32(rows), engine.array(weight), np.float32(EPS)]
        arguments += [*acts.arguments, np.uint64(0), np.int32(0), count(engine, rows), np.int32(0)]
        engine.kernel("norm.cu", "rms_norm", {"WIDTH": width, "SPLIT_K": splits})(rows, 96, arguments)
        outputs.append((residual.numpy()[0], acts_q8(acts.q8.numpy(), 1, width), acts_f16(acts.f16.numpy(), 1, width)))
    for alone, among in zip(*outputs):
        np.testing.assert_array_equal(alone, among)


@pytest.mark.parametrize(
    ("width", "rows", "blocks"), [(5120, 1, 5), (5120, 16, 5), (384, 3, 5), (9000, 2, 5), (2048, 2, 2)]
)
def test_a_cluster_leaves_the_bits_of_one_block(
    engine: Engine, rng: np.random.Generator, width: int, rows: int, blocks: int
) -> None:
    if not engine.real:
        pytest.skip("the emulator has no clusters")
    splits, groups = 7, -(-width // 256)
    h, planes, weight = normal(rng, rows, width), normal(rng, splits, rows, width), normal(rng, width)
    outputs = []
    for cluster in (1, blocks):
        residual, acts = engine.array(h), Acts(engine, width)
        arguments = [residual, engine.array(planes), np.int32(rows), engine.array(weight), np.float32(EPS)]
        arguments += [*acts.arguments, np.uint64(0), np.int32(0), count(engine, rows), np.int32(0)]
        kernel = engine.kernel("norm.cu", "rms_norm", {"WIDTH": width, "SPLIT_K": splits, "CLUSTER": cluster})
        kernel(rows * cluster, 32 * min(32, -(-groups // cluster)), arguments)
        outputs.append((residual.numpy(), acts.q8.numpy(), acts.f16.numpy()))
    for one, many in zip(*outputs):
        np.testing.assert_array_equal(one, many)


@pytest.mark.parametrize("normed", [(), ("FIRST_NORMED", "SECOND_NORMED", "NORMED"), ("SECOND_NORMED",)])
@pytest.mark.parametrize(("width", "blocks"), [(2816, 1), (2816, 5), (9000, 1)])
def test_two_branches_are_added_together(
    engine: Engine, rng: np.random.Generator, width: int, blocks: int, normed: tuple[str, ...]
) -> None:
    if blocks > 1 and not engine.real:
        pytest.skip("the emulator has no clusters")
    h, first, second = normal(rng, 2, width), normal(rng, 3, 2, width), normal(rng, 13, 2, width)
    weights = {name: normal(rng, width) for name in ("own", *normed)}
    residual, acts = engine.array(h), Acts(engine, width)
    arguments = [residual, engine.array(first), np.int32(2), engine.array(weights["own"]), np.float32(EPS)]
    arguments += [*acts.arguments, np.uint64(0), np.int32(0), count(engine, 2), np.int32(0)]
    arguments += [engine.array(second), *(engine.array(weights[name]) for name in normed)]
    defines = {"WIDTH": width, "SPLIT_K": 3, "JOINED": 13, "CLUSTER": blocks, **dict.fromkeys(normed, 1)}
    warps = min(32, math.ceil(width / 256 / blocks))
    engine.kernel("norm.cu", "rms_norm", defines)(2 * blocks, 32 * warps, arguments)

    def under(name: str, x: oracles.Floats) -> oracles.Floats:
        return oracles.rms_norm(x, weights[name], EPS) if name in normed else x

    branches = under("FIRST_NORMED", oracles.planes_sum(first)) + under("SECOND_NORMED", oracles.planes_sum(second))
    total = h.astype(np.float64) + under("NORMED", branches)
    np.testing.assert_allclose(residual.numpy(), total, rtol=2e-6, atol=1e-5)
    acts.check(oracles.rms_norm(total, weights["own"], EPS))


@pytest.mark.parametrize("turns_of_16", [True, False])
@pytest.mark.parametrize(("width", "rows", "warps"), [(768, 1, 1), (768, 5, 2), (400, 3, 4), (17408, 1, 4)])
def test_swiglu(engine: Engine, rng: np.random.Generator, width: int, rows: int, warps: int, turns_of_16: bool) -> None:
    splits, padded = int(rng.choice([1, 3, 8, 11, 16])), -(-width // 16) * 16
    live, stride = max(1, rows - 1), 2 * padded + 32
    gate, up = normal(rng, splits, rows, padded) * 2, normal(rng, splits, rows, padded)
    planes = np.full((splits, rows, stride), np.nan, np.float32)
    if turns_of_16:
        pair = np.stack([gate.reshape(splits, rows, -1, 16), up.reshape(splits, rows, -1, 16)], axis=3)
        planes[..., : 2 * padded] = pair.reshape(splits, rows, -1)
    else:
        planes[..., :padded], planes[..., padded : 2 * padded] = gate, up
    planes[:, live:] = np.nan
    acts = Acts(engine, width)
    defines = {"WIDTH": width, "SPLIT_K": splits, "UP_AT": 0 if turns_of_16 else padded}
    arguments = [engine.array(planes), np.int32(rows), np.int32(stride), *acts.arguments, count(engine, live)]
    grid = (-(-width // (256 * warps)), rows)
    engine.kernel("swiglu.cu", "swiglu", defines)(grid, 32 * warps, [*arguments, np.int32(0)])
    x = oracles.silu(oracles.planes_sum(gate)) * oracles.planes_sum(up)
    acts.check(x[:live, :width])


@pytest.mark.parametrize("forms", [{"SPANS": 2}, {"PLANE_BITS": 2}, {"PLANE_BITS": 4}], ids=str)
def test_finer_forms(engine: Engine, rng: np.random.Generator, forms: dict[str, int]) -> None:
    width, rows = 640, 3
    planes, weight = normal(rng, 1, rows, 2 * width), normal(rng, width)
    acts = Acts(engine, width)
    arguments = [engine.array(planes), np.int32(rows), np.int32(2 * width), *acts.arguments, count(engine, rows)]
    defines = {"WIDTH": width, "SPLIT_K": 1, "UP_AT": width, **forms}
    engine.kernel("swiglu.cu", "swiglu", defines)((3, rows), 32, [*arguments, np.int32(0)])
    both = planes[0].astype(np.float64)
    acts.check(oracles.silu(both[:, :width]) * both[:, width:], forms=forms)

    h, acts = both[:, :width], Acts(engine, width)
    arguments = [
        engine.array(h.astype(np.float32)),
        np.uint64(0),
        np.int32(rows),
        engine.array(weight),
        np.float32(EPS),
    ]
    arguments += [*acts.arguments, np.uint64(0), np.int32(0), count(engine, rows), np.int32(0)]
    engine.kernel("norm.cu", "rms_norm", {"WIDTH": width, "SPLIT_K": 0, **forms})(rows, 96, arguments)
    acts.check(oracles.rms_norm(h, weight, EPS), forms=forms)


def test_either_form_of_activations_can_be_left_out(engine: Engine, rng: np.random.Generator) -> None:
    planes = normal(rng, 1, 1, 512)
    for wanted in (0, 1):
        acts = Acts(engine, 256)
        buffers = [acts.arguments[i] if i == wanted else np.uint64(0) for i in range(2)]
        arguments = [engine.array(planes), np.int32(1), np.int32(512), *buffers, count(engine, 1), np.int32(0)]
        engine.kernel("swiglu.cu", "swiglu", {"WIDTH": 256, "SPLIT_K": 1, "UP_AT": 256})((1, 1), 32, arguments)
        x = oracles.silu(planes[0, :, :256].astype(np.float64)) * planes[0, :, 256:]
        found = acts_q8(acts.q8.numpy(), 1, 256)[0] if wanted == 0 else acts_f16(acts.f16.numpy(), 1, 256)
        np.testing.assert_allclose(found, x, atol=np.abs(x).max() / 250)


@pytest.mark.parametrize("name", [*TILE_TYPES, "BF16"])
def test_embed_reads_the_rows_of_a_file(engine: Engine, rng: np.random.Generator, name: str) -> None:
    width, vocabulary, rows, live = 512, 7, 5, 4
    raw = random_blocks(rng, name, vocabulary, width)
    tokens = rng.integers(0, vocabulary, rows + 64, np.int32)
    expected = to_float32(raw, name)
    kernel = engine.kernel("embed.cu", "embed", {"FORMAT": name, "WIDTH": width})
    for fill, node0 in ((-1, 64), (3, 0)):
        h = engine.poisoned((rows, width), np.float32)
        arguments = [h, engine.array(raw), engine.array(tokens), np.int32(fill), count(engine, node0 + live)]
        kernel((-(-width // 128), rows), 128, [*arguments, np.int32(node0)])
        wanted = tokens[node0 : node0 + live] if fill < 0 else np.array([tokens[0], *[fill] * (live - 1)])
        found = h.numpy()
        np.testing.assert_allclose(found[:live], expected[wanted], rtol=1e-6, atol=1e-6 * np.abs(expected).max())
        assert np.isnan(found[live:]).all()
