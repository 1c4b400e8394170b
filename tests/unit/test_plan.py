"""Properties of plans on any card: every weight is read once, few partials, and sums that do not depend on width."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

pytest.importorskip("torch")
from tools.bench.kernels import products_27b

from dflash_core.backends.cuda.activations import CHOICES
from dflash_core.backends.cuda.plan import Card, KernelConfig, Plan, Shape, plan
from dflash_core.backends.cuda.repack import TILE_TYPES
from dflash_core.backends.cuda.state import WIDTHS

KIB = 1 << 10
# Multiprocessors of cards whose thread blocks have 99 KiB of shared memory.
SMALL = {"3090": 82, "4090": 128, "5090": 170, "one of few": 14}
PRODUCTS = list(dict.fromkeys(products_27b()))
MAX_PARTIALS = 4_000_000
L2 = 72 << 20  # of a 4090


def planned(card: Card, choice: str = "mixed") -> list[Plan]:
    return [
        plan([Shape(kind, rows) for kind, rows in product.matrices], product.columns, card,
             rounding=CHOICES[choice].of(product.name), split_k=product.split_k)
        for product in PRODUCTS
    ]  # fmt: skip


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("processors", SMALL.values(), ids=SMALL)
def test_a_card_with_little_shared_memory_reads_every_weight_once(processors: int, choice: str) -> None:
    for deal in [
        *planned(Card(processors, 99 * KIB), choice),
        *planned(Card(processors, 99 * KIB, l2_bytes=L2), choice),
    ]:
        for width in WIDTHS:
            assert deal.passes(width) == ((0, width),), deal.shapes
            assert deal.shared_bytes(width) <= 99 * KIB


@pytest.mark.parametrize("processors", SMALL.values(), ids=SMALL)
def test_partials_of_a_launch_stay_small(processors: int) -> None:
    """The L2 of a 3090 has 6 MB, that of a 4090 has 72. A head has one part, which is its result."""
    for l2 in (0, 6 << 20, L2):
        for deal in planned(Card(processors, 99 * KIB, l2_bytes=l2)):
            size = deal.split_k * deal.stride * 24 * 4
            assert size < max(MAX_PARTIALS, l2 / 4) or deal.split_k == 1


@pytest.mark.parametrize(
    "card",
    [Card(132, 227 * KIB), Card(82, 99 * KIB), Card(170, 99 * KIB), Card(72, 64 * KIB)],
    ids=["H200", "3090", "5090", "Turing"],
)
def test_every_row_and_every_tile_has_one_owner(card: Card) -> None:
    for deal in planned(card):
        blocks = sum(-(-shape.rows // 16) for shape in deal.shapes)
        assert deal.part_begin[0] == 0
        assert deal.grid <= card.multiprocessors
        assert len(deal.row_begin) == deal.grid
        for first, end in zip(deal.part_begin, deal.part_begin[1:]):
            rows = deal.row_begin[first:end]
            assert rows[0] == 0
            assert list(rows) == sorted(rows)
            assert rows[-1] <= blocks
        # No block has much more than an equal share.
        shares = [b - a for a, b in zip(deal.row_begin, deal.row_begin[1:]) if b > a]
        assert max(shares) <= 1.3 * blocks * deal.split_k / deal.grid + 1 or len(deal.shapes) > 1


def test_the_plan_of_a_card_does_not_depend_on_the_width() -> None:
    """Neither parts nor rows: widths differ in shared memory and in what kernels are compiled for, and in no sum."""
    for deal in planned(Card(82, 99 * KIB, KernelConfig(chunked=True))):
        chunks = {width: deal.defines(width)["CHUNK"] for width in WIDTHS}
        assert all(1 <= size <= deal.longest_part for size in chunks.values())
        assert chunks[64] <= chunks[1]


@pytest.mark.parametrize("card", [Card(132, 227 * KIB), Card(82, 99 * KIB), Card(128, 99 * KIB, l2_bytes=L2)])
def test_chunks_are_for_what_does_not_fit(card: Card) -> None:
    """A pass stages whole parts of K as long as they fit, and the plan is the same either way."""
    for deal, other in zip(planned(card), planned(replace(card, config=KernelConfig(chunked=True))), strict=True):
        chunked = [width for width in WIDTHS if "CHUNK" in deal.defines(width)]
        assert chunked == [width for width in WIDTHS if width > max(set(WIDTHS) - set(chunked), default=0)]
        assert not deal.chunked(8)
        assert all(deal.shared_bytes(width) <= card.shared_bytes for width in WIDTHS)
        assert (deal.row_begin, deal.part_begin, deal.warps) == (other.row_begin, other.part_begin, other.warps)
    narrow = [24 if card.l2_bytes or card.shared_bytes > 99 * KIB else 8, 1]
    assert not any(deal.chunked(width) for deal in planned(card)[:-1] for width in narrow)


def test_one_row_claims_tiles_where_their_sums_fit() -> None:
    """Not at other widths, not in chunks, not where a head would need most of the shared memory."""
    assert all("CLAIMED" in deal.defines(1) for deal in planned(Card(82, 99 * KIB))[:-1])
    for deal in planned(Card(132, 227 * KIB)):
        claims = {width for width in WIDTHS if "CLAIMED" in deal.defines(width)}
        sums = 64 * deal.max_tiles * (1 if deal.rounding.half else deal.rounding.spans)
        assert claims == ({1} if sums <= 64 * KIB else set())
        if claims:
            assert sums + deal.longest_part * 2208 <= deal.shared_bytes(1) <= 227 * KIB
    head = plan([Shape("Q6_K", 248_320)], 5120, Card(132, 227 * KIB), split_k=1)
    assert "CLAIMED" not in head.defines(1)
    assert all("CLAIMED" not in deal.defines(1) for deal in planned(Card(82, 99 * KIB, KernelConfig(chunked=True))))
    assert "CLAIMED" not in plan(
        [Shape("Q4_K", 5120)], 6144, Card(132, 227 * KIB, KernelConfig(claimed=False))
    ).defines(1)


def test_as_many_warps_divide_the_tiles_at_every_width() -> None:
    """Their number decides the order of sums, and is lower for large tiles and for few of them. Where warps claim
    tiles, or compute whole rows in chunks, any number of them may add up in as many shares."""
    for (shape, columns, shares), chunked in itertools.product(
        (
            (Shape("Q4_K", 34_816), 5120, 16),
            (Shape("Q8_0", 34_816), 5120, 12),
            (Shape("Q5_K", 5120), 6144, 12),
        ),
        (None, True),
    ):
        deal = plan([shape], columns, Card(132, 227 * KIB, KernelConfig(chunked=chunked)))
        for width in WIDTHS:
            defines = deal.defines(width)
            warps = defines.get("WARPS", 16)
            assert deal.warps_at(width) == warps
            assert defines.get("SHARES", warps) == shares
            if chunked:
                assert warps == (16 if width < 32 else 12)
            else:
                assert warps == (16 if width == 1 else shares)


def test_shares_cover_every_block_of_rows_of_every_part() -> None:
    for deal in planned(Card(132, 227 * KIB)):
        total = sum(-(-shape.rows // 16) for shape in deal.shapes)
        for part in range(deal.split_k):
            mine = [(first, end) for of, first, end in deal.shares() if of == part]
            assert [first for first, _ in mine] == [0, *(end for _, end in mine[:-1])]
            assert mine[-1][1] == total


def test_a_way_is_taken_at_its_word() -> None:
    shapes = [Shape("Q4_K", 5120)]
    card = Card(132, 227 * KIB, KernelConfig(chunked=True, split_k=2))
    deal = plan(shapes, 6144, card)
    assert (deal.chunked(1), deal.split_k) == (True, 2)
    assert plan(shapes, 6144, card, split_k=1).split_k == 1, "a head is never split"


@pytest.mark.parametrize("name", TILE_TYPES)
def test_every_type_has_one_pass_at_64_columns_in_99_kib(name: str) -> None:
    for columns in (256, 5120, 17408, 25600):
        assert plan([Shape(name, 4096)], columns, Card(82, 99 * KIB)).passes(64) == ((0, 64),)


def test_narrow_passes_ask_for_a_tile_more_where_kernels_overlap() -> None:
    card = Card(132, 227 * KIB, overlaps=True)
    for deal in planned(card):
        assert {width: deal.defines(width).get("PREFETCH", 0) for width in WIDTHS} == {
            width: int(width <= 8) for width in WIDTHS
        }
        assert (
            deal.row_begin
            == plan(deal.shapes, deal.tiles_k * 256, replace(card, overlaps=False), split_k=deal.split_k).row_begin
        )
    assert all("PREFETCH" not in deal.defines(1) for deal in planned(Card(132, 227 * KIB)))
