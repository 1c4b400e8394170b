"""Bars, sparklines and short numbers."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from dflash_core.memory import Component, MemoryBreakdown
from dflash_tui.application import amounts
from dflash_tui.text import bars
from dflash_tui.widgets import panels


@pytest.mark.parametrize(
    ("fraction", "expected"),
    [(0, "    "), (1, "━━━━"), (0.5, "━━  "), (0.001, "╸   "), (0.4, "━╸  "), (2, "━━━━"), (-1, "    ")],
)
def test_bar(fraction: float, expected: str) -> None:
    assert bars.bar(fraction, 4) == expected


def test_bars_of_the_memory_panel_share_one_scale() -> None:
    """That of what the program holds: beside the free memory of a large device no component would have a bar."""
    gib = 1 << 30
    components = Component("target", 3 * gib), Component("program", gib)
    shown = panels.drawn(MemoryBreakdown("A card", components, 141 * gib, 130 * gib), 60).plain
    length = {line.split()[0]: line.count("━") for line in shown.splitlines() if "━" in line}
    assert length["predicted"] == 34
    assert (length["target"], length["program"]) == (25, 8)
    assert "free" not in length
    assert "130.0 GiB" in shown


def test_spark() -> None:
    assert bars.spark([1, 2, 4, 8], 4) == ["▁▂▄█"]
    assert bars.spark([8, 0, 4], 4, rows=2) == ["█   ", "█ █ "]
    assert bars.spark([], 3) == ["   "]
    assert bars.spark([0, 0], 3) == ["   "]
    assert bars.spark(range(100), 10)[0][-1] == "█"
    assert all(len(line) == 10 for line in bars.spark(range(100), 10, rows=3))
    assert bars.spark([0.001, 100], 2) == ["▁█"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, "0"), (842, "842"), (1000, "1k"), (1900, "1.9k"), (32_768, "33k"), (1_100_000, "1.1M"), (9_999, "10k")],
)
def test_short(value: float, expected: str) -> None:
    assert amounts.short(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"), [(1, "1.0"), (0.93, ".93"), (0.001, "<.01"), (0.0, ".00"), (0.996, "1.0"), (0.994, ".99")]
)
def test_chance(value: float, expected: str) -> None:
    assert amounts.chance(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"), [(0.084, "84 ms"), (1.44, "1.4 s"), (125, "2 m 05 s"), (0.999, "1.0 s")]
)
def test_seconds(value: float, expected: str) -> None:
    assert amounts.seconds(value) == expected


@pytest.mark.parametrize("width", range(8))
def test_fit_is_exact_for_wide_characters(width: int) -> None:
    assert cell_len(bars.fit("宽a宽b", width)) == width
    assert cell_len(bars.clip("宽a宽b", width)) <= width


def test_meter() -> None:
    assert bars.meter(0.0) == "▱" * 8
    assert bars.meter(0.01) == "▰" + "▱" * 7
    assert bars.meter(1.5) == "▰" * 8
