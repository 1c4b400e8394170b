"""Step times, differing texts, curves in characters, requests as they are typed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_core.errors import DFlashError, KnobError
from dflash_core.events import StageTimes, StepEvent
from dflash_core.knobs import Knobs
from dflash_core.lab.diff import diff
from dflash_core.lab.experiment import Case, default_repeats
from dflash_core.lab.whatif import MIN_STEPS, Cost, StepTimes
from dflash_tui.application.lab_request import Options, parse_ab, parse_options, parse_sweep
from dflash_tui.text.bars import Mark, plot
from support.measured import PAIR
from support.turns import step_of, tree_of


def step(nodes: int, ms: float, mode: str = "tree") -> StepEvent:
    tree = tree_of(*((0, 0) for _ in range(nodes)))
    return replace(step_of(tree), stages=StageTimes(verify=ms), mode=mode)


def costs(**ms: float) -> StepTimes:
    return StepTimes(step(int(nodes[1:]), value) for nodes, value in ms.items() for _ in range(MIN_STEPS))


def test_costs_say_how_they_are_known() -> None:
    it = costs(n4=10, n8=12, n16=20)
    assert it.measured == {4: 10, 8: 12, 16: 20}
    assert it.at(8) == Cost(12, "measured")
    assert it.at(6) == Cost(11, "interpolated")
    assert it.at(8.5) == Cost(12.5, "interpolated")
    beyond = it.at(32)
    assert beyond is not None
    assert beyond.source == "extrapolated"
    assert beyond.ms == pytest.approx(14 + 64 / (74 + 2 / 3) * (32 - 28 / 3))


def test_costs_that_are_not_known() -> None:
    assert StepTimes().at(4) is None
    assert costs(n4=10).at(8) is None
    assert costs(n4=10).at(4) == Cost(10, "measured")
    falling = costs(n4=10, n8=9)
    assert falling.at(12) is None, "that more is faster is noise"
    neighbours = costs(n22=50, n24=56)
    assert neighbours.at(21) == Cost(47, "extrapolated")
    assert neighbours.at(26) == Cost(62, "extrapolated")
    assert [neighbours.at(nodes) for nodes in (1, 6, 20, 27, 64)] == [None] * 5, "too far for so small a difference"
    few = StepTimes([step(4, 10)] * (MIN_STEPS - 1))
    assert few.measured == {}
    assert StepTimes([step(0, 10, "plain")] * 9).measured == {}


def test_a_median_shrugs_off_a_slow_step() -> None:
    it = costs(n4=10)
    it.add(step(4, 5000))
    assert it.measured == {4: 10}


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("", "", []),
        ("one two", "one two", [("one two", "one two")]),
        ("one two three", "one 2 three", [("one ", "one "), ("two", "2"), (" three", " three")]),
        ("same", "same and more", [("same", "same"), ("", " and more")]),
        ("a b", "", [("a b", "")]),
        ("x a", "y a", [("x", "y"), (" a", " a")]),
        ("a a", "a a a", [("a a", "a a"), ("", " a")]),
    ],
)
def test_texts_side_by_side(a: str, b: str, expected: list[tuple[str, str]]) -> None:
    its = diff(a, b)
    assert [(one.a, one.b) for one in its] == expected
    assert "".join(one.a for one in its) == a
    assert "".join(one.b for one in its) == b


def test_a_diff_of_long_texts_is_whole_and_quick() -> None:
    a = " ".join(f"word{n}" for n in range(3000))
    b = a.replace("word1500 ", "another ").replace("word2999", "end")
    its = diff(a, b)
    assert "".join(one.a for one in its) == a
    assert "".join(one.b for one in its) == b
    assert sum(not one.same for one in its) == 2


def test_a_plot() -> None:
    lines = plot([Mark(1, 10), Mark(3, 30, "★"), Mark(5, 20, "◆")], 22, 7, "speed")
    assert lines == [
        "speed",
        "30 ┤       ·★····",
        "   │     ··      ····◆",
        "   │  ···",
        "10 ┤●·",
        "   └──────────────────",
        "    1       3        5",
    ]


@pytest.mark.parametrize("width", range(1, 60, 7))
@pytest.mark.parametrize("height", range(1, 12, 2))
def test_a_plot_keeps_to_its_room(width: int, height: int) -> None:
    lines = plot([Mark(n, n * n % 7 + 0.001 * n) for n in range(40)], width, height, "a title that is long")
    assert len(lines) <= height
    assert max(map(len, lines)) <= width


def test_plots_of_little() -> None:
    assert plot([], 40, 8, "title") == ["title"]
    assert plot([Mark(float("nan"), 1), Mark(1, float("inf"))], 40, 8) == []
    flat = plot([Mark(1, 5), Mark(2, 5)], 30, 6)
    assert sum("5.00" in line for line in flat) == 1
    one = plot([Mark(7, 5)], 30, 6)
    assert sum("●" in line for line in one) == 1


def test_later_marks_show() -> None:
    """Two points in one cell: the one given last is drawn."""
    text = "".join(plot([Mark(50, 1, "★"), *(Mark(n, 1) for n in range(100))], 20, 6))
    assert "★" not in text
    assert "★" in "".join(plot([*(Mark(n, 1) for n in range(100)), Mark(50, 1, "★")], 20, 6))


def test_requests() -> None:
    axes, options = parse_sweep("budget 4..8:4 p_min=0,0.1 repeats=3 prompts='my file.txt' samples=5")
    assert [axis.name for axis in axes] == ["budget", "p_min"]
    assert options == Options(3, Path("my file.txt"), 5)
    assert parse_sweep("budget=4,8")[1] == Options()
    (a, b), options = parse_ab("mode=chain | budget=40 repeats 8", Knobs(), PAIR)
    assert (a.label, b.label, options.repeats) == ("mode=chain", "budget=40", 8)
    axes, _ = parse_sweep("drafting=plain,chain 7,tree 22,auto up to 40 p_min=0,0.3")
    assert axes == parse_sweep("drafting=plain,chain=7,tree=22,auto=40 p_min=0,0.3")[0], "as screens write sizes"
    (a, b), _ = parse_ab("drafting=tree 8 | drafting=auto p_min=0.2", Knobs(), PAIR)
    assert [a.knobs.drafting, b.knobs.p_min] == ["tree 8", 0.2]
    assert [a.label, b.label] == ["drafting=tree 8", "drafting=auto p_min=0.2"]
    (a, b), _ = parse_ab("tree 8 p_min 0.1 | chain", Knobs(), PAIR)
    assert [a.knobs.drafting, a.knobs.p_min, b.knobs.mode] == ["tree 8", 0.1, "chain"], "a drafting needs no name"
    (axis,), _ = parse_sweep("plain, tree 8, auto up to 40")
    assert (axis.name, axis.values) == ("drafting", ("plain", "tree 8", "auto up to 40"))
    for text in ("budget=4, 8", "budget 4, 8", "budget= 4,8"):
        assert parse_sweep(text)[0][0].values == (4, 8)
    assert parse_sweep("drafting tree 8, auto")[0][0].values == ("tree 8", "auto")
    (a, b), options = parse_ab("repeats=8", Knobs(), PAIR)
    assert (a.label, b.label, options.repeats) == ("drafting=chain", "drafting=tree", 8)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("budget=4..8 repeats=0", "repeats=0: expected a whole number from 1"),
        ("budget=4..8 samples=many", "samples=many: expected a whole number"),
        ("budget=4..8 budget=9", "budget is given twice"),
        ("budget='4", "quotation mark is not closed"),
        ("repeats=2", "expected one or two"),
        ("drafting=auto up to 400", "drafting=auto up to 400: expected auto,"),
        ("seed=abc", "^seed=abc: expected random or a whole number from 0 to "),
    ],
)
def test_refused_requests(text: str, message: str) -> None:
    with pytest.raises(KnobError, match=message):
        parse_sweep(text)


@pytest.mark.parametrize("parse", [parse_options, parse_sweep])
def test_samples_of_no_file_are_refused(parse: Callable[[str], object]) -> None:
    axis = "budget=4,8 " if parse is parse_sweep else ""
    with pytest.raises(KnobError, match=r"^samples= draws from a file of prompts: give it, prompts=FILE$"):
        parse(f"{axis}samples=5")


def test_an_option_that_is_none_is_quoted_as_typed() -> None:
    for text in ("/sweep", "prompt=x"):
        with pytest.raises(KnobError, match=f"^{text}: expected repeats=, prompts=, samples=$"):
            parse_options(text)


def test_what_is_measured_on(tmp_path: Path) -> None:
    last = Case("the last prompt", ())
    assert Options().cases([last]) == (last,)
    with pytest.raises(DFlashError, match="no prompt yet"):
        Options().cases([])
    path = tmp_path / "p.txt"
    path.write_text("one\ntwo\nthree\n")
    assert [case.messages[0].content for case in Options(prompts=path).cases([last])] == ["one", "two", "three"]
    assert len(Options(prompts=path, samples=2).cases([last])) == 2
    assert [default_repeats(n) for n in (1, 2, 5, 6, 10)] == [6, 3, 2, 1, 1]
    assert Options(repeats=9).rounds(1) == 9
