"""docs/python-api.md: its examples run, one after the other, on the demo pair; the public names are shown."""

from __future__ import annotations

import pydoc
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dflash_core
from dflash_core.demo import demo_draft_path, demo_target_path

PAGE = Path(__file__).parents[2] / "docs" / "python-api.md"
CONSTRAINED = PAGE.with_name("tools-and-schemas.md")


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(examples) == 6
    names: dict[str, Any] = {}
    printed = []
    for example in examples:
        exec(compile(example, str(PAGE), "exec"), names)
        printed.append(capsys.readouterr().out)
    answer, early, events, drafters, logits, steps = printed
    [constrained] = re.findall(r"```python\n(.*?)```", CONSTRAINED.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(constrained, str(CONSTRAINED), "exec"), names)
    assert capsys.readouterr().out in ("yes\n", "no\n")
    assert re.search(r"\w+.*\n\d+ tok/s, \d+\.\d\d tokens a step\n$", answer, re.DOTALL)
    assert re.search(r"^\d+ '.*\..*'\ncancelled\n$", early, re.MULTILINE)
    assert events.startswith("PrefillEvent (")
    assert "StepEvent (" in events
    assert re.fullmatch(r"(demo-\S+\.gguf \d+\.\d\d tokens a step\n){2}", drafters)
    assert re.fullmatch(r"target \(1, 8192\) features \(1, \d+\)\ndraft \(15, 8192\)\n", logits)
    assert re.fullmatch(r"(\d+ of \d+ \[.*\]\n)+", steps)


def test_features_are_those_of_a_verify() -> None:
    target = dflash_core.load_target(demo_target_path(), device="cpu")
    session = target.session(dflash_core.load_draft(demo_draft_path(), target))
    session.prefill([1, 2])
    with pytest.raises(dflash_core.DFlashError, match="expected a drafter that reads them and a verify"):
        session.features()


def test_the_public_names_are_shown() -> None:
    """`dir` and `help` show them; the import itself does not load torch."""
    code = "import sys, dflash_core; print(*dir(dflash_core)); print('torch' in sys.modules)"
    shown, torch = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.splitlines()
    assert [name for name in shown.split() if not name.startswith("__")] == sorted(dflash_core.__all__)
    assert torch == "False"
    text = pydoc.render_doc(dflash_core, renderer=pydoc.plaintext)
    for name in dflash_core.__all__:
        assert re.search(rf"^    (class )?{name}[ (]", text, re.MULTILINE), name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        dflash_core.nothing  # noqa: B018
