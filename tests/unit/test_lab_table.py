"""Results of a sweep: medians, the best setting, noise reported as noise, and files with what was measured."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_core.errors import DFlashError
from dflash_core.knobs import SPECS, Knobs
from dflash_core.lab import export
from dflash_core.lab.results import Excluded, Result
from dflash_core.lab.table import best, rows
from dflash_tui.application import engine_session
from dflash_tui.cli import command_line as cli
from dflash_tui.cli.sweep import page
from dflash_tui.terminal import output
from dflash_tui.terminal.output import write_out
from dflash_tui.text import lab as lab_text
from support.documented import fields
from support.measured import report_of, sweep_of


def test_rows_and_the_best() -> None:
    table = rows(sweep_of())
    assert [row.arm.knobs.budget for row in table] == [4, 12, 20, 28]
    assert [row.runs for row in table] == [6] * 4
    top = best(table)
    assert top is table[2]
    assert top.versus is None
    assert top.accepted
    assert top.acceptance == pytest.approx(7.5)
    assert top.step_ms == pytest.approx(7.5 / 222 * 1e3, rel=0.02)
    assert top.tok_s.low < top.tok_s.median < top.tok_s.high
    assert {row.versus.verdict for row in table if row.versus} == {"lower"}
    assert table[0].versus is not None
    assert table[0].versus.difference == pytest.approx(151.2 / 222 - 1)


def test_too_few_pairs_are_not_said_to_agree() -> None:
    """ "n of m pairs" means elsewhere that n of m agree."""
    result = sweep_of("budget=4,12", speeds=(74.7, 100), repeats=3)
    table = rows(result)
    assert lab_text.against(table[0], result) == "−25 %? 3 paired runs"
    assert any(line.startswith("only 3 paired runs, 6 needed for a difference") for line in lab_text.notes(result))


def test_noise_is_called_noise() -> None:
    """Two settings of one speed, whose runs scatter independently."""
    result = sweep_of("budget=4,12", speeds=(100, 100), lengths=(4, 4))
    scatter = (1.01, 0.98, 1.02, 0.99, 1.0, 1.03)
    trials = [
        replace(trial, report=report_of(100 * scatter[(trial.repeat + 2 * trial.setting) % 6], 4, trial.report.knobs))
        for trial in result.trials
    ]
    result = replace(result, trials=tuple(trials))
    table = rows(result)
    verdicts = [row.versus.verdict for row in table if row.versus]
    assert verdicts == ["noise"]
    assert any("noise" in lab_text.against(row, result) for row in table)


def test_only_a_base_is_called_the_reference() -> None:
    """In the first round of a sweep nothing is paired yet."""
    whole = sweep_of("budget=4,12,20", speeds=(74.7, 100, 90), repeats=3)
    begun = replace(whole, trials=whole.trials[:2], complete=False)
    assert [lab_text.against(row, begun) for row in rows(begun)] == ["", "best"]
    based = replace(begun, base=0)
    assert [lab_text.against(row, based) for row in rows(based)] == ["reference", "best"]
    alone = replace(begun, arms=whole.arms[:1], trials=whole.trials[:1])
    assert lab_text.against(rows(alone)[0], alone) == "", "nothing to compare with"


def test_budgets_under_auto_are_trees() -> None:
    base = Knobs(drafting="auto")
    whole = sweep_of("budget=4,12")
    arms = tuple(replace(arm, knobs=base.replace(budget=arm.knobs.budget)) for arm in whole.arms)
    assert lab_text.fixed(replace(whole, arms=arms)).startswith("drafting tree, p_min 0")


def test_repeats_of_many_prompts_are_not_prompts() -> None:
    """Eight prompts, three repeats: eight pairs, not twenty-four."""
    table = rows(sweep_of(prompts=8, repeats=3))
    assert {row.versus.n for row in table if row.versus} == {8}
    few = rows(sweep_of(prompts=2, repeats=3))
    assert {row.versus.n for row in few if row.versus} == {6}


def cut_short(result: Result, runs: int) -> Result:
    return replace(result, trials=result.trials[:runs], complete=False)


def test_cut_short_it_compares_like_with_like() -> None:
    """A last block that not every setting got is exported, and not compared."""
    whole = sweep_of()
    part = cut_short(whole, 4 * 3 + 2)
    assert [row.runs for row in rows(part)] == [3] * 4
    assert len(export.to_json(part)["trials"]) == 14
    first = cut_short(whole, 2)
    assert [row.runs for row in rows(first)] == [1, 1]
    assert all(row.versus is None for row in rows(first))
    assert any("cut short" in line for line in lab_text.notes(part))
    assert not any("cut short" in line for line in lab_text.notes(part, running=True))
    assert rows(cut_short(whole, 0)) == ()


def test_left_out_and_scored_are_told() -> None:
    result = sweep_of(excluded=(Excluded("prompt 9", "the answer ended with its first token"),))
    trials = tuple(replace(trial, right=trial.setting > 0) for trial in result.trials)
    notes = lab_text.notes(replace(result, trials=trials))
    assert any("1 prompt left out (prompt 9: the answer ended with its first token)" in line for line in notes)
    assert "answers right: 18 of 24 that could be scored" in notes


def test_another_text_is_told() -> None:
    result = sweep_of()
    odd = replace(result.trials[5], report=report_of(190, 5.6, result.trials[5].report.knobs, "A fox lived."))
    table = rows(replace(result, trials=(*result.trials[:5], odd, *result.trials[6:])))
    assert [row.other_text for row in table] == [0, 1, 0, 0]


def test_json_and_csv_hold_every_run() -> None:
    result = sweep_of("budget=4,12", "p_min=0,0.1", prompts=2, repeats=3)
    data = json.loads(json.dumps(export.to_json(result)))
    assert data["axes"] == ["budget", "p_min"]
    assert len(data["rows"]) == len(data["settings"]) == 4
    assert data["best"] == 2
    assert data["rows"][2]["versus"] is None
    assert (data["version"], data["against"]) == (2, 2)
    assert data["rows"][0]["accept_rate_by_depth"]
    assert len(data["trials"]) == 24
    assert data["trials"][0]["stats"]["tokens_per_second"] == pytest.approx(151.2)
    assert data["about"]["models"] == "demo pair"
    named = {*data, *data["rows"][0], *data["trials"][0]}
    assert named <= fields("sweep"), "docs/command-line.md names every field"
    lines = list(csv.DictReader(io.StringIO(export.to_csv(result))))
    assert len(lines) == 24
    assert [line["prompt"] for line in lines[::4]] == ["prompt 1", "prompt 2"] * 3
    assert lines[3]["drafting"] == "tree 12"
    assert set(lines[0]) >= {spec.name for spec in SPECS}


@pytest.mark.parametrize("axes", [("budget=4,12,20,28",), ("budget=4,12", "p_min=0,0.1"), ("mode=chain,tree",)])
@pytest.mark.parametrize("ending", export.ENDINGS)
def test_files(tmp_path: Path, axes: tuple[str, ...], ending: str) -> None:
    path = tmp_path / f"sweep{ending}"
    export.write(sweep_of(*axes), path)
    data = path.read_bytes()
    magic = {".json": b"{", ".csv": b"label,", ".png": b"\x89PNG", ".svg": b"<?xml"}[ending]
    assert data.startswith(magic)
    assert len(data) > 1000
    if ending == ".svg":
        assert b"tree budget" in data or axes[0].startswith("mode")
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(DFlashError, match=r"ends in \.json, \.csv, \.png, \.svg"):
        export.check_path(tmp_path / "sweep.xls")
    with pytest.raises(DFlashError, match="there is no folder"):
        export.check_path(tmp_path / "none" / "sweep.csv")
    (tmp_path / "sweep.csv").mkdir()
    with pytest.raises(DFlashError, match=r"sweep\.csv could not be written"):
        export.write(sweep_of(), tmp_path / "sweep.csv")
    assert [one.name for one in tmp_path.iterdir()] == ["sweep.csv"]


class TestWithoutMatplotlib:
    """It comes with the extra `plots`. Here its import is blocked."""

    LINE = (
        'PNG and SVG need matplotlib, which is not installed: pip install "dflash-tui[plots]", in a checkout '
        '.venv/bin/pip install -e ".[plots]"; JSON and CSV do without'
    )

    @pytest.fixture(autouse=True)
    def _blocked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in [one for one in sys.modules if one.startswith("matplotlib.")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "matplotlib", None)

    @pytest.mark.parametrize("ending", export.PICTURES)
    def test_a_picture_is_refused_in_one_line(self, tmp_path: Path, ending: str) -> None:
        for ask in (export.check_path, lambda path: export.write(sweep_of(), path)):
            with pytest.raises(DFlashError) as caught:
                ask(tmp_path / f"sweep{ending.upper()}")
            assert str(caught.value) == self.LINE
        assert not list(tmp_path.iterdir())

    def test_figures_are_written(self, tmp_path: Path) -> None:
        for ending in set(export.ENDINGS) - set(export.PICTURES):
            export.write(sweep_of(), tmp_path / f"sweep{ending}")
        assert len(list(tmp_path.iterdir())) == 2

    def test_the_command_refuses_before_it_loads_a_model(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def loads(*_: object) -> object:
            raise AssertionError("a model was loaded")

        monkeypatch.setattr(engine_session, "load_engine", loads)
        out = str(tmp_path / "sweep.png")
        assert cli.main(["--demo", "sweep", "budget=4,15", "--prompt", "Hello", "--out", out]) == 1
        assert self.LINE in capsys.readouterr().err.replace("\n", " ")

    def test_one_that_does_not_import(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "matplotlib").mkdir()
        (tmp_path / "matplotlib" / "__init__.py").write_text("raise ImportError('numpy is too old')")
        monkeypatch.delitem(sys.modules, "matplotlib")
        monkeypatch.syspath_prepend(str(tmp_path))
        with pytest.raises(DFlashError, match=r"does not import \(numpy is too old\); install it again: pip install"):
            export.write(sweep_of(), tmp_path / "sweep.png")


def test_the_words_of_the_table() -> None:
    lines = lab_text.table(sweep_of())
    assert lines[0].split() == ["tree", "budget", *" ".join(lab_text.HEADINGS).split()]
    assert lines[3].startswith("★ 20")
    assert "best" in lines[3]
    assert "−32 % (−32 to −32 %)" in lines[1]
    assert lab_text.depths(sweep_of())[0].startswith("accepted by depth, %")
    cells = lab_text.field(sweep_of("budget=4,12", "p_min=0,0.1"))
    assert [[share is not None for _, share in line] for line in cells[2:]] == [[False, True, True]] * 2
    shares = [share for line in cells for _, share in line if share is not None]
    assert (min(shares), max(shares)) == (0.0, 1.0)
    assert shares[2] == 1.0, "the best"
    wide = lab_text.field(sweep_of("budget=4,12", "p_min=0..0.9:0.1"), 40)
    assert len(wide) == 12, "the longer side goes downwards where the lines would be too long"
    assert max(map(len, lab_text.plain(wide))) <= 40
    field = lab_text.plain(cells)
    assert field[1].split() == ["0", "0.1"]
    assert [line.split() for line in field[2:]] == [["4", "152", "193"], ["12", "★223", "196"]]


def test_a_terminal_without_unicode(monkeypatch: pytest.MonkeyPatch) -> None:
    output.register_marks()
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors=output.MARKS)
    monkeypatch.setattr(sys, "stdout", stdout)
    write_out(page(sweep_of()))
    stdout.flush()
    text = stdout.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]
    assert "* 20 " in text
    assert "-32 %" in text
    assert "?" not in text


def test_one_estimator_says_one_thing() -> None:
    """Regression: A against B showed a ratio of medians and a paired median of opposite sign on one screen."""
    result = sweep_of("mode=chain,tree", prompts=7, repeats=1, base=0)
    a = (100.0, 100.0, 100.0, 300.0, 300.0, 300.0, 300.0)
    b = (110.0, 110.0, 110.0, 290.0, 330.0, 330.0, 330.0)
    trials = [
        replace(trial, report=report_of((a, b)[trial.setting][trial.prompt], 5, trial.report.knobs))
        for trial in result.trials
    ]
    found = replace(result, trials=tuple(trials))
    row = rows(found)[1]
    assert row.versus is not None
    assert row.versus.difference == pytest.approx(0.1)
    for said in (lab_text.finding(found), *lab_text.table(found)):
        assert set(re.findall(r"[+−][\d.]+ %(?!\))", said)) <= {"+10 %"}


def test_the_finding_is_in_one_sentence() -> None:
    result = sweep_of("mode=chain,tree", speeds=(100, 125), base=0)
    assert (
        lab_text.finding(result) == "mode tree: 126 tok/s, +25 % against mode chain (+25 to +25 %, 6 of 6 paired runs)"
    )
    few = cut_short(result, 5)
    assert lab_text.finding(few).startswith("cut short; so far: mode tree")
    assert "too few paired runs to tell: only 2 paired runs, 6 needed" in lab_text.finding(few)
    assert lab_text.finding(cut_short(result, 0)) == "nothing was measured"
    same = sweep_of("budget=4,12", speeds=(100, 125))
    assert lab_text.finding(same) == "tree budget 12: 126 tok/s is the best"


def test_a_dropped_arm_is_shown_on_the_prompts_of_the_others() -> None:
    """Regression: 20 of 24 rows of a tuning had one run, and a dropped one read +133 % beside a winner with +52 %."""
    result = sweep_of("budget=4,12,20", speeds=(100, 90, 120), prompts=4, repeats=2, base=0)
    part = tuple(trial for trial in result.trials if trial.setting != 1 or trial.repeat == 0)
    table = rows(replace(result, trials=part, left=frozenset({0, 2})))
    assert [(row.runs, row.left, row.best) for row in table] == [(8, True, False), (4, False, False), (8, True, True)]
    assert [row.versus.n for row in table if row.versus] == [4, 8]
    assert table[1].gain == pytest.approx(-0.1)
