"""`--draft text` from the command line: a drafter without a file, named wherever the drafter is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dflash_core.knobs import Knobs
from dflash_core.limits import Limits
from dflash_tui.cli import command_line as cli
from dflash_tui.settings.config import load_config, remember

DATA = Path(__file__).parents[1] / "golden" / "data"
TARGET = ["--target", str(DATA / "tiny-Q4_K_M.gguf")]
BRIEF = ["--set", "max_tokens=12", "--set", "ignore_eos=on"]


def test_ask_says_which_drafter_ran_and_what_it_does_not_follow(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["ask", *TARGET, "--draft", "text", *BRIEF, "--set", "draft_window=64", "--json", "hi"]
    assert cli.main(asked) == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert told["drafter"] == "text"
    assert (told["mode"], told["reason"].split(":")[0]) in (("ar", "auto"), ("chain", "copying"))
    assert "note: draft_window: no effect with the text drafter" in err
    assert cli.main(["ask", *TARGET, *BRIEF, "--json", "hi"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert (plain["drafter"], plain["mode"]) == (None, "ar")
    assert plain["tokens"] == told["tokens"]


def test_a_sweep_of_what_it_does_not_follow_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sweep", *TARGET, "--draft", "text", "draft_window=0,64", "--prompt", "hi"]) == 1
    assert "draft_window changes nothing with the text drafter" in capsys.readouterr().err


def test_inspect_knows_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", TARGET[1], "--draft", "text", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["draft"]
    assert (told["kind"], told["fits"]) == ("text", True)
    assert cli.main(["inspect", TARGET[1], "--draft", "text"]) == 0
    assert "copies what followed" in capsys.readouterr().out


def test_it_is_remembered_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "config.toml"
    remember("target", tmp_path / "x.gguf", file)
    remember("draft", Path("text"), file)
    assert 'draft = "text"' in file.read_text()
    monkeypatch.setattr("dflash_tui.settings.config.user_file", lambda: file)
    assert load_config({}).settings.draft == Path("text")


def test_a_file_of_that_name_is_reached_by_its_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("not a drafter")
    assert cli.main(["ask", *TARGET, "--draft", str(tmp_path / "text"), "hi"]) == 1
    assert "text is not a GGUF file" in capsys.readouterr().err


def test_limits_name_what_it_follows() -> None:
    from dflash_core.drafters.text import CAPABILITIES

    Limits(CAPABILITIES, 4096).check(Knobs(budget=3), ["budget"])
