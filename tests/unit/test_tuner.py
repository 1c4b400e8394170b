"""The tuner on a card that computes nothing, whose launches take the time that a test sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
from dflash_core.backends.cuda import machine, tuner, tuning
from dflash_core.backends.cuda.expert_plan import ExpertProduct
from dflash_core.backends.cuda.footprint import Footprint
from dflash_core.backends.cuda.launch import Launch, Run
from dflash_core.backends.cuda.plan import Card, Way
from dflash_core.backends.cuda.projection import Projection
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.state import WIDTHS
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.policy.costs import H200
from dflash_core.progress import silent
from support.kernel_variants import Pair, tiny, tiny_experts
from support.recording_device import NamedUpload, RecordingDevice

CARD_DRAFTER = SimpleNamespace(on_device=True)
CARD = Card(132, 227 << 10, overlaps=True)


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
    """`costs`: microseconds of a matmul by a define that it has, the first that fits; 10 for any other."""

    def __init__(self, costs: dict[str, float], driver: str = "580.1") -> None:
        super().__init__(CARD)
        self.now, self.costs, self.compiled = 0.0, costs, 0
        self.us_of: Callable[[Launch], float | None] = lambda launch: None  # what is asked first
        facts = SimpleNamespace(name="A card", processors=132, arch="sm_90a")
        self.runtime = SimpleNamespace(card=facts, event=lambda: Event(self))

    def bind(self, launches: Sequence[Launch], progress: Any = None) -> Run:
        self.compiled += len(launches)
        bound = super().bind(launches)

        def run() -> None:
            bound()
            self.now += sum(self._us(launch) for launch in launches) / 1e3

        return run

    def _us(self, launch: Launch) -> float:
        if launch.name == "pause":
            return tuner.PAUSE_US
        if (us := self.us_of(launch)) is not None:
            return us
        return next((us for define, us in self.costs.items() if define in launch.defines), 10.0)


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "LEAST_BYTES", 0)
    monkeypatch.setattr(tuner, "driver_version", lambda: "580.1")


def target_on(device: TimedDevice, pair: Pair) -> DeviceTarget:
    return DeviceTarget(device, NamedUpload(pair.target, device), pair.target_config)


def test_what_is_faster_is_taken_kept_and_not_timed_again(tmp_path: Path) -> None:
    pair, device = tiny(), TimedDevice({"CHUNK": 6.0})
    target = target_on(device, pair)
    found = tuner.Tuner(device, tmp_path)  # type: ignore[arg-type]
    found.run(tuner.products_of(target), silent)
    products = tuner.products_of(target)
    assert found.tuning.choices.keys() == {str(product) for product in products}
    for choice in found.tuning.choices.values():
        assert choice.way.chunked
        assert (choice.us, choice.default_us) == pytest.approx((6, 10)), "pauses are no part of it"
    name = tuner.target_name(target)
    assert found.card(name) == CARD, "alone is not in a pass"
    found.confirm(target, silent)
    assert found.tuning.gains[name] > 0.02
    assert "products timed in " in found.report(name)
    assert found.report(name).endswith(": taken")
    tuned = found.card(name)
    tuner.replan(target, tuned)
    inputs, outputs = target.projections()
    assert all(projection.plan.chunked(24) for projection in (*inputs, *outputs))

    again = TimedDevice({})
    later = tuner.Tuner(again, tmp_path)  # type: ignore[arg-type]
    other = target_on(again, pair)
    later.run(tuner.products_of(other), silent)
    later.confirm(other, silent)
    assert again.compiled == 0, "what is known is neither compiled nor timed"
    assert later.card(name) == tuned
    assert later.report(name).startswith(f"{len(products)} products timed before; ")


def test_what_does_not_gain_in_a_pass_is_not_taken(tmp_path: Path) -> None:
    """Faster alone, and slower among the kernels of a pass: here because of a kernel that is not a product's."""
    pair, device = tiny(), TimedDevice({"CHUNK": 6.0})
    target = target_on(device, pair)
    found = tuner.Tuner(device, tmp_path)  # type: ignore[arg-type]
    found.run(tuner.products_of(target), silent)
    device.costs = {"CHUNK": 9.99}
    device.us_of = lambda launch: 0.0 if launch.name == "swiglu" else None  # a launch that products in chunks need more
    found.confirm(target, silent)
    name = tuner.target_name(target)
    assert 0 < found.tuning.gains[name] < 0.02
    assert found.card(name) == CARD
    assert found.report(name).endswith(": plans stay as they are")


def test_no_gain_no_change(tmp_path: Path) -> None:
    device = TimedDevice({})
    found = tuner.Tuner(device, tmp_path)  # type: ignore[arg-type]
    found.run(tuner.products_of(target_on(device, tiny())), silent)
    assert found.tuning.choices
    found.confirm(target_on(device, tiny()), silent)
    assert found.tuning.ways == ()
    assert not found.tuning.gains, "there is nothing to confirm"
    assert found.note == ""


def test_another_driver_times_again_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = TimedDevice({"CHUNK": 6.0})
    first = tuner.Tuner(device, tmp_path)  # type: ignore[arg-type]
    first.run(tuner.products_of(target_on(device, tiny())), silent)
    monkeypatch.setattr(tuner, "driver_version", lambda: "590.2")
    later = tuner.Tuner(TimedDevice({}), tmp_path)  # type: ignore[arg-type]
    assert later.note == "kernels were timed under driver 580.1, this is 590.2; they are timed again"
    assert not later.tuning.choices


def test_products_by_experts_are_timed_too(tmp_path: Path) -> None:
    """One row and many, as dense products; what is chosen is in the plans of every layer, and changes nothing else."""
    pair, device = tiny_experts(), TimedDevice({})
    device.costs = {"PER_SM": 9.0}
    target = target_on(device, pair)
    found = tuner.Tuner(device, tmp_path)  # type: ignore[arg-type]
    device.us_of = lambda launch: 5.0 if "PER_SM" in launch.defines and launch.defines["WARPS"] == 16 else None
    found.run(tuner.products_of(target), silent)
    experts = [one for one in tuner.products_of(target) if isinstance(one, ExpertProduct)]
    assert len(experts) == 2, "gate and up; down"
    for product in experts:
        choice = found.tuning.choices[str(product)]
        assert choice.way == Way(warps=16)
        assert (choice.us, choice.default_us) == pytest.approx((5, 9))
    found.confirm(target, silent)
    tuned = found.card(tuner.target_name(target))
    tuner.replan(target, tuned)
    layer = target.blk[0].ffn
    for projection in (layer.inputs, layer.out):
        assert (projection.plan.warps, projection.plan.grid) == (16, CARD.multiprocessors)
    assert all(p.plan.way == Way() for group in target.projections() for p in group if isinstance(p, Projection))
    later = tuner.Tuner(TimedDevice({}), tmp_path)  # type: ignore[arg-type]
    assert later.card(tuner.target_name(target)) == tuned


def test_a_prediction_counts_what_the_tuned_plan_takes() -> None:
    pair, device = tiny(), TimedDevice({})
    target = target_on(device, pair)
    footprint = Footprint(pair.target, pair.target_config, CARD)
    ways = tuple(
        (str(product), Way(split_k=1 if group[0].split_k > 1 else 2))
        for product, group in tuner.products_of(target).items()
        if group[0].plan.tiles_k > 1
    )
    tuned = replace(CARD, ways=ways)
    footprint.replan(tuned)
    wanted = Footprint(pair.target, pair.target_config, tuned).sequence(256, drafted=False).scratch
    assert footprint.sequence(256, drafted=False).scratch == wanted
    groups = footprint.target.projections()
    assert {p.plan.way for group in groups for p in group if p.plan.tiles_k > 1} <= {way for _, way in ways}


def test_passes_are_timed_once_by_width(tmp_path: Path) -> None:
    pair, device = tiny(), TimedDevice({})
    target = target_on(device, pair)
    session = CudaSession(target, context=256)
    found = tuner.Tuner(device, tmp_path)  # type: ignore[arg-type]
    passes = found.passes(session, silent)
    assert tuple(passes) == WIDTHS
    assert all(ms > 0 for ms in passes.values())
    assert session.length == 0
    compiled = device.compiled
    later = tuner.Tuner(device, tmp_path)  # type: ignore[arg-type]
    assert later.passes(session, silent) == passes
    assert device.compiled == compiled


def test_a_machine_learns_what_passes_of_a_large_target_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair, device = tiny(), TimedDevice({})
    session = CudaSession(target_on(device, pair), context=256)
    footprint = Footprint(pair.target, pair.target_config, CARD)
    found = tuner.Tuner(device, tmp_path)  # type: ignore[arg-type]
    made = machine.CudaMachine(device, footprint, found)  # type: ignore[arg-type]
    made.learn(session, silent)
    assert made.passes == {}, "a small one is not worth the compiling"
    monkeypatch.setattr(machine, "LEAST_LEARNED", 0)
    made.learn(session, silent)
    assert tuple(made.passes) == WIDTHS
    later = machine.CudaMachine(device, footprint, tuner.Tuner(device, tmp_path))  # type: ignore[arg-type]
    assert later.step_costs(CARD_DRAFTER) == H200, "nothing is known before the target is"
    later.recall(tuner.target_name(session.target))
    shape = later.step_costs(CARD_DRAFTER)
    assert shape is not None
    assert shape.plain == made.passes[1]
    assert shape.widths == WIDTHS
    assert shape.steps[24] >= made.passes[24] + shape.draft
    assert shape.draft == pytest.approx(shape.plain * H200.draft / H200.plain)
    untuned = machine.CudaMachine(device, footprint)  # type: ignore[arg-type]
    untuned.learn(session, silent)
    assert untuned.passes == {}


@pytest.mark.parametrize(("ms", "wide"), [({256: 1e3, 1024: 4e3}, True), ({256: 1e-3, 1024: 2e-3}, False)])
def test_prompts_run_in_wide_passes_where_those_are_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ms: dict[int, float], wide: bool
) -> None:
    monkeypatch.setattr(machine, "LEAST_LEARNED", 0)
    timed: list[int] = []
    monkeypatch.setattr(tuner, "time_chunks", lambda session, progress: timed.append(1) or ms)
    pair, device = tiny(), TimedDevice({})
    footprint = Footprint(pair.target, pair.target_config, CARD)
    for context, rows in ((512, 24), (2048, 64 if wide else 24), (2048, 64 if wide else 24)):
        session = CudaSession(target_on(device, pair), context=context)
        found = tuner.Tuner(device, tmp_path)  # type: ignore[arg-type]
        machine.CudaMachine(device, footprint, found).learn(session, silent)  # type: ignore[arg-type]
        assert session.pass_rows == rows
        said = found.report(tuner.target_name(session.target))
        assert said.endswith("; prompts run in passes of 64 rows") == (rows == 64)
        assert (session.chunks_from is not None) == (rows == 64)
    assert timed == [1], "a short context has no such chunks; what is known is not timed again"
