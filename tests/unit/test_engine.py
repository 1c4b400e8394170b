"""The public interface: loading, the engine around a real pair, its memory, and what importing it costs."""

from __future__ import annotations

import itertools
import json
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dflash_core import Engine, Knobs, load_draft, load_target
from dflash_core import engine as engine_module
from dflash_core.backends.cpu.session import CpuSession
from dflash_core.backends.cpu.target import CpuTarget
from dflash_core.engine import load_pair
from dflash_core.errors import (
    Code,
    ContextError,
    DeviceError,
    FormatError,
    MismatchError,
    NumericsError,
    OutOfMemoryError,
    UnsupportedError,
)
from dflash_core.events import PrefillEvent, StepEvent
from dflash_core.loading import estimator_of, open_target
from dflash_core.memory import Component, MemoryBreakdown, check, gib, host_memory
from support.behind import draft_logits
from support.golden import draft, golden, goldens, target
from support.processes import run_python


def test_importing_the_core_is_cheap() -> None:
    code = "import sys, dflash_core; print(*[m for m in ('torch', 'gguf', 'transformers') if m in sys.modules])"
    assert run_python(code) == ""


def test_the_public_interface_as_documented() -> None:
    loaded = load_target(golden("tiny-F16.gguf"), device="cpu")
    drafter = load_draft(str(golden("tiny-dflash")), target=loaded)
    assert isinstance(loaded, CpuTarget)
    ids = [5, 6, 7, 8]
    logits = loaded.logits(ids)
    assert logits.shape == (4, 768)
    assert logits.dtype == np.float32
    hidden = loaded.hidden(ids, layers=[0, 2])
    assert hidden.shape == (4, 512)
    assert np.array_equal(hidden[:, 256:], loaded.hidden(ids, layers=[2]))
    assert np.array_equal(loaded.hidden(ids, layers=[2, 0])[:, :256], hidden[:, 256:])
    assert draft_logits(drafter, hidden, anchor=9).shape == (15, 768)
    engine = Engine(loaded, drafter)
    events = list(engine.generate(ids, Knobs(drafting="tree 22", temperature=0, max_tokens=12)))
    assert isinstance(events[0], PrefillEvent)
    assert all(isinstance(event, StepEvent) for event in events[1:])
    plain = list(Engine(loaded).generate(ids, Knobs(drafting="tree 22", max_tokens=12)))
    assert [t for e in plain for t in e.tokens] == [t for e in events for t in e.tokens]
    assert {event.mode for event in plain} == {"plain"}
    assert all(len(event.tokens) == 1 for event in plain)


def test_prefix_reuse_gives_the_same_answer_as_a_fresh_prefill() -> None:
    """A second turn after each kind of stop equals a fresh run of the same ids."""
    engine, fresh = Engine(target(), draft()), Engine(target(), draft())
    knobs = Knobs(max_tokens=10, ignore_eos=True)
    first = list(range(40, 70))
    for cut in (1, 5, 10):
        events = list(engine.generate(first, knobs.replace(max_tokens=cut), keep=(25,)))
        answer = [token for event in events for token in event.tokens]
        for second in ([*first, *answer, 9, 10], [*first[:26], 3, 4], first):
            ours = [event.tokens for event in engine.generate(second, knobs)]
            fresh.reset()
            assert ours == [event.tokens for event in fresh.generate(second, knobs)]


def test_ids_and_layers_may_be_arrays() -> None:
    ids, layers = np.array([5, 6, 7]), np.array([1, 3])
    assert np.array_equal(target().hidden(ids, layers), target().hidden([5, 6, 7], [1, 3]))
    assert np.array_equal(target().logits(ids), target().logits([5, 6, 7]))


def test_a_missing_layer_is_refused() -> None:
    with pytest.raises(MismatchError, match=r"layer 4 does not exist; this target has 0\.\.3"):
        target().hidden([1], layers=[4])
    with pytest.raises(MismatchError, match="no layer named"):
        target().hidden([1], layers=[])


@pytest.mark.parametrize("ids", [[], [-1], [768], [3, 100_000], "a text", [1.5], None])
def test_ids_outside_the_vocabulary_are_refused(ids: Any) -> None:
    refusing: list[Callable[[], object]] = [
        lambda: target().logits(ids),
        lambda: target().hidden(ids, [0]),
        lambda: Engine(target()).generate(ids, Knobs()),
    ]
    for call in refusing:
        with pytest.raises(ContextError):
            call()


def test_a_drafter_of_another_target_is_refused() -> None:
    other = load_target(golden("tiny-F16.gguf"))
    with pytest.raises(MismatchError, match="loaded for another target"):
        Engine(other, draft())


def test_what_does_not_fit_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from dflash_core.memory import HostMemory

    monkeypatch.setattr("dflash_core.memory.host_memory", lambda: HostMemory(8 << 30, 1 << 20, 1 << 20))
    with pytest.raises(OutOfMemoryError) as refusal:
        load_target(golden("tiny-F16.gguf"), packed=False)
    for part in ("target", "is free", "keep the weights packed", "take a model of at most", "close programs"):
        assert part in str(refusal.value)
    assert load_target(golden("tiny-F16.gguf")).packed, "where floats do not fit, weights stay packed"
    with pytest.raises(OutOfMemoryError, match="a context of 512 positions fits"):
        Engine(target(), context_length=4096)


def test_a_cut_context_is_said() -> None:
    notes = Engine(target(), context_length=100).notes
    assert any("100 positions here, of the model's 4,096" in note for note in notes)
    for wrong in (0, -5, 1):
        with pytest.raises(ContextError, match="at least 2"):
            Engine(target(), context_length=wrong)
        with pytest.raises(ContextError, match="at least 2"):  # before anything is read
            load_pair("nowhere.gguf", context_length=wrong)


def test_a_context_that_the_model_does_not_have_is_said() -> None:
    assert "99,999 positions were requested, the model has 4,096" in Engine(target(), context_length=99_999).notes
    assert not any("requested" in note for note in Engine(target(), context_length=4096).notes)


def test_an_mtp_block_is_not_counted() -> None:
    for path in goldens("tiny-mtp-F16.gguf"):
        assert load_target(path).weight_bytes == target().weight_bytes


def test_headers_are_judged_before_weights_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(CpuTarget, "load", lambda *_, **__: pytest.fail("weights were read"))
    config = json.loads((golden("tiny-dflash") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_target_layers": 9}))
    (tmp_path / "model.safetensors").symlink_to(golden("tiny-dflash") / "model.safetensors")
    with pytest.raises(MismatchError, match="made for 9 target layers, expected 4"):
        load_pair(golden("tiny-F16.gguf"), tmp_path)


def test_the_prediction_follows_the_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    monkeypatch.setattr("dflash_core.backends.cpu.target.time_step", lambda model, count: rows.append(count) or 0.0)
    engine = Engine(target(), draft())
    for knobs in (
        Knobs(drafting="plain"),
        Knobs(drafting="chain 200"),
        Knobs(drafting="chain 4"),
        Knobs(drafting="auto up to 40"),
    ):
        engine.predicted_step_seconds(knobs)
    Engine(target()).predicted_step_seconds(Knobs(drafting="auto up to 40"))
    assert rows == [1, 16, 5, 41, 1]


@pytest.mark.parametrize("damage", ["nan", "inf"])
@pytest.mark.parametrize("where", ["target", "drafter"])
def test_damaged_weights_are_named(damage: str, where: str) -> None:
    """A damaged target ends the answer; without a damaged drafter it goes on as plain decoding."""
    broken = load_target(golden("tiny-F16.gguf"))
    drafter = load_draft(golden("tiny-dflash"), broken)
    matrix = broken.model.output if where == "target" else drafter.model.fc
    matrix.weight[3] = float(damage)  # type: ignore[attr-defined]
    said = f"the {where} produced numbers that are not finite at position"
    for knobs in (Knobs(), Knobs(drafting="chain 22"), Knobs(temperature=0.8, top_k=5, min_p=0.1)):
        engine, ids = Engine(broken, drafter), list(range(20))
        if where == "target":
            with pytest.raises(NumericsError, match=said):
                list(engine.generate(ids, knobs))
            continue
        knobs = knobs.replace(max_tokens=20)
        found = list(engine.generate(ids, knobs))
        plain = list(Engine(broken).generate(ids, knobs.replace(mode="plain")))
        assert [token for event in found for token in event.tokens] == [token for one in plain for token in one.tokens]
        assert {event.mode for event in found[1:]} == {"plain"}
        left_out = "dflash is left out, its numbers are not finite; no other drafter is loaded"
        assert {event.reason for event in found[-5:]} == {left_out}
        (note,) = engine.drafter_notes
        assert note.startswith(f"dflash is left out: {said}")


def test_devices() -> None:
    for load in (load_target, load_pair, estimator_of):
        with pytest.raises(DeviceError, match=r"[^,]+, or run it on the CPU$") as refusal:
            load(golden("tiny-F16.gguf"), device="cuda")
        assert refusal.value.code is Code.NO_DEVICE
    with pytest.raises(DeviceError, match="expected auto, cpu or cuda"):
        load_target(golden("tiny-F16.gguf"), device="tpu")


def test_a_drafter_is_no_target() -> None:
    drafters = golden("tiny-dflash") / "model.safetensors"
    with pytest.raises(Exception, match="safetensors"):
        load_target(drafters)
    with pytest.raises(UnsupportedError):
        load_draft(golden("tiny-F16.gguf"), target())


def test_progress_and_notes() -> None:
    seen: list[tuple[str, float]] = []
    engine = load_pair(golden("tiny-F16.gguf"), golden("tiny-dflash"), progress=lambda *step: seen.append(step))
    assert seen[0][0].startswith("reading")
    assert seen[-1] == ("ready", 1.0)
    assert all(0 <= done <= 1 for _, done in seen)
    assert engine.draft is not None
    assert engine.notes == engine.draft.notes


def test_the_context_is_the_models_at_most() -> None:
    assert Engine(target(), context_length=10**9).context_length == target().config.context_length
    assert Engine(target(), context_length=100).context_length == 100


def test_the_memory_breakdown_names_every_component() -> None:
    engine = Engine(target(), draft(), context_length=512)
    found = engine.memory()
    components = {one.name: one.bytes for one in found.components}
    weights = sum(info.n_elements for info in target().file.tensors.values()) * 4
    assert components["target"] == weights
    assert components["program"] == target().program_bytes > 10 << 20
    assert components["target KV"] == 512 * 1 * 2 * 256 * 4
    assert components["drafter KV"] == 512 * 2 * 2 * 128 * 4
    assert found.predicted == sum(components.values())
    assert 0 < found.free <= found.total
    assert found.measured > 0
    assert isinstance(engine.session, CpuSession)
    engine.session.prefill(range(512))
    engine.session.draft(1, 0)
    held = engine.session.nbytes
    assert held["target KV"] <= components["target KV"] * 2  # rows grow by doubling
    assert held["states"] * 5 == components["states"]


def test_a_breakdown_that_does_not_fit() -> None:
    found = MemoryBreakdown(
        "a small card", (Component("target", 30 << 30), Component("KV", 2 << 30)), 24 << 30, 20 << 30
    )
    with pytest.raises(OutOfMemoryError) as refusal:
        check(found, "take a smaller model")
    expected = "needs 32.0 GiB on a small card (target 30.0 GiB, KV 2.0 GiB) but 20.0 GiB is free; take a smaller model"
    assert str(refusal.value) == expected
    check(MemoryBreakdown("a card", (Component("target", 1 << 30),), 24 << 30, 20 << 30), "")
    assert gib(1536) == "1.5 KiB"


def test_host_memory_is_plausible() -> None:
    host = host_memory()
    assert 0 < host.free <= host.total
    assert 10 << 20 < host.process < host.total


def test_the_predicted_step_adds_up_its_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that ticks a second per reading: four layers take four seconds, the head its share on top."""
    ticks = itertools.count()
    monkeypatch.setattr("dflash_core.backends.cpu.target.time.perf_counter", lambda: float(next(ticks)))
    predicted = Engine(target(), draft()).predicted_step_seconds(Knobs(drafting="auto"))
    assert predicted is not None
    spec = target().config
    hidden = spec.embedding_length
    largest = max(sum(map(math.prod, layer.tensors(hidden).values())) for layer in spec.layers)
    assert predicted == pytest.approx(4 + spec.vocab_size * hidden / largest)


def test_a_fast_step_is_not_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash_core.backends.cpu.target.time.perf_counter", lambda: 0.0)
    assert Engine(target(), draft()).predicted_step_seconds(Knobs()) is None


@pytest.mark.parametrize("waits", [0.0, 600.0], ids=["beside a long load", "after a short one"])
def test_the_tokenizer_is_built_beside_the_load(waits: float, monkeypatch: pytest.MonkeyPatch) -> None:
    target, built = open_target(golden("tiny-F16.gguf"), "cpu"), threading.Event()
    monkeypatch.setattr(engine_module, "TOKENIZER_WAITS", waits)
    monkeypatch.setattr(target.tokenizer, "prepare", built.set)
    with engine_module.tokenizer_meanwhile(target):
        if waits:
            assert not built.is_set()
        else:
            built.wait()
    built.wait()


def test_a_tokenizer_that_cannot_be_built_is_refused_at_the_end_of_a_long_load(monkeypatch: pytest.MonkeyPatch) -> None:
    target = open_target(golden("tiny-F16.gguf"), "cpu")
    monkeypatch.setattr(engine_module, "TOKENIZER_WAITS", 0.0)

    def prepare() -> None:
        raise FormatError("the merges do not fit the vocabulary")

    monkeypatch.setattr(target.tokenizer, "prepare", prepare)

    def load() -> None:
        with engine_module.tokenizer_meanwhile(target):
            for one in [thread for thread in threading.enumerate() if thread.name == "tokenizer"]:
                one.join()

    with pytest.raises(FormatError, match="the merges do not fit"):
        load()
