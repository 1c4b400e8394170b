"""The quantised matmul against float64: every format, ragged shapes, several matrices in one launch, every width."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from dflash_core.backends.cuda.activations import F16, INT8, Rounding
from dflash_core.backends.cuda.plan import Card, KernelConfig, plan
from dflash_core.backends.cuda.repack import TILE_TYPES, tile_type
from dflash_core.formats.quants import BY_NAME
from support.blocks import HALVES
from support.engines import Engine
from support.grids import full
from support.matmuls import SMALL, expected, multiply, multiply_as, parts, random_weights, weights_of

TYPES = [*TILE_TYPES, "BF16"]
K_TYPES = {name for name in TYPES if BY_NAME[name].block == 256}
WIDTHS = (1, 4, 8, 16, 24, 32, 40, 48, 64)
PLANES, SPANS = Rounding(planes=2), Rounding(spans=2)
ROUNDINGS = [pytest.param(rounding, id=name) for name, rounding in {"q8": INT8, "planes": PLANES, "f16": F16}.items()]


def activations(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Rows of very different size, with a few outliers each."""
    x = rng.normal(size=(rows, columns)) * np.exp(3 * rng.normal(size=(rows, 1)))
    x *= np.where(rng.random(x.shape) < 0.01, 20, 1)
    return x.astype(np.float32)


def check(deal, planes, want) -> None:
    for got, reference, shape in zip(parts(deal, planes), want, deal.shapes):
        # A column's error is judged by the size of that column's results.
        error = np.abs(got - reference).max(axis=1) / np.abs(reference).max(axis=1)
        # A tensor core does not round where it adds up a tile of halves, it cuts off.
        bound = 1e-5 if tile_type(shape.type).half_activations else 2e-6
        assert error.max() < bound, f"{shape.type}: {error.max():.1e}"


# Each type with one rounding in turn; with `full` with all.
@pytest.mark.parametrize(
    ("name", "rounding"),
    [
        pytest.param(
            name, *rounding.values, id=f"{name}-{rounding.id}", marks=() if at % 3 == turn else pytest.mark.full
        )
        for at, name in enumerate(TYPES)
        for turn, rounding in enumerate(ROUNDINGS)
    ],
)
def test_format(engine: Engine, rng: np.random.Generator, name: str, rounding: Rounding) -> None:
    columns = 768 if name in K_TYPES or name == "Q1_0" else 704
    weights = random_weights(engine, rng, columns, (name, 90))
    x = activations(rng, 3, columns)
    deal, planes = multiply(engine, weights, x, rounding=rounding)
    check(deal, planes, expected(weights, x, rounding))


@pytest.mark.parametrize(
    ("columns", "types"),
    [
        (384, [("Q5_0", 100), ("Q8_0", 6)]),
        (448, [("Q4_0", 40), ("Q8_0", 4), ("F16", 48)]),
        (1920, [("Q5_0", 48), ("Q4_0", 6), ("F32", 4)]),
        (1024, [("Q5_K", 160), ("Q4_K", 96), ("Q8_0", 12)]),
        (2304, [("Q6_K", 20), ("Q4_K", 33)]),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else None,
)
def test_several_matrices(engine: Engine, rng: np.random.Generator, columns: int, types: list[tuple[str, int]]) -> None:
    weights = random_weights(engine, rng, columns, *types)
    x = activations(rng, 11, columns)
    deal, planes = multiply(engine, weights, x)
    check(deal, planes, expected(weights, x))


# Each width is a kernel of its own to compile: most in the plain way, in the others the ends and the widest of one
# pass; with `full` all.
SLICED = {
    "planned": (None, INT8, (1, 4, 8, 24, 40, 64)),
    **{
        name: (slices, rounding, (1, 24, 64))
        for name, slices, rounding in (
            ("one-slice", 1, INT8), ("three-slices", 3, INT8), ("planes", None, PLANES), ("spans", 1, SPANS),
            ("halves", None, F16),
        )
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("slices", "rounding", "widths"),
    [
        *(pytest.param(*values, id=name) for name, values in SLICED.items()),
        *(
            pytest.param(slices, rounding, WIDTHS, id=f"{name}-every-width", marks=pytest.mark.full)
            for name, (slices, rounding, _) in SLICED.items()
        ),
    ],
)
def test_a_column_does_not_depend_on_the_width(
    engine: Engine, rng: np.random.Generator, slices: int | None, rounding: Rounding, widths: tuple[int, ...]
) -> None:
    weights = random_weights(engine, rng, 1280, ("Q4_K", 176), ("Q6_K", 40), ("Q8_0", 6))
    x = activations(rng, 64, 1280)
    deal, widest = multiply(engine, weights, x, split_k=slices, rounding=rounding)
    check(deal, widest, expected(weights, x, rounding))
    for width in widths[:-1]:
        _, planes = multiply(engine, weights, x[:width], split_k=slices, rounding=rounding)
        for at, shape in zip(deal.offsets, deal.shapes):
            live = slice(at, at + shape.rows)
            same = planes[..., live].view(np.uint32) == widest[:, :width, live].view(np.uint32)
            assert same.all(), f"{width} columns, {shape.type}"


# One type of each way in which sums of codes become numbers.
WAYS = [("Q2_K", 90), ("IQ2_S", 40), ("TQ1_0", 40), ("Q2_0", 40), ("MXFP4", 40)]


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize(("name", "rows"), WAYS, ids=[name for name, _ in WAYS])
def test_every_way_of_sums_has_the_same_bits_at_every_width(
    engine: Engine, rng: np.random.Generator, name: str, rows: int, rounding: Rounding
) -> None:
    weights = random_weights(engine, rng, 1280, (name, rows))
    x = activations(rng, 64, 1280)
    deal, widest = multiply(engine, weights, x, rounding=rounding)
    check(deal, widest, expected(weights, x, rounding))
    for width in (1, 4, 24) if rounding is PLANES else (1, 24):  # up to 4 columns take both planes in one product
        _, found = multiply(engine, weights, x[:width], rounding=rounding)
        assert np.array_equal(found[..., :rows].view(np.uint32), widest[:, :width, :rows].view(np.uint32)), width


@pytest.mark.parametrize(
    ("width", "rounding"),
    # Integers at more widths are in the test above; here the ends, and the widest of one pass.
    [
        pytest.param(
            width,
            *rounding.values,
            id=f"{rounding.id}-{width}",
            marks=() if width in ((1, 24, 64) if rounding.id == "f16" else (1, 64)) else pytest.mark.full,
        )
        for rounding in ROUNDINGS
        for width in WIDTHS
    ],
)
def test_every_width(engine: Engine, rng: np.random.Generator, width: int, rounding: Rounding) -> None:
    weights = random_weights(engine, rng, 512, ("Q5_K", 64), ("Q5_0", 33))
    x = activations(rng, width, 512)
    deal, planes = multiply(engine, weights, x, rounding=rounding)
    check(deal, planes, expected(weights, x, rounding))


# Types whose codes lie alike in their bytes, or whose lower planes have as many bits, share a launch.
TOGETHER = [
    ("Q4_K",),
    ("Q5_K", "Q3_K"),
    ("Q6_K", "IQ4_XS"),
    ("Q4_0", "Q8_0", "IQ4_NL", "Q4_1"),
    ("Q5_0", "Q5_1", "F16"),
    ("IQ3_S", "IQ3_XXS"),
]


@pytest.mark.parametrize("types", TOGETHER, ids="-".join)
def test_planes_side_by_side_are_the_bits_of_planes_in_turn(
    engine: Engine, rng: np.random.Generator, types: tuple[str, ...]
) -> None:
    """Up to four columns are multiplied with both planes in one product; more columns take two products."""
    weights = random_weights(engine, rng, 1024, *((name, 40) for name in types))
    x = activations(rng, 24, 1024)
    deal, widest = multiply(engine, weights, x, rounding=PLANES)
    check(deal, widest, expected(weights, x, PLANES))
    for width in (1, 3, 4, 8) if types is TOGETHER[0] else (3,):
        _, found = multiply(engine, weights, x[:width], rounding=PLANES)
        for at, shape in zip(deal.offsets, deal.shapes):
            live = slice(at, at + shape.rows)
            same = found[..., live].view(np.uint32) == widest[:, :width, live].view(np.uint32)
            assert same.all(), f"{width} columns, {shape.type}"


@pytest.mark.parametrize("name", ["Q6_K", full("Q4_K"), full("Q8_0"), "Q5_1"])
def test_two_scales_per_group(engine: Engine, rng: np.random.Generator, name: str) -> None:
    weights = random_weights(engine, rng, 768, (name, 90))
    x = activations(rng, 16, 768)
    deal, widest = multiply(engine, weights, x, rounding=SPANS)
    check(deal, widest, expected(weights, x, SPANS))
    for width in (1, 5):
        _, found = multiply(engine, weights, x[:width], rounding=SPANS)
        assert np.array_equal(found[..., :90].view(np.uint32), widest[:, :width, :90].view(np.uint32))


# Where the scales of sub-blocks lie in a block.
SCALES = {
    "Q3_K": (96, 108),
    "Q4_K": (4, 16),
    "Q5_K": (4, 16),
    "Q6_K": (192, 208),
    "IQ4_XS": (2, 8),
    "IQ3_S": (106, 110),
    "IQ3_XXS": (66, 98),
    "Q2_K": (0, 16),
    "IQ2_XXS": (5, 6),
    "IQ2_XS": (66, 74),
    "IQ2_S": (74, 82),
    "IQ1_S": (34, 50),
    "TQ1_0": (52, 52),
    "TQ2_0": (64, 64),
}


@pytest.mark.parametrize(
    ("name", "width"),
    [
        pytest.param(name, width, id=f"{name}-{way}", marks=() if at % 2 == turn else pytest.mark.full)
        for at, name in enumerate(SCALES)
        for turn, (way, width) in enumerate({"side-by-side": 4, "in-turn": 16}.items())
    ],
)
def test_the_largest_sums_are_exact(engine: Engine, name: str, width: int) -> None:
    """Codes, scales and activations at the ends of their ranges, with signs such that all terms add up: integers do not
    overflow, and only the last two factors round."""
    kind = BY_NAME[name]
    raw = np.empty((16, 1, kind.size), np.uint8)
    for row, (codes, scales) in enumerate(itertools.product((0x00, 0xFF, 0x80, 0x7F), repeat=2)):
        raw[row] = codes
        raw[row, 0, slice(*SCALES[name])] = scales
    for offset, _ in HALVES[name][:1]:
        raw[..., offset : offset + 2] = np.array([2.0**-10], np.float16).view(np.uint8)
    for offset, _ in HALVES[name][1:]:  # minima are not part of the integers
        raw[..., offset : offset + 2] = 0
    weights = weights_of(engine, 256, (name, raw.reshape(16, -1)))
    bits = tile_type(name).plane_bits
    signs = np.where(weights.dense[0] < 0, -1, 1).astype(np.float32)
    rng = np.random.default_rng(5)
    for x in (
        signs,
        -signs,
        signs * rng.integers(-127 << bits, 128 << bits, signs.shape).clip(-127 << bits, 127 << bits),
    ):
        x = x.astype(np.float32).copy()
        x[:, 0] = 1 if abs(x[0, 1]) == 1 else 127 << bits
        deal, found = multiply(engine, weights, x[:width], rounding=PLANES)
        want = expected(weights, x[:width], PLANES)[0]
        got = parts(deal, found)[0]
        assert np.all(np.abs(got - want) <= 2.1 * 2.0**-24 * np.abs(want) + 1e-30)


def test_nothing_is_written_beside_the_live_rows(engine: Engine, rng: np.random.Generator) -> None:
    weights = random_weights(engine, rng, 512, ("Q4_K", 20), ("Q8_0", 3))
    deal, planes = multiply(engine, weights, activations(rng, 5, 512))
    padding = np.ones(deal.stride, bool)
    for at, shape in zip(deal.offsets, deal.shapes):
        padding[at : at + shape.rows] = False
    assert np.isnan(planes[..., padding]).all()
    assert np.isfinite(planes[..., ~padding]).all()


def test_a_damaged_row_spoils_its_own_column_only(engine: Engine, rng: np.random.Generator) -> None:
    weights = random_weights(engine, rng, 512, ("Q4_K", 32), ("Q8_0", 16))
    x = activations(rng, 8, 512)
    x[2, 300], x[5, 7] = np.inf, np.nan
    deal, planes = multiply(engine, weights, x)
    bad = ~np.isfinite(planes.sum(0)).all(axis=1)
    assert bad.tolist() == [row in (2, 5) for row in range(8)]
    good = [row for row in range(8) if row not in (2, 5)]
    check(deal, planes[:, good], expected(weights, x[good]))


def test_a_grid_of_one_block_and_of_many(engine: Engine, rng: np.random.Generator) -> None:
    weights = random_weights(engine, rng, 1024, ("Q4_K", 100))
    x = activations(rng, 4, 1024)
    for multiprocessors in (1, 2, 40):
        card = type(SMALL)(multiprocessors, SMALL.shared_bytes)
        deal, planes = multiply(engine, weights, x, card)
        check(deal, planes, expected(weights, x))


@pytest.mark.parametrize(
    ("columns", "types"),
    [
        (5120, [("Q4_K", 4352), ("Q4_K", 4352)]),
        (17408, [("Q6_K", 2048)]),
        (5120, [("Q5_K", 2560), ("Q4_K", 1536), ("Q8_0", 48), ("Q8_0", 48)]),
        (5120, [("Q4_K", 3072), ("Q4_K", 256), ("Q6_K", 256)]),
        (25600, [("Q8_0", 1024)]),
        (5120, [("IQ4_XS", 2048), ("IQ3_S", 2048), ("IQ3_XXS", 1024), ("Q3_K", 1024)]),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else None,
)
def test_shapes_of_a_27b_cut_in_rows(
    engine: Engine, rng: np.random.Generator, columns: int, types: list[tuple[str, int]]
) -> None:
    if not engine.real:
        pytest.skip("takes the emulator minutes")
    card = Card(132, 227 * 1024)
    weights = random_weights(engine, rng, columns, *types)
    x = activations(rng, 64, columns)
    deal, widest = multiply(engine, weights, x, card)
    for got, want in zip(parts(deal, widest), expected(weights, x)):
        assert (np.abs(got - want).max(axis=1) / np.abs(want).max(axis=1)).max() < 5e-6
    for width in (1, 16, 24, 40):
        _, planes = multiply(engine, weights, x[:width], card)
        for at, shape in zip(deal.offsets, deal.shapes):
            live = slice(at, at + shape.rows)
            assert np.array_equal(planes[..., live].view(np.uint32), widest[:, :width, live].view(np.uint32))


@pytest.mark.parametrize("way", [KernelConfig(prefetch=3), KernelConfig(prefetch=32)], ids=str)
@pytest.mark.parametrize("slices", [None, 1], ids=["planned", "one-slice"])
def test_a_way_changes_no_bit(engine: Engine, rng: np.random.Generator, slices: int | None, way: KernelConfig) -> None:
    """Prefetches stay inside the weights, also where a warp begins in the middle of a row of tiles or has few."""
    weights = random_weights(engine, rng, 1280, ("Q4_K", 530), ("Q6_K", 170), ("Q8_0", 6))
    x = activations(rng, 24, 1280)
    card = Card(2, 227 << 10)
    plain, wanted = multiply(engine, weights, x, card, split_k=slices)
    deal, found = multiply(engine, weights, x, replace(card, config=way), split_k=slices)
    assert deal.defines(24)["PREFETCH"] == way.prefetch
    assert deal.row_begin == plain.row_begin
    for at, shape in zip(deal.offsets, deal.shapes):
        live = slice(at, at + shape.rows)
        assert np.array_equal(found[..., live].view(np.uint32), wanted[..., live].view(np.uint32)), shape.type


CLAIMS = {
    "planned": ([("Q4_K", 530), ("Q6_K", 170), ("Q8_0", 6)], None, INT8),  # several formats in a thread block
    "fewer-warps": ([("Q8_0", 530)], None, INT8),  # than those that claim
    "one-slice": ([("Q5_K", 300), ("F16", 40)], 1, INT8),  # both forms of activations
    "few-tiles": ([("Q4_K", 40)], None, INT8),  # fewer than warps
    "planes": ([("Q6_K", 170)], 1, PLANES),
    "spans": ([("Q6_K", 170)], 1, SPANS),
    "f16": ([("IQ3_S", 270)], None, F16),
    "sums-of-16": ([("Q2_K", 530), ("Q4_K", 170), ("Q8_0", 6)], None, INT8),  # beside sums of 32
    "sums-of-16-spans": ([("Q2_K", 170)], None, SPANS),
    "sums-of-16-planes": ([("Q2_K", 170)], None, PLANES),
}


@pytest.mark.parametrize("kind", CLAIMS)
def test_tiles_that_are_claimed_change_no_bit(engine: Engine, rng: np.random.Generator, kind: str) -> None:
    """One row whose tiles go to the next free warp has the bits of fixed shares, which all other widths use."""
    types, slices, rounding = CLAIMS[kind]
    weights = random_weights(engine, rng, 1664, *types)
    x = activations(rng, 3, 1664)
    card = Card(2, 227 << 10, KernelConfig(split_k=slices))
    deal, wide = multiply(engine, weights, x, card, rounding=rounding)
    fixed = replace(card, config=replace(card.config, claimed=False))
    for row in range(len(x)):
        alone, found = multiply(engine, weights, x[row : row + 1], card, rounding=rounding)
        shared, wanted = multiply(engine, weights, x[row : row + 1], fixed, rounding=rounding)
        assert "CLAIMED" in alone.defines(1)
        assert "CLAIMED" not in shared.defines(1)
        for at, shape in zip(deal.offsets, deal.shapes):
            live = slice(at, at + shape.rows)
            assert np.array_equal(found[..., live].view(np.uint32), wanted[..., live].view(np.uint32)), shape.type
            assert np.array_equal(found[:, 0, live].view(np.uint32), wide[:, row, live].view(np.uint32)), shape.type


CHUNKED = [[("Q4_K", 530), ("Q6_K", 170), ("Q8_0", 6)], [("Q5_K", 300), ("F16", 40)], [("IQ3_S", 270)]]
CHUNKED_WAYS = {"planned": (None, INT8), "one-slice": (1, INT8), "planes": (None, PLANES), "spans": (1, SPANS)}


@pytest.mark.parametrize(
    ("types", "slices", "rounding"),
    # Every way with the first types, every type in the plain way.
    [
        pytest.param(
            types,
            *values,
            id=f"{way}-" + "+".join(name for name, _ in types),
            marks=() if types is CHUNKED[0] or way == "planned" else pytest.mark.full,
        )
        for way, values in CHUNKED_WAYS.items()
        for types in CHUNKED
    ],
)
def test_chunks_of_k(
    engine: Engine, rng: np.random.Generator, types: list[tuple[str, int]], slices: int | None, rounding: Rounding
) -> None:
    """A card with little shared memory: several rounds, a last chunk that is short, one pass at every width. The bits
    are those of whole parts of K, in which shares begin within blocks of rows."""
    card = Card(2, 99 << 10)
    chunks = replace(card, config=KernelConfig(chunked=True))
    weights = random_weights(engine, rng, 1664, *types)
    x = activations(rng, 64, 1664)
    deal, widest = multiply(engine, weights, x, card, split_k=slices, rounding=rounding)
    assert deal.chunked(64)
    assert not deal.chunked(8)
    check(deal, widest, expected(weights, x, rounding))
    plain = types is CHUNKED[0] and (slices, rounding) == CHUNKED_WAYS["planned"]
    for width, here in itertools.product((1, 16, 24, 40) if plain else (1, 24), (card, chunks)):
        other, planes = multiply(engine, weights, x[:width], here, split_k=slices, rounding=rounding)
        assert len(other.passes(width)) == 1
        assert ("CHUNK" in other.defines(width)) == (here is chunks or deal.chunked(width))
        for at, shape in zip(deal.offsets, deal.shapes):
            live = slice(at, at + shape.rows)
            same = planes[..., live].view(np.uint32) == widest[:, :width, live].view(np.uint32)
            assert same.all(), f"{width} columns, {shape.type}, {other.config}"


@pytest.mark.parametrize("blocks", [1, 3, 5, 17, 40])
def test_chunks_have_the_bits_of_whole_parts(engine: Engine, rng: np.random.Generator, blocks: int) -> None:
    """Also where every block of rows is divided among several shares, and where none is."""
    weights = random_weights(engine, rng, 1280, ("Q4_K", 16 * blocks))
    x = activations(rng, 24, 1280)
    for warps in 12, 16:
        found = {}
        for way in (KernelConfig(chunked=True), KernelConfig(chunked=False)):
            card = Card(2, 227 << 10, way)
            deal = replace(plan(weights.shapes, 1280, card), warps=warps)
            assert ("CHUNK" in deal.defines(24)) == way.chunked
            found[way] = multiply_as(engine, weights, x, deal)
        whole, chunks = found.values()
        assert np.array_equal(whole.view(np.uint32), chunks.view(np.uint32)), f"shares of {warps} warps"


@pytest.mark.parametrize(
    "card", [Card(2, 227 << 10, overlaps=True), Card(2, 99 << 10, overlaps=True)], ids=["large", "small"]
)
def test_every_way_has_the_same_bits_at_every_width(engine: Engine, rng: np.random.Generator, card: Card) -> None:
    """A column's bits are the same at every width; ways with the same parts of K give the same bits."""
    weights = random_weights(engine, rng, 1280, ("Q5_K", 260), ("Q8_0", 20))
    x = activations(rng, 24, 1280)
    bits: dict[int, np.ndarray] = {}
    for way in (KernelConfig(), KernelConfig(split_k=1), KernelConfig(split_k=2), KernelConfig(chunked=True)):
        chosen = replace(card, config=way)
        deal, widest = multiply(engine, weights, x, chosen)
        assert deal.config == way
        check(deal, widest, expected(weights, x))
        _, narrow = multiply(engine, weights, x[:1], chosen)
        live = np.concatenate([np.arange(at, at + s.rows) for at, s in zip(deal.offsets, deal.shapes)])
        found = widest[..., live].view(np.uint32)
        assert np.array_equal(narrow[..., live].view(np.uint32), found[:, :1]), str(way)
        assert np.array_equal(bits.setdefault(deal.split_k, found), found), str(way)
