"""Layouts of split attention on cards: everything fits, every row has a place, widths share one order."""

from __future__ import annotations

import pytest

from dflash_core.backends.cuda.layers.split_attention import MAX_PARTS, HeadShape, SplitLaunch, SplitOrder
from dflash_core.cache_types import CachePair
from dflash_core.errors import UnsupportedError

# Bytes of shared memory that a block may have, and SMs: H200, A100, RTX 3090, 4090 and 5090, RTX 2080.
CARDS = [(232_448, 132), (166_912, 108), (101_376, 82), (101_376, 128), (101_376, 170), (65_536, 46)]
TARGETS = [HeadShape(256, 24, 4, 64), HeadShape(256, 16, 4, 64), HeadShape(256, 8, 2, 64), HeadShape(256, 2, 1, 64)]
DRAFTERS = [HeadShape(128, 32, 8, 128), HeadShape(128, 4, 2, 128), HeadShape(64, 8, 8, 64)]
WIDTHS = (1, 4, 8, 16, 24, 32, 40, 48, 64)


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("trees", [True, False])
@pytest.mark.parametrize("heads", TARGETS + DRAFTERS)
def test_launches_fit_and_hold_every_row(heads: HeadShape, trees: bool, card: tuple[int, int]) -> None:
    shared_limit, processors = card
    order = SplitOrder.of(heads, 32_768, processors, shared_limit, trees=trees)
    for rows in WIDTHS:
        launch = SplitLaunch.of(heads, order, rows, shared_limit)
        blocks, kv_heads, splits = launch.grid
        assert launch.shared <= shared_limit
        assert kv_heads == heads.kv_heads
        if trees:
            assert blocks * kv_heads <= processors, "more than one wave"
        else:
            assert splits * kv_heads <= processors, "more than one wave"
            assert blocks * launch.block_rows >= heads.packed_rows(rows)
            assert (blocks - 1) * launch.block_rows < heads.packed_rows(rows), "a block without rows"
            assert splits == order.splits
        assert launch.block <= 1024


@pytest.mark.parametrize("card", CARDS)
def test_a_long_context_reaches_all_processors_that_heads_can_share(card: tuple[int, int]) -> None:
    shared_limit, processors = card
    for heads in TARGETS:
        order = SplitOrder.of(heads, 262_144, processors, shared_limit, trees=True)
        assert order.splits * heads.kv_heads > processors - heads.kv_heads or order.parts == MAX_PARTS
        assert order.parts <= MAX_PARTS


def test_a_short_cache_makes_no_more_splits_than_tiles() -> None:
    order = SplitOrder.of(TARGETS[0], 512, 132, 232_448, trees=True)
    assert order.splits * order.chunk * order.tile == 512


@pytest.mark.parametrize(("head_dim", "rotary"), [(80, 64), (1024, 64), (256, 32), (128, 192)])
def test_heads_without_a_kernel_are_refused(head_dim: int, rotary: int) -> None:
    with pytest.raises(UnsupportedError, match="run it on the CPU"):
        HeadShape(head_dim, 4, 2, rotary)


def test_too_little_shared_memory_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="16,384 bytes"):
        SplitOrder.of(TARGETS[0], 4096, 20, 16_384, trees=True)


def test_steps_of_packed_caches_wait_as_little_as_room_allows() -> None:
    """The expected (stages, half_tiles) of a 27B on an H200."""
    limit, processors = CARDS[0]
    kv = CachePair.parse("q8_0")
    order = SplitOrder.of(TARGETS[0], 32_768, processors, limit, trees=True, kv=kv)
    launches = {rows: SplitLaunch.of(TARGETS[0], order, rows, limit) for rows in (1, 8, 16, 24)}
    found = {rows: (one.stages, one.half_tiles) for rows, one in launches.items()}
    assert found == {1: (3, 0), 8: (3, 0), 16: (1, 2), 24: (1, 1)}
