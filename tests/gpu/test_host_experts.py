"""Experts in main memory: the same bits from the same kernels, and the card holds that much less."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from torch import Tensor

from dflash_core import Knobs, load_target
from dflash_core.arch.facts import layers_of_experts
from dflash_core.backends.cuda import expert_cache
from dflash_core.backends.cuda import session as cuda_session
from dflash_core.backends.cuda import target as cuda_target
from dflash_core.backends.cuda.activations import CHOICES
from dflash_core.backends.cuda.expert_cache import Exchange
from dflash_core.backends.cuda.machine import CudaMachine
from dflash_core.backends.cuda.memory_estimator import CACHE_ROUNDING, Footprint
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.backends.cuda.timings import target_name
from dflash_core.backends.cuda.upload import DeviceUpload
from dflash_core.expert_places import tensors_on_host
from dflash_core.fits import CardOptions, requested_setup, total
from dflash_core.loading import open_target
from dflash_core.runner import Runner
from support import engines
from support.device_pairs import device_named
from support.emulated_device import EmulatedCard
from support.golden import golden
from support.grids import full

CONTEXT = 256
TREE = [3, 4, 5, 6, 7], [-1, 0, 0, 1, 1]


def session(device_name: str, name: str, layers: int, cached: int = 0) -> CudaSession:
    """One with the experts of the last `layers` layers in main memory, of which the card caches `cached` each."""
    device, target = device_named(device_name), load_target(golden(f"targets/{name}"))
    with device.stream():
        upload = DeviceUpload(device, target.file, pinned=tensors_on_host(target.config, layers))
        model = DeviceTarget(device, upload, target.config, CHOICES["f16"])
        upload.close()
        if cached:
            model.cache_experts(cached)
    return CudaSession(model, context=CONTEXT)


def scores_of_last_layer(one: CudaSession) -> Tensor:
    """The last pass's router scores (rows, experts)."""
    layer, buffers = one.target.experts[-1], one.memory.buffers
    return [*buffers.inside.carve(*layer.pass_buffers)][1][:, : layer.spec.count].cpu()


def exchange_at_random(one: CudaSession, rng: np.random.Generator) -> None:
    """Another expert in every slot of every layer."""
    cache = one.target.cache
    assert cache is not None
    exchanges = []
    for layer, inside in enumerate(cache.resident):
        others = np.setdiff1d(np.arange(cache.used.shape[1]), inside)
        drawn = rng.permutation(others)[: len(inside)].tolist()
        exchanges += [Exchange(layer, slot, expert) for slot, expert in enumerate(drawn)]
    assert exchanges
    with one.device.stream():
        cache.exchange(exchanges)


@pytest.mark.parametrize(
    "name", ["q35moe-F16.gguf", full("q3moe-Q8_0.gguf"), full("gptoss-MXFP4.gguf"), full("laguna-Q8_0.gguf")]
)
def test_the_same_bits(device_name: str, name: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts in passes and in chunks, single rows, trees, and steps that the device runs by itself."""
    on_card = session(device_name, name, 0)
    experts, spec = on_card.target.experts, on_card.target.spec
    some, all_of_them = (session(device_name, name, layers) for layers in (1, len(experts)))
    assert [one.on_host for one in some.target.experts] == [False] * (len(experts) - 1) + [True]
    assert all(one.on_host for one in all_of_them.target.experts)
    ids = rng.integers(0, 250, 24).tolist()
    found = []
    for one in (on_card, some, all_of_them):
        bits = []
        for least in (10_000, 1):
            monkeypatch.setattr(cuda_session, "MIN_ROWS", least)
            one.restore(None)
            bits += [one.prefill(ids), one.verify([7], [-1]), one.verify(*TREE)]
        one.restore(None)
        knobs = Knobs(drafting="plain", max_tokens=6, ignore_eos=True, temperature=0.0)
        steps = Runner(one, frozenset(), CONTEXT, spec.vocab_size).generate(ids, knobs)
        found.append((bits, [token for event in steps for token in event.tokens]))
    assert found[0][0][0].any()
    for bits, tokens in found[1:]:
        assert all(map(np.array_equal, bits, found[0][0]))
        assert tokens == found[0][1]
    assert len({target_name(one.target) for one in (on_card, some, all_of_them)}) == 3


def test_the_card_holds_so_much_less(device_name: str) -> None:
    """By as many bytes as the tiles in main memory have; the plan counts the same from any place."""
    target, device = load_target(golden("targets/q35moe-F16.gguf")), device_named(device_name)
    layers = len(layers_of_experts(target.config))
    made = [Footprint(target.file, target.config, device.card, host_layers=count) for count in range(layers + 1)]
    for count, one in enumerate(made):
        loaded = session(device_name, "q35moe-F16.gguf", count).target
        pinned = [
            matrix
            for experts in loaded.experts
            for projection in (experts.inputs, experts.out)
            for matrix in projection.routed
            if matrix.pinned is not None
        ]
        assert len(pinned) == 3 * count
        assert one.host_experts.layers == count
        assert one.host_experts.bytes == sum(matrix.nbytes for matrix in pinned)
        assert made[0].target_bytes - one.target_bytes == one.host_experts.bytes
        assert [one.weights(on_host=False, host_layers=n) for n in range(layers + 1)] == [
            each.target_bytes for each in made
        ]


def test_a_row_that_is_read_over_the_bus_is_dear(device_name: str) -> None:
    """A pass of more rows reads more experts; in main memory that costs a larger multiple of a single row."""
    target, device = load_target(golden("targets/q35moe-F16.gguf")), device_named(device_name)
    layers = len(layers_of_experts(target.config))
    more = [
        Footprint(target.file, target.config, device.card, host_layers=count).more_bytes(16)
        for count in range(layers + 1)
    ]
    assert more == sorted(more)
    assert 1 < more[0] < more[-1]


@pytest.mark.parametrize("cached", [1, full(5), 7])
@pytest.mark.parametrize("name", ["q35moe-F16.gguf", full("q3moe-Q8_0.gguf"), full("gptoss-MXFP4.gguf")])
def test_the_same_bits_from_a_cache_that_changes(
    device_name: str, name: str, cached: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every way of reading, with other experts in the slots before each call, and between steps that run ahead."""
    monkeypatch.setattr(expert_cache, "PERIOD", 2)
    monkeypatch.setattr(expert_cache, "DELAY", 1)
    monkeypatch.setattr(expert_cache, "MARGIN", -1e9)  # the fullest and the emptiest change places every time
    on_card = session(device_name, name, 0)
    layers = len(on_card.target.experts)
    count = on_card.target.experts[0].spec.count
    cached = min(cached, count - 1)
    found, ids = [], rng.integers(0, 250, 24).tolist()
    for one in (on_card, session(device_name, name, layers, cached)):
        bits = []
        for least in (10_000, 1):
            monkeypatch.setattr(cuda_session, "MIN_ROWS", least)
            one.restore(None)
            for call, given in ((one.prefill, [ids]), (one.verify, [[7], [-1]]), (one.verify, TREE)):
                if one is not on_card:
                    exchange_at_random(one, rng)
                bits.append(call(*given))
        one.restore(None)
        knobs = Knobs(drafting="plain", max_tokens=12, ignore_eos=True, temperature=0.0)
        steps = Runner(one, frozenset(), CONTEXT, one.target.spec.vocab_size).generate(ids, knobs)
        found.append((bits, [token for event in steps for token in event.tokens]))
        if one is not on_card:
            assert one.target.cache is not None
            places = one.target.cache.resident
            assert all(len(set(inside)) == cached for inside in places.tolist())
    assert all(map(np.array_equal, found[0][0], found[1][0]))
    assert found[0][1] == found[1][1]


def test_kernels_count_the_rows_of_each_expert(device_name: str, rng: np.random.Generator) -> None:
    """In passes of one row and of more, and in chunks; only live rows."""
    one = session(device_name, "q35moe-F16.gguf", 2, 3)
    cache, spec = one.target.cache, one.target.experts[-1].spec
    assert cache is not None
    ids = rng.integers(0, 250, 40).tolist()
    for read, rows in (
        (lambda: one.verify([7], [-1]), 1),
        (lambda: one.verify(*TREE), len(TREE[0])),
        (lambda: one.prefill_chunk(ids), 40),
    ):
        before = cache.used.clone()
        read()
        new = (cache.used - before).cpu().numpy()
        assert new.sum(1).tolist() == [rows * spec.used] * 2
        if rows < 40:  # a chunk keeps its scores elsewhere
            best = scores_of_last_layer(one)[:rows].topk(spec.used).indices.numpy()
            assert np.array_equal(new[-1], np.bincount(best.ravel(), minlength=spec.count))


def test_experts_that_a_prompt_uses_are_cached_before_its_answer(device_name: str, rng: np.random.Generator) -> None:
    one = session(device_name, "q35moe-F16.gguf", 2, 3)
    cache = one.target.cache
    assert cache is not None
    tokens = rng.integers(0, 250, 3).tolist() * 60  # few tokens use few experts
    one.prefill(tokens)
    with one.device.stream():
        cache.before_turn()
    used = cache.used.cpu().numpy()
    for count, inside in zip(used, cache.resident, strict=True):
        margin = expert_cache.MARGIN * np.sqrt(2 * count.max())
        assert count[inside].min() >= np.sort(count)[-len(inside)] - margin
    assert (cache.resident != np.arange(3)).any()


def test_a_cache_counts_as_memory_of_the_card(device_name: str) -> None:
    target, device = load_target(golden("targets/q35moe-F16.gguf")), device_named(device_name)
    whole, some = (Footprint(target.file, target.config, device.card, host_layers=2, cached=n) for n in (0, 3))
    cache = session(device_name, "q35moe-F16.gguf", 2, 3).target.cache
    assert cache is not None
    assert some.host_experts.cached_bytes == some.target_bytes - whole.target_bytes == cache.nbytes
    assert whole.weights(on_host=False, host_layers=2, cached=3) == some.target_bytes
    assert some.weights(on_host=False, host_layers=0) == whole.weights(on_host=False, host_layers=0)
    assert whole.more_bytes(1) == some.more_bytes(1) == 1
    assert 1 < some.more_bytes(16) < whole.more_bytes(16)  # a part of the further experts is on the card
    assert len({target_name(session(device_name, "q35moe-F16.gguf", 2, n).target) for n in (0, 3)}) == 2


@pytest.mark.skipif(engines.missing("emulated") is not None, reason=engines.missing("emulated") or "")
@pytest.mark.emulator
def test_a_target_is_loaded_so_and_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_target, "open_device", lambda index: EmulatedCard())
    path, found = golden("targets/q35moe-F16.gguf"), []
    for experts in ("card", "1"):
        target = load_target(path, "cuda", card=CardOptions(experts=experts, tune=False))
        found.append(target.logits([5, 9, 20, 3, 7]))
        assert sum(one.on_host for one in target.model.experts) == target.host_experts.layers == (experts == "1")
        said = [note for note in target.notes if "experts of 1 layer in main memory" in note]
        assert len(said) == (experts == "1")
    assert np.array_equal(*found)


@pytest.mark.skipif(engines.missing("emulated") is not None, reason=engines.missing("emulated") or "")
@pytest.mark.emulator
def test_a_load_caches_what_fits_and_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many experts as the plan leaves memory for; the logits are those of a load on the card."""
    monkeypatch.setattr(cuda_target, "open_device", lambda index: EmulatedCard())
    monkeypatch.setattr(CudaMachine, "other_processes", lambda self: 0)
    path = golden("targets/q35moe-F16.gguf")
    whole = load_target(path, "cuda", card=CardOptions(tune=False))
    opened = open_target(path, "cuda", card=CardOptions(experts="host", tune=False))
    estimator = opened.estimator(None)
    bare = replace(requested_setup(estimator, 512, "f16"), cached=0)
    limit = total(estimator, replace(bare, cached=3)) + estimator.spare(0) + bare.experts * CACHE_ROUNDING
    monkeypatch.setattr(CudaMachine, "available_with_context", lambda self: limit)
    opened.check_memory(None, 512, "f16")
    opened.load(progress=lambda phase, done: None)
    assert isinstance(opened, cuda_target.CudaTarget)
    assert opened.host_experts.cached == 3
    assert opened.model.cache is not None
    assert opened.weight_bytes == whole.weight_bytes - opened.host_experts.bytes + opened.model.cache.nbytes
    assert any(", 3 of each cached on the card" in note for note in opened.notes)
    assert np.array_equal(whole.logits([5, 9, 20, 3, 7]), opened.logits([5, 9, 20, 3, 7]))
