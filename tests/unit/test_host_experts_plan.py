"""Plans with experts in main memory: bytes, as few layers as a context needs, and values that are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("cuda.bindings")
from dflash_core.arch.facts import layers_of_experts
from dflash_core.arch.kinds import Experts
from dflash_core.backends.cuda import target
from dflash_core.backends.cuda.machine import CudaMachine
from dflash_core.backends.cuda.memory_estimator import CardMemoryEstimator, Footprint
from dflash_core.backends.cuda.meta import card_of
from dflash_core.backends.cuda.target import CudaTarget
from dflash_core.bench.shapes import card_estimator, headers
from dflash_core.bench.synthetic_models import SIZE_27B, SIZE_35B_A3B, Model
from dflash_core.errors import KnobError, OutOfMemoryError, UnsupportedError
from dflash_core.expert_places import possible_layers, tensors_on_host
from dflash_core.fits import ON_CARD, CardOptions, plan, requested_setup, total
from dflash_core.memory import HostExperts, MemoryBreakdown, checked_experts
from dflash_tui.application.fits import options, remedy_words
from dflash_tui.cli.command_line import main
from support.golden import golden
from support.made_up_card import MadeUpCard
from support.plans import plan_pair

GIB = 1 << 30
MOE = golden("targets/q35moe-F16.gguf")


def planner(memory: int, experts: str, model: Model = SIZE_35B_A3B) -> CardMemoryEstimator:
    spec, weights, drafter = headers(model, "Q8_0")
    return card_estimator(spec, weights, drafter, card_of(memory), CardOptions(experts=experts))


def test_each_layer_frees_the_bytes_of_its_experts() -> None:
    made = planner(80 * GIB, "card")
    setup = requested_setup(made, 8192, "f16")
    assert setup.experts == 0
    spec = SIZE_35B_A3B.target()
    _, weights, _ = headers(SIZE_35B_A3B, "Q8_0")
    for layers in (1, 7, 40):
        names = tensors_on_host(spec, layers)
        assert len(names) == 3 * layers
        assert {int(name.split(".")[1]) for name in names} == set(range(40 - layers, 40))
        moved = sum(weights.tensors[name].n_bytes for name in names)
        freed = total(made, setup) - total(made, replace(setup, experts=layers))
        assert freed == pytest.approx(moved, rel=1e-3)  # tiles are as large as the blocks of these types
    detail = made.components(replace(setup, experts=7))[0].detail
    assert detail.startswith("40 layers; experts of 7 layers in main memory, ")


@pytest.mark.parametrize(("memory", "context"), [(12, 8192), (16, 8192), (16, 131_072), (24, 8192)])
def test_auto_moves_all_layers_and_caches_as_many_experts_as_fit(memory: int, context: int) -> None:
    made = planner(memory * GIB, "auto")
    setup = requested_setup(made, context, "q8_0")
    found = plan(made, setup)
    assert (found.fits, setup.context) == (True, context)
    if not setup.experts:
        assert (memory, setup.cached) == (24, 0)
        return
    assert setup.experts == 40
    assert setup.rows == made.chunk_rows[0]
    # One expert more of each layer would not leave memory to spare.
    limit = made.available - made.spare(made.available)
    assert total(made, setup) <= limit < total(made, replace(setup, cached=setup.cached + 1))
    held = made.host_experts(setup)
    assert held.cached_bytes == total(made, setup) - total(made, replace(setup, cached=0))
    assert held.cached_bytes == pytest.approx(held.bytes * setup.cached / 256, rel=1e-3)
    assert f"{setup.cached} of each cached on the card, " in made.components(setup)[0].detail


def test_the_rest_of_a_card_caches_experts_of_a_given_number_of_layers() -> None:
    made = planner(16 * GIB, "20")
    setup = requested_setup(made, 8192, "f16")
    assert setup.experts == 20
    assert setup.cached > 0
    assert plan(made, setup).fits
    # A longer context takes the cache's memory.
    longer = requested_setup(made, 65_536, "f16")
    assert longer.cached < setup.cached
    longest = plan(made, setup).context_that_fits["f16"]
    assert longest == plan(made, longer).context_that_fits["f16"]
    assert plan(made, requested_setup(made, longest, "f16")).fits


@pytest.mark.parametrize(("layers", "expected"), [(0.5, 14), (14, 14), (20.5, 20), (41, 40), (80, 40)])
def test_auto_leaves_main_memory_to_other_programs(layers: float, expected: int) -> None:
    """Three quarters of it at most, unless the card needs more to be there. `layers`: that this would hold."""
    spec, weights, drafter = headers(SIZE_35B_A3B, "Q8_0")
    whole = planner(16 * GIB, "auto")
    free = int(whole.host_experts(replace(whole.base, experts=1)).bytes * layers / 0.75)
    card = card_of(16 * GIB)
    made = CardMemoryEstimator(
        Footprint(weights, spec, card.layout), drafter, machine="a card", available=card.free,
        expert_layers=range(41), host_free=free,
    )  # fmt: skip
    setup = requested_setup(made, 32_768, "f16")
    assert setup.experts == expected
    assert plan(made, setup).fits


def test_as_few_layers_as_main_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The experts in main memory are limited by that; the rest of what a card cannot hold is refused by name."""
    monkeypatch.setattr(CudaMachine, "other_processes", lambda self: 0)
    monkeypatch.setattr(CudaMachine, "breakdown", lambda self, parts: MemoryBreakdown("A card", parts, GIB, GIB))
    made = opened(64 * GIB, "auto")
    layers = len(layers_of_experts(made.config))
    estimator = made.estimator(None)
    needed = total(estimator, replace(requested_setup(estimator, 512, "f16"), rows=256, nodes=24))
    monkeypatch.setattr(CudaMachine, "available_with_context", lambda self: needed - 1)
    monkeypatch.setattr(type(estimator), "kv_types", ["f16"])
    one = made.footprint.experts_on_host(1).bytes
    free = SimpleNamespace(free=2 * one - 1, process=0)  # three quarters of it hold one
    monkeypatch.setattr(target.memory, "host_memory", lambda: free)
    made.check_memory(None, 512, "f16")
    assert 1 == made.host_experts.layers < layers


def test_where_nothing_fits_every_layer_is_moved_and_the_plan_says_so() -> None:
    made = planner(2 * GIB, "auto")
    setup = requested_setup(made, 8192, "f16")
    assert setup.experts == 40
    assert not plan(made, setup).fits


def test_without_a_context_auto_takes_the_usual_one() -> None:
    auto, host = (requested_setup(planner(16 * GIB, experts), None, "f16") for experts in ("auto", "host"))
    assert auto == host
    assert (auto.context, auto.experts) == (32_768, 40)


def test_a_model_without_experts_has_none_to_move() -> None:
    for experts in ("auto", "host", "0"):
        assert requested_setup(planner(48 * GIB, experts, SIZE_27B), 8192, "f16").experts == 0
    with pytest.raises(UnsupportedError, match="0 layers of the model have experts"):
        planner(48 * GIB, "3", SIZE_27B)


@pytest.mark.parametrize("text", ["", "hots", "-1", "1.5", "²", "99999", "12 "])
def test_other_values_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KnobError, match="expected card, host, auto, or a number of layers"):
        checked_experts(text)
    with pytest.raises(SystemExit):
        main(["plan", "--target", str(MOE), f"--experts={text}"])
    said = capsys.readouterr().err.splitlines()
    assert sum("expected card, host, auto" in line for line in said) == 1


def test_more_layers_than_there_are_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--target", str(MOE), "--memory", "8GiB", "--experts", "9"]) != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "experts of 9 layers in main memory, but " in line


def test_plan_names_layers_and_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    layers = len(layers_of_experts(CudaTarget(MOE, device=MadeUpCard(8 * GIB)).config))  # type: ignore[arg-type]
    asked = ["plan", "--target", str(MOE), "--memory", "8GiB", "--context", "512", "--experts"]
    assert main([*asked, "host"]) == 0
    assert f"experts of {layers} layers in main memory, " in capsys.readouterr().out
    assert main([*asked, "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["expert_layers_in_main_memory"] == 1
    assert main([*asked, "auto", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["expert_layers_in_main_memory"] == 0
    made = plan_pair(MOE, memory=8 * GIB, context=512, card=CardOptions(experts="host"))
    assert made.setup.experts == layers


def opened(free: int, experts: str) -> CudaTarget:
    return CudaTarget(MOE, CardOptions(experts=experts), device=MadeUpCard(free))  # type: ignore[arg-type]


def test_auto_is_settled_before_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the check of memory has chosen is what is loaded, and planned from then on."""
    monkeypatch.setattr(CudaMachine, "other_processes", lambda self: 0)
    whole = opened(64 * GIB, "auto")
    whole.check_memory(None, 512)
    assert whole.host_experts == HostExperts()
    spec = whole.config
    estimator = whole.estimator(None)
    needed = total(estimator, replace(requested_setup(estimator, 512, "f16"), rows=256, nodes=24))
    monkeypatch.setattr(CudaMachine, "available_with_context", lambda self: needed - 1)
    monkeypatch.setattr(CudaMachine, "breakdown", lambda self, parts: MemoryBreakdown("A card", parts, GIB, GIB))
    short = opened(64 * GIB, "auto")
    monkeypatch.setattr(type(estimator), "kv_types", ["f16"])
    short.check_memory(None, 512, "f16")
    assert short.host_experts.layers >= 1
    assert short.estimator(None).base.experts == short.host_experts.layers
    assert short.machine.footprint is short.footprint
    assert short.weight_bytes == whole.weight_bytes - short.host_experts.bytes
    assert possible_layers("auto", spec) == range(len(layers_of_experts(spec)) + 1)
    assert isinstance(spec.layers[-1].ffn, Experts)


def test_fewer_experts_on_the_card_are_a_remedy() -> None:
    """As few layers as make it fit, with prompts in whole chunks; larger numbers are not offered too."""
    made = planner(16 * GIB, "card")
    found = plan(made, requested_setup(made, 8192, "q8_0"))
    assert not found.fits
    (remedy,) = (one for one in found.remedies if one.setup.experts)
    assert options(remedy, found.setup) == f"--experts {remedy.setup.experts}"
    assert remedy_words(remedy, found.setup) == f"experts of {remedy.setup.experts} layers in main memory"
    asked = planner(16 * GIB, str(remedy.setup.experts))
    setup = requested_setup(asked, 8192, "q8_0")
    assert plan(asked, setup).fits
    assert (setup.experts, setup.rows) == (remedy.setup.experts, made.chunk_rows[0])
    few = replace(remedy.setup, experts=remedy.setup.experts - 1)
    assert total(made, few) > made.available


def test_a_refusal_names_main_memory_where_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaMachine, "other_processes", lambda self: 0)
    made = opened(64 * GIB, "card")
    estimator, spec = made.estimator(None), made.config
    setup = replace(requested_setup(estimator, 512, "f16"), rows=256, nodes=24)
    host = replace(setup, experts=len(layers_of_experts(spec)))
    monkeypatch.setattr(CudaMachine, "available_with_context", lambda self: total(estimator, host))
    monkeypatch.setattr(CudaMachine, "breakdown", lambda self, parts: MemoryBreakdown("A card", parts, GIB, 1000))
    with pytest.raises(OutOfMemoryError, match="--experts auto reads experts from main memory"):
        made.check_memory(None, 512, "f16")
    monkeypatch.setattr(CudaMachine, "available_with_context", lambda self: total(estimator, host) // 2)
    with pytest.raises(OutOfMemoryError, match="take a model of at most"):
        made.check_memory(None, 512, "f16")


def test_main_memory_that_is_too_small_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target.memory, "host_memory", lambda: SimpleNamespace(free=1000, process=0))
    with pytest.raises(OutOfMemoryError, match="but 1000 B of main memory are free") as refused:
        opened(64 * GIB, "host").check_memory(None, 512)
    assert "\n" not in str(refused.value)
    opened(64 * GIB, ON_CARD).check_memory(None, 512)
