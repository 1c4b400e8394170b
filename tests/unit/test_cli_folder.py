"""The commands with a folder as the target: what it is, what it takes, that it answers, that it is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dflash_tui.application.hub.find import look
from dflash_tui.application.hub.found import Found
from dflash_tui.application.hub.header import HeaderCache
from dflash_tui.application.hub.walk import Place
from dflash_tui.cli.command_line import main
from support.folders import in_shards, quantised, saved, wide

SAMPLING = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "eos_token_id": [3, 5]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "Small-INT4"
    path.mkdir()
    quantised(path, saved(wide("qwen3", 0), path), ["gptq-128-signed", "fp8-row", "nvfp4-modelopt"], 0)
    (path / "generation_config.json").write_text(json.dumps(SAMPLING))
    return in_shards(path)


def told(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_inspect(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, "inspect", str(folder))["model"]
    assert found["format"] == "safetensors"
    assert found["config"]["architecture"] == "qwen3"
    assert {kind for group in found["types"].values() for kind in group} >= {"INT4S_128", "F8_E4M3", "NVFP4", "BF16"}
    assert found["sampling"]["plain"] == {"temperature": 0.6, "top_p": 0.95, "top_k": 20}
    assert main(["inspect", str(folder)]) == 0
    assert "safetensors" in capsys.readouterr().out


@pytest.mark.parametrize("machine", [["--device", "cpu"], ["--memory", "8GiB"]])
def test_plan(folder: Path, machine: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("cuda.bindings")
    found = told(capsys, "plan", "--target", str(folder), "--draft", "ngram", *machine)
    assert {one["name"]: one["bytes"] for one in found["components"]}["target"] > 1 << 20


def test_ask(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--device", "cpu", "--target", str(folder), "--draft", "ngram", "--set", "max_tokens=5", "hi"]
    assert main(["ask", *argv, "--set", "temperature=0"]) == 0
    plain = capsys.readouterr().out
    assert main(["ask", *argv, "--set", "temperature=0", "--set", "drafting=plain"]) == 0
    assert capsys.readouterr().out == plain


def test_the_list_of_models_has_it(folder: Path, tmp_path: Path) -> None:
    found = [
        one
        for one in look([Place("here", folder.parent)], HeaderCache(tmp_path / "headers.json"))
        if isinstance(one, Found)
    ]
    names = {(one.name, one.header.kind, one.header.architecture) for one in found}
    assert names == {("Small-INT4", "target", "qwen3")}
    read = [path for path in folder.iterdir() if path.suffix == ".safetensors" or path.name == "config.json"]
    assert found[0].size == sum(path.stat().st_size for path in read)


def test_a_folder_is_no_drafter(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ask", "--device", "cpu", "--target", str(folder), "--draft", str(folder), "hi"]) != 0
    assert "expected one of DFlashDraftModel" in capsys.readouterr().err
