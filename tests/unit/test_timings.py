"""Timings on a card that computes nothing, and what is stored of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
from dflash_core.backends.cuda import machine, runtime, timings
from dflash_core.backends.cuda.launch import Launch, Run
from dflash_core.backends.cuda.memory_estimator import Footprint
from dflash_core.backends.cuda.plan import Card
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.state import WIDTHS
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.backends.cuda.timings import Timings
from dflash_core.policy.costs import H200
from dflash_core.progress import silent
from support.kernel_variants import Pair, tiny
from support.recording_device import NamedUpload, RecordingDevice

CARD_DRAFTER = SimpleNamespace(on_device=True)
CARD = Card(132, 227 << 10, overlaps=True)
HERE = "the hash of this card"
NAME = "timings-6-A-card.json"


class Event:
    """A moment of the simulated time, in milliseconds."""

    def __init__(self, device: TimedDevice) -> None:
        self.device = device

    def record(self) -> None:
        self.at = self.device.now

    def wait(self) -> None:
        """Nothing to wait for."""

    def ms_since(self, earlier: Event) -> float:
        return self.at - earlier.at


class TimedDevice(RecordingDevice):
    """Every launch takes 10 microseconds."""

    def __init__(self) -> None:
        super().__init__(CARD)
        self.now, self.compiled = 0.0, 0
        facts = SimpleNamespace(name="A card", processors=132, arch="sm_90a")
        self.runtime = SimpleNamespace(card=facts, device=self)

    def bind(self, launches: Sequence[Launch], progress: Any = None) -> Run:
        self.compiled += len(launches)
        bound = super().bind(launches)

        def run() -> None:
            bound()
            self.now += len(launches) / 100

        return run


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timings, "driver_version", lambda: "580.1")
    monkeypatch.setattr(runtime, "Event", lambda of: Event(of.device))


def target_on(device: TimedDevice, pair: Pair) -> DeviceTarget:
    return DeviceTarget(device, NamedUpload(pair.target, device), pair.target_config)


def test_passes_are_timed_once_by_width(tmp_path: Path) -> None:
    pair, device = tiny(), TimedDevice()
    target = target_on(device, pair)
    session = CudaSession(target, context=256)
    found = timings.Timer(device, tmp_path)  # type: ignore[arg-type]
    passes = found.passes(session, silent)
    assert tuple(passes) == WIDTHS
    assert all(ms > 0 for ms in passes.values())
    assert session.length == 0
    compiled = device.compiled
    later = timings.Timer(device, tmp_path)  # type: ignore[arg-type]
    assert later.passes(session, silent) == passes
    assert device.compiled == compiled


def test_a_machine_learns_what_passes_of_a_large_target_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair, device = tiny(), TimedDevice()
    session = CudaSession(target_on(device, pair), context=256)
    footprint = Footprint(pair.target, pair.target_config, CARD)
    found = timings.Timer(device, tmp_path)  # type: ignore[arg-type]
    made = machine.CudaMachine(device, footprint, found)  # type: ignore[arg-type]
    made.learn(session, silent)
    assert made.passes == {}, "a small one is not worth the compiling"
    monkeypatch.setattr(machine, "MIN_LEARNED", 0)
    made.learn(session, silent)
    assert tuple(made.passes) == WIDTHS
    later = machine.CudaMachine(device, footprint, timings.Timer(device, tmp_path))  # type: ignore[arg-type]
    assert later.step_costs(CARD_DRAFTER) == H200, "nothing is known before the target is"
    later.recall(timings.target_name(session.target))
    shape = later.step_costs(CARD_DRAFTER)
    assert shape is not None
    assert shape.plain == made.passes[1]
    assert shape.widths == WIDTHS
    assert shape.steps[24] >= made.passes[24] + shape.draft
    assert shape.draft == pytest.approx(shape.plain * H200.draft / H200.plain)
    untimed = machine.CudaMachine(device, footprint)  # type: ignore[arg-type]
    untimed.learn(session, silent)
    assert untimed.passes == {}


@pytest.mark.parametrize(("ms", "wide"), [({256: 1e3, 1024: 4e3}, True), ({256: 1e-3, 1024: 2e-3}, False)])
def test_prompts_run_in_wide_passes_where_those_are_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ms: dict[int, float], wide: bool
) -> None:
    monkeypatch.setattr(machine, "MIN_LEARNED", 0)
    timed: list[int] = []
    monkeypatch.setattr(timings, "time_chunks", lambda session, progress: timed.append(1) or ms)
    pair, device = tiny(), TimedDevice()
    footprint = Footprint(pair.target, pair.target_config, CARD)
    for context, rows in ((512, 24), (2048, 64 if wide else 24), (2048, 64 if wide else 24)):
        session = CudaSession(target_on(device, pair), context=context)
        found = timings.Timer(device, tmp_path)  # type: ignore[arg-type]
        machine.CudaMachine(device, footprint, found).learn(session, silent)  # type: ignore[arg-type]
        assert session.pass_rows == rows
        assert (session.chunks_from is not None) == (rows == 64)
    assert timed == [1], "a short context has no such chunks; what is known is not timed again"


def some() -> Timings:
    return Timings(HERE, {"a target": {1: 5.5, 24: 6.9}}, {"a target": {256: 60.7, 1024: 121.0}})


def test_what_was_stored_comes_back(tmp_path: Path) -> None:
    assert timings.store(tmp_path / NAME, some()) == ""
    assert timings.load(tmp_path / NAME, HERE) == (some(), "")
    assert timings.load(tmp_path / "nowhere", HERE) == (Timings(HERE), "")


def test_stored_timings_are_for_this_card_driver_and_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = TimedDevice()
    first = timings.Timer(device, tmp_path)  # type: ignore[arg-type]
    assert timings.store(first.path, Timings(first.timings.identity, some().passes)) == ""
    assert first.path.name == NAME
    again = timings.Timer(device, tmp_path)  # type: ignore[arg-type]
    assert (again.timings.passes, again.note) == (some().passes, "")
    monkeypatch.setattr(timings, "driver_version", lambda: "590.2")
    newer = timings.Timer(device, tmp_path)  # type: ignore[arg-type]
    assert newer.timings.passes == {}
    assert newer.note == "passes are timed again: the driver, the kernels or the compiler changed"
    monkeypatch.setattr(timings, "driver_version", lambda: "580.1")
    device.runtime.card.processors = 66
    smaller = timings.Timer(device, tmp_path)  # type: ignore[arg-type]
    assert smaller.timings.identity not in (first.timings.identity, newer.timings.identity)


DAMAGED = ["", "{", "[]", "null", '{"identity": 3}', "huge", "[" * 100_000, "\x00\xff"]


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_file_is_measured_again(tmp_path: Path, text: str) -> None:
    path = tmp_path / NAME
    timings.store(path, some())
    path.write_text(path.read_text().replace("5.5", str(10**400)) if text == "huge" else text)
    assert timings.load(path, HERE) == (Timings(HERE), f"{NAME} is damaged; passes are timed again")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "timings of passes cannot be saved in " in timings.store(tmp_path / "file" / NAME, some())
