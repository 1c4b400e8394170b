"""Golden models of other families: a device gives the logits of the CPU and of the reference, in passes and in chunks,
and trees and chains leave the bits of plain decoding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from dflash_core import Knobs, load_target
from dflash_core.arch.kinds import Attention, Experts
from dflash_core.backends.cuda.activations import CHOICES
from dflash_core.backends.cuda.layers.attention import AttentionLayers
from dflash_core.backends.cuda.layers.split_attention import HEAD_DIMS
from dflash_core.backends.cuda.target import check_supported
from dflash_core.config import target_config
from dflash_core.engine import load_pair
from dflash_core.errors import UnsupportedError
from dflash_core.formats.gguf import open_gguf
from dflash_core.runner import Runner
from support import on_device
from support.device_pairs import device_named
from support.gguf_copy import stored, write_copy
from support.golden import golden, other_models, reference
from support.grids import full
from support.on_a_device import CONTEXT, KL_BAR, check_bits, divergences, in_passes, session_of

MARGIN = 5e-4  # between the last chosen expert and the next: with a smaller one, halves may change the choice
# Scores of Gemma 4 are not divided by the root of the head size: halves of the CPU's keys alone give up to 1e-5 there.
BARS = {"gemma4": 2 * KL_BAR}
FAMILIES = [path for path in other_models() if not path.name.startswith("q3")]


def runs(path: Path) -> bool:
    spec = target_config(open_gguf(path))
    try:
        check_supported(spec)
    except UnsupportedError:
        return False
    return all(mixer.head_dim in HEAD_DIMS for mixer in spec.of(Attention))


HERE = [pytest.param(path, id=path.stem) for path in FAMILIES if runs(path)]
# Weights of another type are other products, whose bits test_matmul compares; the layers are those of another file.
AGAIN = {"gemma3-F16", "gptoss-F16", "llama-Q8_0"}
EACH_ONCE = [full(*one.values, id=str(one.id)) if one.id in AGAIN else one for one in HERE]


def compared(path: Path, margins: str, rows: int) -> int:
    """How many of the first `rows` are compared: those before one whose experts are chosen by a small margin."""
    found = reference(path)
    close = np.flatnonzero(found[margins][:rows] < MARGIN) if margins in found else []
    return int(close[0]) if len(close) else rows


@pytest.mark.parametrize("path", HERE)
def test_logits_are_those_of_the_cpu(device_name: str, path: Path) -> None:
    found, target = reference(path), load_target(path)
    ids = [int(token) for token in found["ids"]]
    rows = compared(path, "router_margin", len(ids))
    assert rows >= 10
    logits = in_passes(session_of(device_name, target), ids)
    bar = BARS.get(target.config.architecture, KL_BAR)
    assert divergences(logits, target.logits(ids))[:rows].mean() < bar
    assert divergences(logits, found["logits"])[:rows].mean() < bar


@pytest.mark.parametrize("path", HERE)
def test_a_prompt_in_a_chunk_is_that_of_the_reference(device_name: str, path: Path) -> None:
    found, target = reference(path), load_target(path)
    ids, begin = [int(token) for token in found["long_ids"]], 176
    session = session_of(device_name, target)
    assert session.chunk_pass is not None
    session.prefill(ids[:begin])
    session.chunk_pass.warm_up()  # with rows that may be narrower than a tile
    logits = in_passes(session, ids[begin:])
    last = compared(path, "long_router_margin", len(ids))
    told = [(place, int(row)) for place, row in enumerate(found["long_rows"]) if begin <= row < last]
    if not told:
        pytest.skip("a choice of experts in the prompt is nearly a tie")
    rows = [row - begin for _, row in told]
    bar = 2 * BARS.get(target.config.architecture, KL_BAR)
    assert divergences(logits[rows], found["long_logits"][[place for place, _ in told]]).mean() < bar


@pytest.mark.skipif(on_device.missing() is not None, reason=on_device.missing() or "")
@pytest.mark.parametrize("kv", ["f16", "q8_0+384"])
@pytest.mark.parametrize("path", HERE)
def test_a_file_loads_and_its_drafts_change_no_token(path: Path, kv: str) -> None:
    """The whole of a load, with all that is prepared and timed there."""
    engine = load_pair(path, "ngram", "cuda", context_length=CONTEXT, kv=kv)
    ids = [int(token) for token in reference(path)["ids"]] * 3
    answers = []
    for drafting in ("plain", "chain 5"):
        knobs = Knobs(drafting=drafting, max_tokens=24, ignore_eos=True)
        answers.append([token for event in engine.generate(ids, knobs) for token in event.tokens])
    assert answers[0] == answers[1]


@pytest.mark.parametrize("path", EACH_ONCE)
@pytest.mark.parametrize("activations", ["f16", pytest.param("mixed", marks=pytest.mark.full)])
def test_trees_leave_the_bits_of_single_steps(
    device_name: str, path: Path, activations: str, rng: np.random.Generator
) -> None:
    check_bits(session_of(device_name, load_target(path), activations), rng, positions=5)


def test_what_no_kernel_does_is_refused_by_name() -> None:
    spec = target_config(open_gguf(golden("targets/llama-mistral-F16.gguf")))
    check_supported(spec)
    gated = replace(spec.of(Attention)[0], gate="sigmoid", biases=("attn_q",))
    with pytest.raises(UnsupportedError, match="biases of gated queries; run it on the CPU"):
        check_supported(replace(spec, layers=(replace(spec.layers[0], mixer=gated),)))
    experts = Experts(8, 2, 32, shared=32, router_scale=True, eps=1e-6)
    for ffn, words in (
        (experts, "a gated shared expert beside a router that reads other rows than the experts"),
        (replace(experts, router_scale=False, biases=True), "biases of experts beside a shared one"),
        (replace(experts, shared=0, choice_bias=True), "a bias for the choice of experts by softmax"),
    ):
        with pytest.raises(UnsupportedError, match=f"{words}; run it on the CPU"):
            check_supported(replace(spec, layers=(replace(spec.layers[0], ffn=ffn),)))


def test_heads_without_a_kernel_are_refused() -> None:
    narrow = Attention(2, 1, 32, 32, 1e4, 1e-6)
    with pytest.raises(UnsupportedError, match="attention heads of 32 dimensions, expected 64, 128, 256 or 512"):
        AttentionLayers(device_named("emulated"), narrow, CHOICES["f16"])


def test_suppressed_tokens_are_never_drawn(device_name: str, tmp_path: Path) -> None:
    """Greedy and sampled, in passes and in steps; the others keep their logits. They are what would have been drawn."""
    path = golden("targets/gemma4-e-F16.gguf")
    ids = [int(token) for token in reference(path)["ids"]][:8]
    likely = np.argsort(-load_target(path).logits(ids), axis=-1)[:, :3].ravel()
    never = sorted({int(token) for token in likely})
    reader = gguf.GGUFReader(path)
    copy = write_copy(tmp_path / "a.gguf", reader, stored(reader), {"tokenizer.ggml.suppress_tokens": never})
    target = load_target(copy)
    assert target.config.suppressed == tuple(never)
    session = session_of(device_name, target)
    found, expected = session.verify(ids, range(-1, len(ids) - 1)), target.logits(ids)
    assert np.isneginf(found[:, never]).all()
    others = np.setdiff1d(np.arange(target.config.vocab_size), never)
    assert divergences(found[:, others], expected[:, others]).mean() < BARS["gemma4"]
    runner = Runner(session, frozenset(), 640, target.config.vocab_size)
    for sampling in ({"temperature": 0.0}, {"temperature": 1.5, "top_k": 0, "seed": 3}):
        runner.reset()
        knobs = Knobs(drafting="plain", max_tokens=12, ignore_eos=True).replace(**sampling)
        drawn = [token for event in runner.generate(ids, knobs) for token in event.tokens]
        assert len(drawn) == 12
        assert not set(drawn) & set(never)
