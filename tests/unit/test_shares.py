"""Every percentage is of the figures beside it, as they are shown: one arithmetic, over figures drawn at random."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st
from tools.bench.ui_tax import Pair, Timed, UiTax, tax_table

from dflash_core.lab.whatif import Acceptance, Curve, Point
from dflash_tui.application.amounts import change, percent, speed
from dflash_tui.application.figures.meter import as_fast
from dflash_tui.text import lab as lab_text

FIGURE = st.floats(1.0, 600.0)
SHARE = re.compile(r"([+−±-]?)([\d.]+) ?%")


def check(words: str, shown: str, beside: str) -> None:
    """The percentage in `words` is of these two texts: within half of its own last digit, and with the right sign."""
    sign, value = SHARE.search(words).groups()  # type: ignore[union-attr]
    share = (float(shown) / float(beside) - 1) * 100
    half = 0.5 * 10.0 ** -len(value.partition(".")[2])
    assert abs(float(value) - abs(share)) <= half + 1e-9, (words, shown, beside)
    assert sign in ("−", "-") if share < -half else "+" in sign if share > half else True, (words, shown, beside)


@given(FIGURE, FIGURE)
def test_of_what_if(a: float, b: float) -> None:
    points = tuple(Point(Acceptance(n, one, n, 40), 1000.0, "measured") for n, one in ((4, a), (8, b)))
    line = lab_text.best_line(Curve("estimate", points, 4, (4, 8)))
    if line.count("tok/s") == 2:
        top, now = re.findall(r"([\d.]+) tok/s", line)
        check(line, top, now)


@given(st.floats(0.1, 60.0), st.floats(0.8, 3.0))
def test_of_the_app_beside_no_app(headless_s: float, factor: float) -> None:
    pair = Pair("a prompt", (Timed(64, headless_s),), (Timed(64, headless_s * factor),))
    for line in tax_table(UiTax((pair,))).splitlines()[1:]:
        alone, shown, lost = line.split()[-3:]
        share = (1 - float(shown) / float(alone)) * 100
        assert abs(float(lost.removesuffix("%")) - share) <= 0.05 + 1e-9, line


@given(FIGURE, FIGURE)
def test_times_plain_decoding(a: float, b: float) -> None:
    said = as_fast(a, b)
    ratio = float(speed(a)) / float(speed(b))
    digits = len(said.removesuffix("x").partition(".")[2])
    assert abs(float(said.removesuffix("x")) - ratio) <= 0.5 * 10.0**-digits + 1e-9
    assert digits == (2 if ratio < 1 else 1), "0.97x is not the same speed"


def test_nothing_beside_nothing() -> None:
    assert change("12.0", "0.0") == 0
    assert percent(change("12", "12")) == "±0.0 %"
    assert as_fast(5.0, 0.0) == "0.00x"
