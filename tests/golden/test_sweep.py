"""Sweeps on the demo pair: what runs and in which order, what is left out, and that a conversation is not affected."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dflash_core import Engine, Knobs
from dflash_core.bench.prompts import Task
from dflash_core.conversation import Conversation
from dflash_core.demo import demo_draft, demo_target_path
from dflash_core.errors import DFlashError, NumericsError
from dflash_core.lab.experiment import ENDED_AT_ONCE, Answerer, Case, Design, Experiment, Laboratory
from dflash_core.lab.grid import Arm, parse_axes, settings
from dflash_core.lab.results import ExperimentProgress
from dflash_core.lab.schedule import interleave
from dflash_core.lab.table import rows
from dflash_core.messages import Message
from dflash_core.turn_stats import TurnReport
from dflash_tui.cli import command_line as cli
from dflash_tui.cli.sweep import ANY_PAIR
from support import demo_pair
from support.grids import full

STORY, SUM = "Tell me a story about a fox.", "What is 27 + 58?"
CASES = (Case.of(Task("story", STORY)), Case.of(Task("sum", SUM, "#### 85")))
BASE = Knobs(max_tokens=6)
# Under auto the steps depend on what was measured meanwhile; the tokens never do.
FIXED = BASE.replace(mode="tree")
SAID = "You are Finn."


@cache
def engine() -> Engine:
    return demo_pair.new_engine(context_length=512)


def laboratory() -> Laboratory:
    return Laboratory(engine(), engine().target.tokenizer, engine().target.template, (("models", "demo pair"),))


def sweep(*words: str, cases: tuple[Case, ...] = CASES, repeats: int = 2, base: Knobs = BASE) -> Experiment:
    lab, axes = laboratory(), parse_axes(words)
    grid, names = settings(axes, base, lab.limits), tuple(axis.name for axis in axes)
    return lab.experiment(Design(grid, cases, repeats, names))


def conversation() -> Conversation:
    return Conversation(engine(), engine().target.tokenizer, engine().target.template, SAID)


def ask(chat: Conversation, text: str, knobs: Knobs = BASE) -> TurnReport:
    turn = chat.ask(text, knobs)
    for _ in turn:
        pass
    assert turn.report is not None
    return turn.report


def test_every_setting_on_every_prompt_in_turn() -> None:
    it = sweep("budget=4,12,20")
    progress = list(it)
    result = it.result
    assert result.complete
    assert [(t.setting, t.prompt, t.repeat) for t in result.trials] == [
        (slot.setting, slot.prompt, slot.repeat) for slot in interleave(3, 2, 2)
    ]
    assert [t.report.knobs.budget for t in result.trials[:3]] == [4, 12, 20]
    warm = [one for one in progress if one.doing.startswith("warming up")]
    assert len(warm) == 3
    measuring = progress[3:]
    assert [(one.done, one.total) for one in measuring] == [(n, 12) for n in range(13)]
    assert measuring[0].left_s is None
    left = [one.left_s for one in measuring[1:] if one.left_s is not None]
    assert len(left) == 12
    assert left[-1] == 0
    assert left[0] > left[-2] > 0


def test_the_answers_do_not_depend_on_the_setting() -> None:
    it = sweep("budget=1,8,40")
    list(it)
    assert [row.other_text for row in rows(it.result)] == [0, 0, 0]
    lengths = [row.acceptance for row in rows(it.result)]
    assert lengths == sorted(lengths)


def test_right_answers_are_counted() -> None:
    it = sweep("mode=ar,tree", base=Knobs(max_tokens=24), repeats=1)
    list(it)
    rights = {trial.right for trial in it.result.trials if trial.prompt == 1}
    assert rights <= {True, False}
    assert {trial.right for trial in it.result.trials if trial.prompt == 0} == {None}
    assert [row.right[1] for row in rows(it.result)] == [1, 1]


def test_prompts_that_end_at_once_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first token of one prompt's answer is made a stop token; the other prompt's answers never contain it."""
    chat = Conversation(engine(), engine().target.tokenizer, engine().target.template)
    first = ask(chat, SUM).tokens[0]
    monkeypatch.setattr(engine(), "stop_ids", engine().stop_ids | {first})
    it = sweep("budget=4,12", cases=CASES[::-1])
    list(it)
    assert [(one.name, one.reason) for one in it.result.excluded] == [("sum", ENDED_AT_ONCE)]
    assert {trial.prompt for trial in it.result.trials} == {1}
    assert len(it.result.trials) == 4
    with pytest.raises(DFlashError, match=r"no prompt could be measured \(sum: the answer ended"):
        list(sweep("budget=4,12", cases=CASES[1:]))


def test_prompts_that_do_not_fit_are_left_out() -> None:
    it = sweep("budget=4", cases=(Case.of(Task("long", "word " * 600)), CASES[0]), repeats=1)
    list(it)
    [left_out] = it.result.excluded
    assert left_out.name == "long"
    assert "the context holds 512" in left_out.reason
    assert len(it.result.trials) == 1


def test_cancel_keeps_what_is_done() -> None:
    it = sweep("budget=4,12,20", repeats=3)
    for progress in it:
        if progress.done == 5 and not progress.doing.startswith("warming"):
            it.cancel()
    assert not it.result.complete
    assert len(it.result.trials) == 5
    assert len(rows(it.result)) == 3


def test_a_cancel_after_the_last_run_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    it = sweep("budget=4", cases=CASES[:1], repeats=2)
    answer = Answerer.answer

    def answered(*args: Any) -> Any:
        report = answer(*args)
        if len(it.result.trials) == 1:  # this was the second of two
            it.cancel()
        return report

    monkeypatch.setattr(Answerer, "answer", answered)
    assert [progress.doing for progress in it][-1] == "done"
    assert it.result.complete
    assert len(it.result.trials) == 2


def test_a_fault_keeps_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    it = sweep("budget=4,12", repeats=3)

    def broken(*_: object) -> None:
        raise NumericsError("the target produced numbers that are not finite")

    def break_it(progress: ExperimentProgress) -> None:
        if progress.done == 3 and not progress.doing.startswith("warming"):
            monkeypatch.setattr(engine().session, "verify", broken)

    with pytest.raises(NumericsError):
        list(map(break_it, it))
    assert len(it.result.trials) == 3


KINDS = {"greedy": FIXED, "sampled": FIXED.replace(temperature=0.9, seed=3), "auto": BASE}
ALWAYS = {("whole", "auto"), ("cancelled", "greedy"), ("given up", "sampled")}


@pytest.mark.parametrize(
    ("how", "knobs"),
    [
        pytest.param(how, knobs, marks=() if (how, kind) in ALWAYS else pytest.mark.full, id=f"{kind}-{how}")
        for how in ("whole", "cancelled", "given up")
        for kind, knobs in KINDS.items()
    ],
)
def test_a_conversation_never_notices(how: str, knobs: Knobs) -> None:
    """The next turn after a sweep is the one that would have come without: its tokens, its steps, what it reads."""
    engine().reset()
    plain = conversation()
    expected = [ask(plain, text, knobs) for text in (STORY, SUM, "Hello!")]
    engine().reset()
    disturbed = conversation()
    found = [ask(disturbed, STORY, knobs)]
    for question in (SUM, "Hello!"):
        held = engine().session.length
        last = Case("the last prompt", (*disturbed.messages[:-1],))
        it = sweep("budget=4,40", cases=(last, CASES[0]), repeats=1)
        for progress in it:
            if how != "whole" and progress.done == 2:
                if how == "given up":
                    break
                it.cancel()
        del it, progress
        assert engine().session.length == held
        found.append(ask(disturbed, question, knobs))
    assert [report.tokens for report in found] == [report.tokens for report in expected]
    if knobs.mode != "auto":
        assert [report.stats.lengths for report in found] == [report.stats.lengths for report in expected]
    assert [report.stats.reused_tokens for report in found] == [report.stats.reused_tokens for report in expected]
    assert [message.content for message in disturbed.messages] == [message.content for message in plain.messages]


def test_a_and_b_is_a_sweep_of_two() -> None:
    lab = laboratory()
    pair = (Arm("A", BASE.replace(mode="chain")), Arm("B", BASE.replace(mode="tree")))
    it = lab.experiment(Design(pair, (Case("last", (Message("user", STORY),)),), 2, base=0))
    list(it)
    assert [trial.setting for trial in it.result.trials] == [0, 1, 1, 0]
    assert {trial.report.mode for trial in it.result.trials} == {"chain", "tree"}


class TestCommand:
    @pytest.fixture(autouse=True)
    def small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "80")

    def run(self, *argv: str) -> int:
        return cli.main(["sweep", *argv, "--set", "max_tokens=6"])

    def test_table_and_curve(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        files = [tmp_path / f"out.{ending}" for ending in ("json", "csv", "png", "svg")]
        out = [word for path in files for word in ("--out", str(path))]
        assert self.run("budget=4,15,22", "--prompt", STORY, "--repeats", "1", *out) == 0
        stdout, stderr = capsys.readouterr()
        assert "difference" in stdout
        assert "accepted by depth, %" in stdout
        assert "tok/s by tree budget   ★ best" in stdout
        assert "3 runs: 1 prompt, 1 repeat, settings taking turns; warm-up not counted" in stdout
        assert "written" in stderr
        assert all(path.stat().st_size for path in files)

    def test_json_alone_on_stdout(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        prompts = tmp_path / "prompts.txt"
        prompts.write_text(f"{STORY}\n{SUM}\nHello!\n")
        argv = ("budget=4..12:8", "p_min=0,0.1", "--prompts", str(prompts), "--samples", "2", "--json")
        assert self.run(*argv, "--repeats", "1") == 0
        data = json.loads(capsys.readouterr().out)
        assert data["complete"] is True
        assert len(data["prompts"]) == 2
        assert data["rows"][0]["label"] == "tree budget 4, p_min 0"
        assert len(data["trials"]) == 8

    def test_ctrl_c_keeps_what_is_done(self, tmp_path: Path) -> None:
        path = tmp_path / "out.json"
        argv = ["sweep", "budget=4,12", "--prompt", STORY, "--repeats", "500", "--out", str(path)]
        command = [sys.executable, "-m", "dflash_tui", *argv, "--set", "max_tokens=6"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
            assert running.stderr is not None
            for line in running.stderr:
                if " 6 of 1000" in line:
                    running.send_signal(signal.SIGINT)
                    break
            stdout, stderr = running.communicate(timeout=600)
        assert running.returncode == 130
        assert "cut short: only runs that every setting has are compared" in stdout
        assert "interrupted after 6 runs" in stderr
        data = json.loads(path.read_text())
        assert data["complete"] is False
        assert len(data["trials"]) == 6

    @pytest.mark.parametrize(
        ("argv", "code", "message"),
        [
            (("budget=4",), 2, "expected one of --prompt TEXT and --prompts FILE"),
            (("budget=4", "--prompt", "a", "--prompts", "b"), 2, "expected one of --prompt TEXT"),
            (("budget=4", "--prompt", " "), 2, "the prompt is empty"),
            ((), 2, "NAME=VALUES"),
            (("budget=4", "--prompt", "a", "--repeats", "0"), 2, "expected a whole number from 1"),
            (("bugdet=4", "--prompt", "a"), 1, "did you mean budget"),
            (("bugdet=4",), 1, "did you mean budget"),  # before the prompt is asked for
            (("budget=300", "--prompt", "a"), 1, "expected 1 to 256"),
            (("mode=ar,tree", "budget=4", "--prompt", "a"), 1, "plain has no size"),
            (("mode=chain", "budget=40", "--prompt", "a"), 1, "expected 1 to 15"),
            (("budget=4", "--prompts", "none.jsonl"), 1, "none.jsonl cannot be read"),
            (("budget=4", "--prompt", "a", "--out", "x.pdf"), 1, "ends in .json, .csv, .png, .svg"),
        ],
    )
    def test_bad_input(
        self, argv: tuple[str, ...], code: int, message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        try:
            found = self.run(*argv)
        except SystemExit as exit:  # argparse
            found = exit.code
        assert found == code
        stderr = capsys.readouterr().err
        assert message in stderr
        assert "Traceback" not in stderr


@pytest.mark.parametrize("files", [False, full(True)], ids=["kinds", "files"])
def test_two_drafters_are_compared_by_prompt(files: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text(f"{STORY}\n{SUM}\n")
    target, rivals = ["--demo"], ["dflash", "mtp"]
    if files:
        target, rivals = ["--target", str(demo_target_path())], [str(demo_draft(Path(kind))) for kind in rivals]
    argv = [*target, "--draft", rivals[0], "--against", rivals[1], "--prompts", str(prompts)]
    assert cli.main(["bench", *argv, "--repeats", "1", "--set", "max_tokens=6", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [row["label"] for row in data["rows"]] == [Path(one).name for one in rivals]
    assert data["rows"][1]["versus"]["n"] == 2
    assert [row["other_text"] for row in data["rows"]] == [0, 0]
    assert all(row["accept_rate_by_depth"] for row in data["rows"])


def test_a_missing_first_drafter_is_refused_before_the_load(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dflash_tui.cli.loading.loaded_laboratory", None)
    with pytest.raises(SystemExit):
        cli.main(["bench", "--demo", "--against", "mtp"])
    assert "name the first one with --draft" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv", [["bench", "--samples", "3"], ["sweep", "budget=4", "--prompt", "a", "--samples", "3"]]
)
def test_samples_without_a_file_are_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main([*argv, "--samples", "3"])
    assert "--samples draws from a file of prompts" in capsys.readouterr().err


@pytest.mark.parametrize("axis", ["draft=auto,mtp", "by_parent=on,off", "mtp_depth=1,2", "draft_vocabulary=0,1024"])
def test_a_sweep_takes_every_parameter_of_a_drafter(axis: str) -> None:
    """Regression: the command line refused what the app's own sweep takes, before a pair was loaded."""
    assert settings(parse_axes([axis]), Knobs(), ANY_PAIR)
