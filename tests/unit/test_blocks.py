"""Lines of figures: they are broken before a figure, and no dot is left over."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from dflash_tui.text.blocks import DOT, dotted

PART = st.text("abc 19/", min_size=1, max_size=12).map(str.strip).filter(bool)


@given(st.lists(PART, max_size=8), st.integers(1, 60))
def test_no_line_begins_or_ends_with_a_dot(parts: list[str], width: int) -> None:
    lines = dotted(parts, width)
    assert [part for line in lines for part in line.split(DOT)] == parts, "all of them, in their order"
    for line in lines:
        assert line == line.strip(" ·")
        assert len(line) <= width or DOT not in line
    for before, after in itertools.pairwise(lines):
        assert len(before + DOT + after.split(DOT)[0]) > width, "a line is as full as it can be"
