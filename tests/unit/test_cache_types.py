"""Cache types: names, bytes, rows packed and unpacked, what auto chooses, and how a type is requested."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_core.backends.cpu.machine import CpuMachine, HostMemoryEstimator
from dflash_core.bench.synthetic_models import DRAFT_27B, SIZE_27B, TARGET_27B, target_types
from dflash_core.cache_types import AUTO, AUTO_PAIRS, CHUNK_BYTES, DIVERGENCE, TYPES, CachePair, checked
from dflash_core.engine import _choice
from dflash_core.errors import KnobError
from dflash_core.fits import memory_after_load, requested_setup, sequence_bytes
from dflash_core.models.cache_rows import CODECS, hadamard
from dflash_core.models.kv_cache import KVCache
from dflash_tui.application.settings.config import load_config
from dflash_tui.cli.options import build_parser
from support.kernel_variants import header

if TYPE_CHECKING:
    from dflash_core.formats.gguf import GGUFFile

PAIRS = [CachePair(k, v) for k in TYPES.values() for v in TYPES.values()]
# The average rounding error allowed, relative to a row's root mean square.
ERRORS = {"f16": 3e-4, "bf16": 2.5e-3, "q8_0": 6e-3, "q5_0": 5e-2, "q4_0": 0.1, "tq3_0": 0.25}


@pytest.mark.parametrize(
    ("text", "name"), [("q8_0", "q8_0"), ("Q8_0/q4_0", "q8_0/q4_0"), (" f16/f16 ", "f16"), ("AUTO", AUTO)]
)
def test_names(text: str, name: str) -> None:
    assert checked(text) == name


@pytest.mark.parametrize("text", ["", "q9", "q8_0/", "q8_0/q4_0/q4_0", "auto/q8_0", "float"])
def test_an_unknown_type_is_refused_with_the_list(text: str) -> None:
    with pytest.raises(KnobError, match=r"expected auto, or one of f16, bf16, q8_0, q5_0, q4_0, tq3_0, or two as K/V"):
        checked(text)


@pytest.mark.parametrize("text", ["q4_0+", "q4_0+128", "q4_0+300", "q4_0+8320", "q4_0+x", "f16+1024", "q8_0/bf16+512"])
def test_a_window_of_halves_has_limits(text: str) -> None:
    with pytest.raises(KnobError, match=r"expected (a number of positions after \+, 256|packed types before \+)"):
        checked(text)


def test_a_window_of_halves_is_named_and_follows_positions() -> None:
    assert checked(" Q8_0/q4_0+2048") == "q8_0/q4_0+2048"
    pair = CachePair.parse("q4_0+256")
    assert [pair.border(at) for at in (0, 382, 383, 510, 511, 1000)] == [0, 0, 128, 128, 256, 640]
    assert pair.past == CachePair.parse("q4_0")


def test_bytes_of_a_27b() -> None:
    """Bits per number at heads of 256, and a position of the 27B and of its drafter, whose windows are rings."""
    bits = {name: 8 * one.row_bytes(256) / 256 for name, one in TYPES.items()}
    assert bits == {"f16": 16, "bf16": 16, "q8_0": 8.5, "q5_0": 5.5, "q4_0": 4.5, "tq3_0": 3.5}
    sizes = {str(pair): TARGET_27B.position_bytes(pair) for pair in AUTO_PAIRS}
    assert sizes == {
        "f16": 65_536, "q8_0": 34_816, "q8_0/q5_0": 28_672, "q5_0": 22_528, "q5_0/q4_0": 20_480, "q4_0": 18_432
    }  # fmt: skip
    full = DRAFT_27B.layers[-1].mixer.position_bytes(CachePair.parse("q8_0"))
    assert full <= 4.2 * 1024


@pytest.mark.parametrize("numbers", [64, 128, 256])
@pytest.mark.parametrize("name", TYPES)
def test_rows_are_whole_chunks_and_come_back(name: str, numbers: int) -> None:
    rows = torch.randn(2, 3, 5, numbers, generator=torch.Generator().manual_seed(1))
    rows[0, 0, 0] = 0
    stored = CODECS[name].pack(rows)
    assert stored.shape[-1] * stored.element_size() == TYPES[name].row_bytes(numbers)
    assert TYPES[name].row_bytes(numbers) % CHUNK_BYTES == 0
    back = CODECS[name].unpack(stored, numbers, torch.float32)

    assert (back[0, 0, 0].abs() == 0).all()
    assert ((back - rows).square().mean() / rows.square().mean()).sqrt() < ERRORS[name]


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(sorted(TYPES)), st.integers(1, 200), st.integers(0, 2**31), st.floats(-3, 4))
def test_any_row_length_and_size(name: str, numbers: int, seed: int, size: float) -> None:
    rows = 10.0**size * torch.randn(1, 2, numbers, generator=torch.Generator().manual_seed(seed))
    back = CODECS[name].unpack(CODECS[name].pack(rows), numbers, torch.float32)
    assert back.shape == rows.shape
    assert torch.isfinite(back).all()
    assert ((back - rows).abs() <= 0.3 * rows.abs().max() + 1e-5).all()


@pytest.mark.parametrize("numbers", [64, 96, 256])
def test_the_transform_is_its_own_inverse_and_keeps_scores(numbers: int) -> None:
    a, b = torch.randn(2, 4, numbers, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    assert torch.allclose(hadamard(hadamard(a)), a)
    assert torch.allclose((hadamard(a) * hadamard(b)).sum(-1), (a * b).sum(-1))
    spike = torch.zeros(1, numbers)
    spike[0, 3] = 1
    assert hadamard(spike).abs().max() == pytest.approx(1 / math.sqrt(numbers & -numbers))


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(PAIRS), st.sampled_from([0, 1, 31, 32, 33, 255, 256, 257]), st.integers(1, 6), st.data())
def test_a_node_and_a_committed_position_are_the_same_bytes(pair: CachePair, length: int, n: int, data: Any) -> None:
    """Store after a context, commit a path, store again: the same as storing the path row by row."""
    path = [0, *sorted(data.draw(st.sets(st.integers(1, n - 1))))] if n > 1 else [0]
    make = torch.Generator().manual_seed(length * 7 + n)
    context, nodes, after = (torch.randn(2, 2, count, 64, generator=make) for count in (length, n, 2))
    tree, plain = (KVCache(2, 64, torch.float32, pair) for _ in range(2))
    for cache in (tree, plain):
        if length:
            cache.store(0, *context)
            cache.commit(0, range(length))
    tree.store(length, *nodes)
    tree.commit(length, path)
    for place, node in enumerate(path):
        plain.store(length + place, *nodes[:, :, node : node + 1])
    ends = length + len(path)
    for cache in (tree, plain):
        cache.store(ends, *after)
    found, expected = (cache.read([slice(0, ends + 2)]) for cache in (tree, plain))
    assert all(torch.equal(a, b) for a, b in zip(found, expected))
    assert torch.equal(tree.k[:, :ends], plain.k[:, :ends])
    assert torch.equal(tree.v[:, :ends], plain.v[:, :ends])


@pytest.mark.parametrize(
    ("share", "chosen"),
    [
        (2.01, "f32"),
        (1.01, "f16"),
        (0.99, "q8_0"),
        (0.5, "q8_0/q5_0"),
        (0.4, "q5_0"),
        (0.33, "q5_0/q4_0"),
        (0.3, "q4_0"),
    ],
)
def test_auto_takes_the_first_that_holds_the_context(share: float, chosen: str) -> None:
    """Half of the memory that weights and states leave is `share` times what 8,192 positions take as f16."""
    file = cast("GGUFFile", header("27b", TARGET_27B.tensors(), target_types(TARGET_27B, SIZE_27B)))
    estimator = HostMemoryEstimator(CpuMachine(), file, TARGET_27B, None, 1 << 40)
    needed = 8192 * TARGET_27B.position_bytes(AUTO_PAIRS[0])
    room = memory_after_load(estimator, int(2 * (share * needed + sequence_bytes(estimator, estimator.base))))
    setup = requested_setup(estimator, 8192, AUTO, available=room)
    assert (setup.context, setup.kv) == (8192, chosen)
    why = _choice(estimator, setup, AUTO).why
    assert bool(why) == (chosen != "f32")
    assert not why or why.startswith("8,192 positions leave no memory to spare as f32")
    assert (f"{chosen} costs a mean KL divergence of {DIVERGENCE[chosen]:.1e} nats" in why) == bool(DIVERGENCE[chosen])
    assert requested_setup(estimator, 8192, "tq3_0", available=room).kv == "tq3_0"


def test_auto_goes_by_what_was_measured() -> None:
    """Less divergence comes first, and what takes more bytes than another with less divergence does not come at all."""
    rows = re.findall(
        r"^\| (\S+) \| [\d.]+ \| (0|[\d.]+e-\d) \|", Path("docs/notes/precision.md").read_text(), re.MULTILINE
    )
    assert {kv: float(found) for kv, found in rows} == {kv: found for kv, found in DIVERGENCE.items() if kv != "f32"}
    best = list[CachePair]()
    for pair in map(CachePair.parse, sorted(DIVERGENCE.keys() - {"f32", "bf16"}, key=DIVERGENCE.__getitem__)):
        if not best or pair.row_bytes(256) < best[-1].row_bytes(256):
            best.append(pair)
    assert [pair for pair in best if "tq3_0" not in str(pair)] == list(AUTO_PAIRS)


def test_the_command_line_and_the_setting(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    assert build_parser().parse_args(["--kv", "Q8_0/q4_0"]).kv == "q8_0/q4_0"
    assert build_parser().parse_args(["ask", "--kv", "tq3_0", "hi"]).kv == "tq3_0"
    with pytest.raises(SystemExit):
        build_parser().parse_args(["--kv", "q3"])
    assert "expected auto, or one of f16, bf16, q8_0" in capsys.readouterr().err
    user = tmp_path / "config.toml"
    user.write_text('kv = "q8_0/q5_0"\n')
    assert load_config({}, {}, user=user).settings.kv == "q8_0/q5_0"
    found = load_config({}, {"DFLASH_TUI_KV": "nine"}, user=user)
    assert found.settings.kv == "q8_0/q5_0"
    assert "expected auto, or one of" in found.problems[0]
