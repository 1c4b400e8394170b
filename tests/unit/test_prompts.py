"""From how many tokens on prompts run in chunks."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
from dflash_core.backends.cuda.timings import COMMIT, NEVER, WORTHWHILE, chunks_from

# Milliseconds on an H100, by rows (docs/notes/products.md, "Chunks with the sums of whole parts").
PASSES = {1: 6.93, 24: 8.71, 64: 15.11}
CHUNKS = {256: 60.7, 1024: 121.0}


def test_a_card_whose_chunks_win_early_keeps_them() -> None:
    assert chunks_from(PASSES, CHUNKS) is None


def test_a_card_whose_chunks_never_win_reads_all_in_passes() -> None:
    """A row costs more in a chunk than in a pass, or as much."""
    assert chunks_from({64: 30.0}, {256: 400.0, 1024: 1090.0}) == NEVER
    row = COMMIT * 32.0 / 64
    assert chunks_from({64: 32.0}, {256: 50.0 + 256 * row, 1024: 50.0 + 1024 * row}) == NEVER


def test_chunks_begin_where_they_are_as_fast_as_passes() -> None:
    passes, chunks = {64: 64.0}, {256: 656.0, 1024: 1424.0}  # 400 and 1 a row; passes 1.05 a row
    found = chunks_from(passes, chunks)
    assert found == pytest.approx(8001, abs=2)
    for rows, sooner in ((0.99 * found, True), (1.01 * found, False)):
        assert (COMMIT * rows < 400 + rows) == sooner


def test_a_gain_for_short_prompts_alone_is_not_worth_the_memory() -> None:
    """Here a chunk saves 1 ms a row."""
    for fixed, wanted in ((0.5 * WORTHWHILE, False), (2.5 * WORTHWHILE, True)):
        chunks = {rows: fixed + (COMMIT - 1) * rows for rows in (256, 1024)}
        assert (chunks_from({64: 64.0}, chunks) is not None) == wanted


@pytest.mark.parametrize(("passes", "chunks"), [({}, CHUNKS), (PASSES, {}), ({1: 6.9, 24: 8.7}, CHUNKS)])
def test_what_was_not_measured_changes_nothing(passes: dict[int, float], chunks: dict[int, float]) -> None:
    assert chunks_from(passes, chunks) is None
