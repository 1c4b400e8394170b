"""`--draft ngram` from the command line: a drafter without a file, named wherever the drafter is named."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dflash_core.config import unused_heads
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.drafters.draft import several
from dflash_core.drafters.registry import missing, parts
from dflash_core.knobs import Knobs
from dflash_core.limits import Limits
from dflash_tui.application.settings.config import load_config, remember
from dflash_tui.cli import command_line as cli
from support.golden import COMMITTED as DATA

TARGET = ["--target", str(DATA / "tiny-Q4_K_M.gguf")]
BRIEF = ["--set", "max_tokens=12", "--set", "ignore_eos=on"]


def test_ask_says_which_drafter_ran_and_what_it_does_not_follow(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["ask", *TARGET, "--draft", "ngram", *BRIEF, "--set", "draft_window=64", "--json", "hi"]
    assert cli.main(asked) == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert told["drafter"] == "ngram"
    assert (told["mode"], told["reason"].split(":")[0]) in (
        ("plain", "nothing to copy that pays"),
        ("chain", "copying"),
    )
    assert "note: draft_window: no effect on the ngram drafter" in err
    assert cli.main(["ask", *TARGET, *BRIEF, "--json", "hi"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert (plain["drafter"], plain["mode"]) == (None, "plain")
    assert plain["tokens"] == told["tokens"]


def test_a_sweep_of_what_it_does_not_follow_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sweep", *TARGET, "--draft", "ngram", "draft_window=0,64", "--prompt", "hi"]) == 1
    assert "draft_window has no effect on the ngram drafter" in capsys.readouterr().err


def test_inspect_knows_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", TARGET[1], "--draft", "ngram", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["draft"]
    assert (told["kind"], told["fits"]) == ("ngram", True)
    assert cli.main(["inspect", TARGET[1], "--draft", "ngram"]) == 0
    assert "copies what followed" in capsys.readouterr().out


def test_it_is_remembered_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "config.toml"
    remember("target", tmp_path / "x.gguf", file)
    remember("draft", Path("ngram"), file)
    assert 'draft = "ngram"' in file.read_text()
    monkeypatch.setattr("dflash_tui.application.settings.config.user_file", lambda: file)
    assert load_config({}).settings.draft == Path("ngram")


def test_a_file_of_that_name_is_reached_by_its_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ngram").write_text("not a drafter")
    assert cli.main(["ask", *TARGET, "--draft", str(tmp_path / "ngram"), "hi"]) == 1
    assert "ngram is not a GGUF file" in capsys.readouterr().err


def test_limits_name_what_it_follows() -> None:
    from dflash_core.drafters.ngram import CAPABILITIES

    Limits(CAPABILITIES, 4096).check(Knobs(drafting="auto up to 3"), ["budget"])


def test_several_are_found_from_the_folder_that_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of kinds stay; each file gets its whole path, also after a kind, and where its own name contains a plus."""
    for name in ("a.gguf", "b+c.gguf"):
        (tmp_path / name).touch()
    file, elsewhere = tmp_path / "config.toml", tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr("dflash_tui.application.settings.config.user_file", lambda: file)
    asked, whole = "mtp+a.gguf+b+c.gguf+ngram", f"mtp+{tmp_path}/a.gguf+{tmp_path}/b+c.gguf+ngram"
    monkeypatch.chdir(elsewhere)
    file.write_text(f'target = "x.gguf"\ndraft = "{asked}"\n')
    assert str(load_config({}).settings.draft) == whole
    monkeypatch.chdir(tmp_path)
    remember("draft", Path(asked), file)
    assert f'draft = "{whole}"' in file.read_text()
    assert parts(whole) == ("mtp", f"{tmp_path}/a.gguf", f"{tmp_path}/b+c.gguf", "ngram")
    assert missing(whole) is None
    assert missing("mtp+gone.gguf") == "gone.gguf"
    assert missing("a.gguf+") == "+", "nothing after the plus"


def test_a_drafter_that_is_not_among_several_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    target = str(DATA / "targets" / "q35moe-mtp-Q8_0.gguf")
    drafters = ["--draft", "mtp", "--draft", "ngram", "--set", "draft=dflash2"]
    assert cli.main(["ask", "--target", target, *drafters, *BRIEF, "hi"]) == 0
    assert "note: draft=dflash2: not loaded; the choices are mtp, ngram" in capsys.readouterr().err


@pytest.mark.parametrize("beside", ["mtp", "ngram"])
def test_a_head_that_drafts_among_others_is_not_called_unused(beside: str) -> None:
    config: Any = SimpleNamespace(nextn_predict_layers=1)
    said = {"dflash": ("a note", unused_heads(config)), beside: ()}
    drafts: Any = [
        SimpleNamespace(capabilities=Capabilities(kind, 4), notes=notes, config=None, files=(), weight_bytes=0)
        for kind, notes in said.items()
    ]
    target: Any = SimpleNamespace(config=config)
    assert several(target, drafts).notes == said["dflash"][: 1 if beside == "mtp" else 2]
