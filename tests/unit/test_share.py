"""What `tools.bench.steps --share` publishes: figures, and neither a user's words nor a machine's name."""

from __future__ import annotations

import getpass
import json
import platform
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
from tools.bench import share
from tools.bench.predict import counted_products, main, predict
from tools.bench.step_bench import StepReport, Timed

from dflash_core.backends.cuda.plan import Card
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.backends.cuda.timings import name_of, target_name
from dflash_core.backends.cuda.upload import Upload
from dflash_core.bench.statistics import summary
from dflash_core.bench.synthetic_models import SIZE_27B, TARGET_27B, target_types
from support.kernel_variants import PlanningDevice, header, tiny

SECRET = "private-name"
H200, H100 = Card(132, 227 << 10, overlaps=True), Card(132, 227 << 10, overlaps=True)


def target_on(card: Card, pair: Any) -> DeviceTarget:
    return DeviceTarget(PlanningDevice(card), Upload(pair.target), pair.target_config)


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(share, "driver_version", lambda: "580.1")
    pair = tiny()
    facts = SimpleNamespace(
        name="A card", capability=(8, 9), processors=128, arch="sm_89", total=24 << 30, bus="0000:1a:00.0"
    )
    device = SimpleNamespace(card=Card(128, 99 << 10), runtime=SimpleNamespace(card=facts))
    machine = SimpleNamespace(timer=None, passes={1: 20.0, 24: 22.0})
    return SimpleNamespace(
        device=device, machine=machine, model=target_on(device.card, pair), config=pair.target_config,
        weight_bytes=123, file=SimpleNamespace(path=Path(f"/home/{SECRET}/{SECRET}.gguf")),
    )  # fmt: skip


def report() -> StepReport:
    one = summary([1.0, 2.0, 3.0])
    case = Timed("plain", "plain", 1, 200, False, 1.0, one, {"verify": 1.9, "host": 0.1}, 0.05)
    return StepReport((case,), one, 2048, one, 0.9e12, 1000, (("target", 100, 101), ("CUDA context", 5, None)))


def test_only_figures_are_shared(target: Any) -> None:
    text = json.dumps(share.shared(target, report()))
    for word in (SECRET, platform.node(), getpass.getuser(), "/", "0000:1a", "gguf"):
        if len(word) > 3 or word == "/":
            assert word not in text, word
    found = json.loads(text)
    assert found["steps"][0]["wall_ms"]["median"] == 2.0
    assert found["card"]["multiprocessors"] == 128
    assert found["pass_ms"] == {"1": 20.0, "24": 22.0}
    assert found["format"] == 3


def test_the_27b_of_the_benchmark_is_known_by_its_shapes() -> None:
    file = header("27b", TARGET_27B.tensors(), target_types(TARGET_27B, SIZE_27B))
    model = DeviceTarget(PlanningDevice(H200), Upload(file), TARGET_27B)
    assert target_name(model) == name_of(counted_products())


@pytest.mark.parametrize(
    ("card", "bandwidth", "plain_ms"),
    [(H200, 4.62e12, 5.49), (H100, 3.2e12, 7.01)],
    ids=["H200", "H100"],
)
def test_the_prediction_is_near_what_was_measured(card: Card, bandwidth: float, plain_ms: float) -> None:
    """The two cards whose steps are known; kernels around the weights become faster, so a step may take less."""
    assert 0.7 * plain_ms < predict(card, bandwidth).plain_ms < 1.1 * plain_ms


def test_slower_memory_and_kernels_one_by_one_take_longer() -> None:
    overlapping, alone = Card(82, 99 << 10, overlaps=True), Card(82, 99 << 10)
    fast, slow = predict(overlapping, 1e12), predict(alone, 1e12)
    assert slow.plain_ms > fast.plain_ms
    assert slow.tree_ms > fast.tree_ms > fast.plain_ms
    assert predict(alone, 0.5e12).plain_ms > 1.6 * slow.plain_ms


def test_a_prediction_from_another_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Regression: a traceback."""
    (tmp_path / "steps.json").write_text('{"rows": []}')
    monkeypatch.setattr("sys.argv", ["predict", str(tmp_path / "steps.json")])
    with pytest.raises(SystemExit) as refusal:
        main()
    assert refusal.value.code == 2
    assert "describes no card, expected what tools.bench.steps --share has written" in capsys.readouterr().err
