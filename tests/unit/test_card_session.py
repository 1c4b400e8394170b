"""The runner of measurements on a card: its order, its limit of time, and what it writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest
from tools.bench import card_session, dead_drafter
from tools.bench.card_session import Measurement, Run, run_in, session

from dflash_core.demo import demo_draft_path, demo_mtp_path
from dflash_core.formats.gguf import open_gguf


def test_checkouts_take_turns_and_what_does_not_fit_is_named() -> None:
    measurements = [
        Measurement("a", 10, ("a",), compares=True),
        Measurement("b", 30, ("b",)),
        Measurement("c", 5, ("c",)),
    ]
    spent: list[str] = []

    def run(measurement: Measurement, checkout: str, seconds: float) -> Run:
        spent.append(f"{measurement.name} {checkout}")
        return Run(measurement.name, checkout, 0, seconds, "")

    done = list(session(measurements, lambda: 65.0 - 10 * len(spent), run, compare=True))
    assert spent == ["a new", "a old", "a old", "a new", "c new"]
    assert [one if isinstance(one, str) else one.name for one in done] == ["a", "a", "a", "a", "b", "c"]


def test_a_run_without_a_baseline_is_one_run() -> None:
    assert card_session.turns(Measurement("a", 1, (), compares=True), compare=False) == ("new",)


def test_the_output_of_a_failed_run_is_written(tmp_path: Path) -> None:
    run = run_in(tmp_path, tmp_path, Measurement("x", 60, ("-c", "print('figure'); raise SystemExit(3)")), "new", 60.0)
    assert run.code == 3
    assert "figure" in (tmp_path / run.output).read_text()


def test_a_run_that_is_stopped_has_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*args: Any, stdout: IO[str], timeout: float, **options: Any) -> None:
        stdout.write("figure")
        raise subprocess.TimeoutExpired("x", timeout)

    monkeypatch.setattr(card_session.subprocess, "run", stopped)
    run = run_in(tmp_path, tmp_path, Measurement("x", 60, ()), "new", 60.0)
    assert run.code is None
    assert (tmp_path / run.output).read_text() == "figure"


def test_without_a_card_it_ends_at_once(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tools.bench.card_session", "--out", str(tmp_path / "out"), "--minutes", "1"],
        capture_output=True, text=True, cwd=card_session.HERE, env={"CUDA_VISIBLE_DEVICES": ""}, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert ended.stderr.startswith("the card cannot be used: exit code")
    assert not (tmp_path / "out" / "session.jsonl").exists()


def test_every_command_names_a_module_of_the_checkout() -> None:
    for measurement in card_session.MEASUREMENTS:
        module = card_session.HERE / (measurement.command[1].replace(".", "/"))
        assert module.with_suffix(".py").exists() or module.is_dir(), measurement.name
        json.dumps(measurement.command)


def test_a_dead_drafter_differs_from_the_demo_s_in_one_tensor(tmp_path: Path) -> None:
    sources = {"mtp": demo_mtp_path(), "dflash": demo_draft_path()}
    for kind, path in dead_drafter.written(tmp_path).items():
        before, after = sources[kind].read_bytes(), path.read_bytes()
        infos = open_gguf(path).tensors.values()
        (changed,) = [
            info for info in infos
            if before[info.offset : info.offset + info.n_bytes] != after[info.offset : info.offset + info.n_bytes]
        ]  # fmt: skip
        assert changed.name in ("blk.8.nextn.eh_proj.weight", "output_norm.weight")
        assert before[: changed.offset] == after[: changed.offset]
        assert before[changed.offset + changed.n_bytes :] == after[changed.offset + changed.n_bytes :]
        assert any(after[changed.offset : changed.offset + changed.n_bytes]) == (kind == "dflash")
