"""Structs that are read from headers lie in memory as the compilers place them: g++ and the CUDA compiler."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dflash_core import nvrtc, resources
from dflash_core.backends.cuda import state
from dflash_core.backends.cuda.state import Headers
from dflash_core.errors import UnsupportedError
from dflash_core.fits import MAX_TREE_NODES
from dflash_core.policy.values import CLASSES, FEATURES
from support import engines

STRUCTS = {
    "StepState": state.STEP_STATE,
    "RingSlot": state.RING_SLOT,
    "BestPart": state.BEST_PART,
    "RowTokens": state.ROW_TOKENS,
    "RowFront": state.ROW_FRONT,
    "PartBefore": state.PART_BEFORE,
    "Pairing": state.PAIRING,
}
HEADER_FILES = ("state.cuh", "ring.cuh", "head.cuh", "draw.cuh", "pairs.cuh")


def test_numbers_that_are_stated_on_both_sides_agree() -> None:
    found = Headers("state.cuh").constants
    assert (found["MAX_NODES"], found["VALUE_CLASSES"], found["VALUE_FEATURES"]) == (MAX_TREE_NODES, CLASSES, FEATURES)
    text = "".join((resources.kernels_dir() / name).read_text() for name in ("state.cuh", "ring.cuh"))
    stops = dict(re.findall(r"(\w+) = (\d+)", re.search(r"enum Stop \{(.*?)\}", text)[1]))
    assert {stop.name: str(int(stop)) for stop in state.StopCode} == stops
    stamps = re.findall(r"(\w+)(?: = \d+)?(?:,|$)", re.search(r"enum Stamp \{(.*?)\}", text)[1].strip())
    assert [stamp.name for stamp in state.Stamp] == stamps[:-1]
    assert stamps[-1] == "STAMPS"


def test_fields_of_every_kind_are_read() -> None:
    fields = state.STEP_STATE.fields
    assert fields["mask"][0] == np.dtype((np.uint64, (256, 4)))
    assert fields["candidate_log_prob"][0] == np.dtype((np.float32, (64, 8)))
    assert (fields["top_k"][0], fields["width"][0]) == (np.int32, np.int32)
    assert state.ROW_FRONT.fields["value"][0] == np.dtype((np.float64, 64))
    assert state.PAIRING.names == ("log_prob", "p", "odds", "slot")


HEADERS = "".join(f'#include "{name}"\n' for name in HEADER_FILES[1:])


def asserted(at: Callable[[str, str], str]) -> str:
    """Static assertions on the size of every structure and the offset of each field; `at` gives an offset in C++."""
    lines = []
    for name, dtype in STRUCTS.items():
        lines.append(f"static_assert(sizeof({name}) == {dtype.itemsize});")
        lines += [f"static_assert({at(name, field)} == {dtype.fields[field][1]});" for field in dtype.names]
    return HEADERS + "\n".join(lines) + '\nextern "C" __global__ void layout() {}\n'


def offset(name: str, field: str) -> str:
    """As g++ and the CUDA compiler spell it."""
    return f"OFFSET({name}, {field})"


CUDA, GCC = "#define OFFSET(s, m) __INTADDR__(&((s*)0)->m)\n", "#define OFFSET(s, m) __builtin_offsetof(s, m)\n"


def test_layouts_under_the_cuda_compiler() -> None:
    """Checked at compile time: as comparisons inside a kernel, it takes the compiler for a card minutes."""
    assert nvrtc.compile_cubin(CUDA + asserted(offset), "layout.cu", "sm_80", include=[resources.kernels_dir()])
    wrong = asserted(lambda name, field: f"{offset(name, field)} + 1")
    with pytest.raises(UnsupportedError, match="static assertion failed"):
        nvrtc.compile_cubin(CUDA + wrong, "layout.cu", "sm_80", include=[resources.kernels_dir()])


@pytest.mark.emulator
def test_layouts_under_the_emulators_compiler(tmp_path: Path) -> None:
    if reason := engines.missing("emulated"):
        pytest.skip(reason)
    path = tmp_path / "layout.cu"
    path.write_text(GCC + asserted(offset))
    engines.engine_named("emulated").kernel(str(path), "layout")(1, 1, [])
