"""The structs of backends/cuda/state.py lie in memory as the kernels' own do, for g++ and for the CUDA compiler."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dflash_core import nvrtc, resources
from dflash_core.backends.cuda import state
from dflash_core.backends.cuda.layers import draws
from dflash_core.errors import UnsupportedError
from support import engines

STRUCTS = {
    "StepState": state.STEP_STATE,
    "RingSlot": state.RING_SLOT,
    "BestPart": state.BEST_PART,
    "RowTokens": state.ROW_TOKENS,
    "RowFront": state.ROW_FRONT,
    "PartBefore": state.PART_BEFORE,
}
SCALARS = {"u64": np.uint64, "int": np.int32, "float": np.float32, "double": np.float64}
HEADER_FILES = ("state.cuh", "ring.cuh", "head.cuh", "draw.cuh")


def declared() -> dict[str, list[tuple[str, np.dtype]]]:
    """Every struct's fields as written in the headers."""
    text = "".join((resources.kernels_dir() / name).read_text() for name in HEADER_FILES)
    text = re.sub(r"//.*", "", text)
    structs = {}
    for name, body in re.findall(r"struct(?: alignas\(\d+\))? (\w+) \{(.*?)\n\};", text, re.DOTALL):
        fields = []
        for kind, names in re.findall(r"(u64|int|float|double) ([^;]+);", body):
            for field in names.split(","):
                shape = [
                    int(part) if part.isdigit() else getattr(state, part) for part in re.findall(r"\[(\w+)\]", field)
                ]
                fields.append((re.sub(r"\[.*", "", field).strip(), np.dtype((SCALARS[kind], tuple(shape)))))
        structs[name] = fields
    return structs


@pytest.mark.parametrize("name", STRUCTS)
def test_fields_are_those_of_the_header(name: str) -> None:
    dtype = STRUCTS[name]
    assert declared()[name] == [(field, dtype.fields[field][0]) for field in dtype.names]


def test_constants_and_enums_are_those_of_the_header() -> None:
    text = "".join((resources.kernels_dir() / name).read_text() for name in ("state.cuh", "ring.cuh"))
    for constant, value in re.findall(r"constexpr int (\w+) = (\d+);", text):
        assert getattr(state, constant) == int(value), constant
    drawn = (resources.kernels_dir() / "draw.cuh").read_text()
    for constant in "DRAW_PART", "MOST_LISTED":
        assert f"constexpr int {constant} = {getattr(draws, constant)};" in drawn
    stops = dict(re.findall(r"(\w+) = (\d+)", re.search(r"enum Stop \{(.*?)\}", text)[1]))
    assert {stop.name: str(int(stop)) for stop in state.StopCode} == stops
    stamps = re.findall(r"(\w+)(?: = \d+)?(?:,|$)", re.search(r"enum Stamp \{(.*?)\}", text)[1].strip())
    assert [stamp.name for stamp in state.Stamp] == stamps[:-1]
    assert stamps[-1] == "STAMPS"


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
