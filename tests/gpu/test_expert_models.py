"""Whole models with experts, and with attention only: the logits of the reference, and the same bits in all modes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from dflash_core import Knobs, load_target
from dflash_core.backends.cpu.session import CpuSession
from dflash_core.backends.cuda.activations import CHOICES
from dflash_core.backends.cuda.layers.experts import Experts
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.backends.cuda.upload import DeviceUpload
from dflash_core.errors import NumericsError
from dflash_core.runner import Runner
from support.bits import Plain, check_walk
from support.device_pairs import TOLERANCE, device_named, pair_of
from support.golden import golden, reference
from support.grids import full
from support.on_a_device import in_passes

SMALLEST_MARGIN = 2e-4  # between the last chosen expert and the next: with a smaller one, halves may change the choice
CONTEXT = 640
MODELS = [
    "q35moe-F16.gguf",
    "q3moe-Q8_0.gguf",
    "q3-F16.gguf",
    pytest.param("q3-Q8_0.gguf", marks=pytest.mark.full),
    pytest.param("q35moe-mtp-Q8_0.gguf", marks=pytest.mark.full),
]


def session(device_name: str, name: str, activations: str) -> CudaSession:
    device, target = device_named(device_name), load_target(golden(f"targets/{name}"))
    with device.stream():
        upload = DeviceUpload(device, target.file)
        on_device = DeviceTarget(device, upload, target.config, CHOICES[activations])
        upload.close()
    return CudaSession(on_device, context=CONTEXT)


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_the_reference(device_name: str, name: str) -> None:
    path = golden(f"targets/{name}")
    found = reference(path)
    ids = [int(token) for token in found["ids"]]
    on_device = session(device_name, name, "f16")
    logits = in_passes(on_device, ids)
    rows = np.ones(len(ids), bool)
    if "router_margin" in found:
        rows = found["router_margin"] >= SMALLEST_MARGIN
    assert rows.sum() >= 35
    assert np.abs(logits[rows] - found["logits"][rows]).max() < TOLERANCE


@pytest.mark.parametrize("name", ["q35moe-F16.gguf", full("q3moe-Q8_0.gguf")])
def test_a_prompt_in_a_chunk_is_that_of_the_reference(device_name: str, name: str) -> None:
    found = reference(golden(f"targets/{name}"))
    ids = [int(token) for token in found["long_ids"]]
    on_device = session(device_name, name, "f16")
    assert on_device.target.chunked
    on_device.prefill(ids[:176])
    logits = in_passes(on_device, ids[176:])
    rows = [int(row) for row in found["long_rows"] if row >= 176]
    assert rows
    for row in rows:
        if found["long_router_margin"][row] >= SMALLEST_MARGIN:
            expected = found["long_logits"][list(found["long_rows"]).index(row)]
            assert np.abs(logits[row - 176] - expected).max() < TOLERANCE


@pytest.mark.parametrize(
    ("name", "activations", "chains", "trees"),
    [
        ("q35moe-F16.gguf", "f16", (7,), (4, 63)),
        ("q3moe-Q8_0.gguf", "mixed", (7,), (23,)),
        *(
            pytest.param(name, activations, (1, 7, 15), (4, 23, 63), marks=pytest.mark.full)
            for name in ("q35moe-F16.gguf", "q3moe-Q8_0.gguf")
            for activations in ("f16", "mixed")
        ),
    ],
)
def test_trees_leave_the_bits_of_single_steps(
    device_name: str, rng: np.random.Generator, name: str, activations: str, chains: Sequence[int], trees: Sequence[int]
) -> None:
    on_device = session(device_name, name, activations)
    vocab = on_device.target.spec.vocab_size
    ids = rng.integers(0, vocab, 40).tolist()
    plain = Plain.of(on_device, ids[:30], ids[30:], 1)
    for shape, budgets in ((chain, chains), (bushy, trees)):
        check_walk(on_device, plain, shape, budgets, vocab, rng)


def chain(n: int, rng: np.random.Generator) -> list[int]:
    return list(range(-1, n - 1))


def bushy(n: int, rng: np.random.Generator) -> list[int]:
    reach = int(rng.integers(1, n + 1))
    return [-1, *(int(rng.integers(max(0, node - reach), node)) for node in range(1, n))]


@pytest.mark.parametrize(("target", "draft"), [("q35moe-F16.gguf", "q35moe-dflash"), ("q3-F16.gguf", "q3-dflash")])
def test_drafts_are_those_of_the_reference(device_name: str, target: str, draft: str) -> None:
    pair = pair_of(device_named(device_name), golden(f"targets/{target}"), golden(f"targets/{draft}"), half=True)
    on_device, cpu = pair.sessions()
    assert isinstance(cpu, CpuSession)
    ids = [int(token) for token in reference(golden(f"targets/{target}"))["ids"]][:24]
    for one in (on_device, cpu):
        one.prefill(ids)
    expected = cpu.draft(7, 0)
    found = on_device.draft(7, 0)
    assert np.abs(found - expected).max() < TOLERANCE


def test_a_router_that_is_not_finite_ends_the_turn_and_no_more(device_name: str) -> None:
    on_device = session(device_name, "q3moe-Q8_0.gguf", "f16")
    layer = next(on_device.target.blk[1].feed_forwards)
    assert isinstance(layer, Experts)
    runner, knobs = (
        Runner(on_device, frozenset(), 300, on_device.target.spec.vocab_size),
        Knobs(drafting="plain", temperature=0.0, ignore_eos=True, max_tokens=6),
    )
    ids = [5, 9, 20, 3]
    expected = [token for event in runner.generate(ids, knobs) for token in event.tokens]
    kept = layer.router.clone()
    for value in (float("nan"), float("inf")):
        with on_device.device.stream():
            layer.router[:, 2] = value
        with pytest.raises(NumericsError, match="not finite"):
            list(runner.generate([7, 7, 2], knobs))
        with on_device.device.stream():
            layer.router.copy_(kept)
        runner.reset()
        assert [token for event in runner.generate(ids, knobs) for token in event.tokens] == expected
