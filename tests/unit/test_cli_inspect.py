"""`inspect`: what it says of golden files, in both shapes, and of drafters that do and do not fit."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_tui.cli import command_line as cli

DATA = Path(__file__).parents[1] / "golden" / "data"
TARGET, DRAFT = DATA / "tiny-Q4_K_M.gguf", DATA / "tiny-dflash"


def test_a_target_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", str(TARGET)]) == 0
    text = capsys.readouterr().out
    assert "qwen35: 3 gated delta net and 1 full-attention layers" in text
    assert "4 V heads of 128 over 2 K heads of 128" in text
    assert "feed-forward: Q4_K x10" in text
    assert "mixed types" in text
    assert "fits" not in text


def test_a_pair_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", str(TARGET), "--draft", str(DRAFT), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    model, draft = found["model"], found["draft"]
    assert model["config"]["architecture"] == "qwen35"
    assert model["bytes"] == sum(kind["bytes"] for group in model["types"].values() for kind in group.values())
    assert model["tensors"] == sum(kind["tensors"] for group in model["types"].values() for kind in group.values())
    assert draft["fits"] is True
    assert draft["reason"] == ""
    assert draft["config"]["block_size"] == 16


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    """A drafter that says it reads a layer which the target does not have."""
    folder = tmp_path / "stranger"
    shutil.copytree(DRAFT, folder)
    path = folder / "config.json"
    path.chmod(0o644)
    config = json.loads(path.read_text())
    config["dflash_config"]["target_layer_ids"][-1] = 40
    path.write_text(json.dumps(config))
    return folder


def test_a_drafter_that_does_not_fit(stranger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", str(TARGET), "--draft", str(stranger)]) == 1
    captured = capsys.readouterr()
    assert "fits          no" in captured.out
    [line] = captured.err.splitlines()
    assert "reads target layer 40" in line
    assert cli.main(["inspect", str(TARGET), "--draft", str(stranger), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["draft"]
    assert found["fits"] is False
    assert "reads target layer 40" in found["reason"]


def test_a_drafter_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", str(DRAFT), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["draft"]
    assert "fits" not in found["draft"]


def test_a_wrong_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = tmp_path / "x.gguf"
    wrong.write_bytes(b"PK\3\4 not a model")
    assert cli.main(["inspect", str(wrong)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1


def test_inspect_does_not_import_torch() -> None:
    code = (
        "import sys\nfrom dflash_tui.cli import main\n"
        f"assert main(['inspect', {str(TARGET)!r}, '--draft', {str(DRAFT)!r}]) == 0\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
