"""The recipe's programs run as docs/demo.md and docs/notes write them."""

from __future__ import annotations

import json
import random
import re
import runpy
import string
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tools.train_demo import card, data, loop, prepare
from tools.train_demo import tokenizer as tok
from tools.train_demo.corpus import build

ROOT = Path(__file__).parents[2]
COMMANDS = sorted(
    {
        command.strip()
        for page in ("demo.md", "notes/policy.md", "notes/precision.md")
        for command in re.findall(
            r"python -m (tools\.train_demo\.[^`\n]*)", (ROOT / "docs" / page).read_text(encoding="utf-8")
        )
    }
)


def help_of(module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What `python -m module --help` prints."""
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__")
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_documented_commands(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module, *words = command.split()
    shown = help_of(module, monkeypatch, capsys)
    assert {word for word in words if word.startswith("--")} <= set(re.findall(r"--[a-z-]+", shown))


def test_every_program_is_documented() -> None:
    named = {command.split()[0].rpartition(".")[2] for command in COMMANDS}
    assert named == {
        "prepare",
        "train",
        "mtp",
        "dflash2",
        "choice",
        "fixed_modes",
        "caches",
        "facts",
        "report",
        "numerics",
        "record_drafts",
    }
    sources = (ROOT / "tools/train_demo").glob("*.py")
    assert named == {path.stem for path in sources if '__name__ == "__main__"' in path.read_text(encoding="utf-8")}
    page = (ROOT / "docs/demo.md").read_text(encoding="utf-8")
    [steps] = re.findall(r"```\n(python -m .*?)```", card.CARD, re.DOTALL)
    assert steps in page  # the page is made from CARD
    assert re.search(r"written by\n`python -m tools\.train_demo\.report --docs docs`", page)


def test_a_small_corpus_is_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first program for real, on fewer texts; the second reads what it wrote."""
    real = build.generated
    letters = random.Random(1)
    words = ["".join(letters.choices(string.ascii_lowercase, k=7)) for _ in range(6000)]  # enough for 8,192 tokens
    few = [replace(one.exchange, answer=" ".join(words[at::300])) for at, one in enumerate(build.sample("train", 300))]
    monkeypatch.setattr(build, "generated", lambda count, *rest: real(min(count, 300), *rest))
    monkeypatch.setattr(build, "sources", lambda _: few)
    prepare.main(["--documents", "60", "--context", "256", "--out", str(tmp_path)])
    facts = json.loads((tmp_path / "facts.json").read_text(encoding="utf-8"))
    corpus = data.load(tmp_path)
    assert len(corpus["made"]) == facts["documents"] > 40
    assert len(corpus["known"]) == facts["read documents"] > 200
    batch = loop.batches(lambda _: corpus["made"], batch=2, length=256, seed=0, device=torch.device("cpu"))
    _, tokens, seg = next(batch)
    ids, labels, same, answer = loop.split_tokens(tokens, seg)
    assert torch.equal(ids[:, 1:][same[:, :-1]], labels[:, :-1][same[:, :-1]])
    assert 0 < answer.sum() < same.sum()
    assert tok.load(tmp_path / "tokenizer.json").get_vocab_size() == tok.VOCAB > ids.max()
