"""Every kernel variant for every supported architecture: it compiles, nothing spills, registers stay as recorded.

No GPU is needed. Reports are kept in the user's cache by content, so only what changed is compiled. After a change that
is meant to move the numbers: `PYTHONPATH=tests python tests/unit/test_kernels_compile.py [FILE ..]` records them again.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

pytest.importorskip("cuda.bindings")
pytest.importorskip("torch")
from dflash_core import nvrtc, resources
from dflash_core.backends.cuda.device import Variant
from dflash_core.backends.cuda.layers.experts import MAX_EXPERTS, MAX_USED
from dflash_core.user_folders import user_folder
from support import kernel_use
from support.grids import full
from support.kernel_variants import variants

ARCHITECTURES = ("sm_75", *nvrtc.ARCHITECTURES)
# No source tells these from sm_80, and sm_120 has as little shared memory.
LIKE_OTHERS = ("sm_86", "sm_89")
# For THOROUGH: quick variants that define and leave out each macro of a file, and each tensor type once. For the other
# architectures: one variant per file; those in DEALT divide the files between them, by this part of their names in
# order. With `full`: all variants.
THOROUGH = "sm_90a"
DEALT = {"sm_75": slice(1, None, 4), "sm_80": slice(3, None, 4), "sm_120": slice(0, None, 2)}
# Seconds each, and nothing in them is of one architecture that `tree.cu` does not have too: with `full` for the others.
SLOW = ("candidates.cu", "draw_list.cu", "draw_front.cu", "draw_parts.cu", "sample.cu")
REPORTS = user_folder("cache") / "test-kernel-uses"
RECORD = Path(__file__).with_name("kernel_registers.json")
# What may spill, and why; anything else must not. A pattern of "<architecture> <file> <kernel>".
SPILLS: dict[str, str] = {
    r".* matmul\.cu matmul": "128 registers at 16 warps; the widths that spill are the compute-bound ones, and a few"
    " bytes at 4 columns, whose 112 registers gain more than that costs",
    r".* attention\.cu attn_split": "blocks of 12 warps that hold 144 rows, whose sums are 96 of 168 registers: some 20"
    " words a thread go through memory in a tile of 64 keys; nothing else of it spills",
    r"sm_8\d attention\.cu attn_combine": "48 bytes at 4 rows of 6 query heads per kv head",
    r"sm_120 swiglu_matmul\.cu swiglu_matmul": "8 bytes for Q8_0, at 16 warps",
    r".* attention_single_row\.cu attn_single_row": "heads of 512: some 40 words of the warps that make the row;"
    " a recent window under an attention window: 9 words",
    r".* head\.cu head_argmax": "the same code",
    r"sm_75 dequant\.cu dequant": "8 bytes for IQ2_S",
    r".* logits\.cu head_logits": "the same code",
}
# How many registers above the recorded number pass: another patch release of the compiler is not a regression.
SLACK = 4
Uses = dict[str, kernel_use.KernelUse]


def report(arch: str, variant: Variant) -> Uses:
    """What the variant's kernels use, from a file of an earlier run where its source is the same."""
    folder = resources.kernels_dir()
    texts = nvrtc.closure(folder / variant.file, (folder,))
    fields = [field.name for field in dataclasses.fields(kernel_use.KernelUse)]
    kept = REPORTS / f"{nvrtc.content_hash(texts, nvrtc.version(), arch, variant, fields)[:32]}.json"
    if kept.is_file():
        return {name: kernel_use.KernelUse(**use) for name, use in json.loads(kept.read_text()).items()}
    source = texts[folder / variant.file]
    uses = kernel_use.report(source, variant.file, arch, defines=dict(variant.defines), include=[folder])
    REPORTS.mkdir(parents=True, exist_ok=True)
    fresh = kept.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps({name: dataclasses.asdict(use) for name, use in uses.items()}))
    os.replace(fresh, kept)
    return uses


def reports(arch: str, *, quick: bool = False, files: Collection[str] = ()) -> Iterator[tuple[Variant, Uses]]:
    wanted = [one for one in variants(arch, quick=quick) if not files or one.file in files]
    if quick and arch == THOROUGH:
        wanted = differing(wanted)
    elif quick:
        by_file = {one.file: one for one in wanted}
        wanted = [by_file[file] for file in files_of(by_file, arch)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from zip(wanted, pool.map(lambda variant: report(arch, variant), wanted))


def differing(wanted: Sequence[Variant]) -> list[Variant]:
    """Of each file, variants that together define and leave out each of its macros, and define each of its tensor types
    once: those with most macros first, without those whose part others do as well."""
    macros = defaultdict[str, set[str]](set)
    for one in wanted:
        macros[one.file] |= dict(one.defines).keys()

    def shown(one: Variant) -> set[tuple[str, str, bool]]:
        defined = dict(one.defines).keys()
        left_out = {name for name in macros[one.file] - defined if not name.startswith("WITH_")}
        return {(one.file, name, name in defined) for name in (*defined, *left_out, "")}

    found, times = dict[Variant, set[tuple[str, str, bool]]](), Counter[tuple[str, str, bool]]()
    for one in sorted(wanted, key=lambda one: -len(one.defines)):
        if not (here := shown(one)) <= times.keys():
            found[one] = here
            times.update(here)
    for one, here in list(found.items()):
        if all(times[each] > 1 for each in here):
            times.subtract(found.pop(one))
    return list(found)


def files_of(files: Collection[str], arch: str) -> list[str]:
    """Those of `files` that are compiled for an architecture other than THOROUGH."""
    names = sorted(path.name for path in resources.kernels_dir().glob("*.cu") if path.name not in SLOW)
    return [name for name in names[DEALT.get(arch, slice(None))] if name in files]


def cases() -> Iterator[ParameterSet]:
    """A few widths of every kernel for architectures that differ; all widths and architectures take long (`full`)."""
    for arch in ARCHITECTURES:
        yield pytest.param(arch, True, id=f"{arch}-quick", marks=[pytest.mark.full] if arch in LIKE_OTHERS else [])
        yield pytest.param(arch, False, id=f"{arch}-all", marks=pytest.mark.full)


@pytest.mark.parametrize(("arch", "quick"), list(cases()))
def test_every_variant_compiles_without_spills(arch: str, quick: bool) -> None:
    recorded = json.loads(RECORD.read_text())
    kernels, seen = 0, set()
    for variant, uses in reports(arch, quick=quick):
        seen.add(variant.file)
        assert uses, f"{variant} holds no kernel"
        for name, use in uses.items():
            kernels += 1
            place = f"{arch} {variant.file} {name}"
            if not any(re.fullmatch(pattern, place) for pattern in SPILLS):
                assert use.spilled == 0, f"{place}: {use} in {variant}"
            most = recorded.get(place)
            assert most is not None, f"{place} has no recorded registers; record them"
            assert use.registers <= most + SLACK, f"{place}: {use.registers} registers, recorded {most}, in {variant}"
    assert kernels >= len(seen)
    files = sorted({variant.file for variant in variants(arch, quick=quick)})
    assert sorted(seen) == (files_of(files, arch) if quick and arch != THOROUGH else files)


@pytest.mark.parametrize("arch", [arch if arch == "sm_120" else pytest.param(arch, marks=pytest.mark.full)
                                  for arch in ARCHITECTURES])  # fmt: skip
@pytest.mark.parametrize(("experts", "used", "whole"), [(512, 10, 1), (MAX_EXPERTS, MAX_USED, 1)])
def test_no_number_of_experts_spills(arch: str, experts: int, used: int, whole: int) -> None:
    """Also for numbers beyond those of the models that the variants come from."""
    defines = {"WIDTH": 4096, "EXPERTS": experts, "USED": used, "ALL": whole, "SHARED": 1}
    assert all(use.spilled == 0 for use in report(arch, Variant.of("router.cu", defines)).values())


def test_every_kernel_file_has_a_variant() -> None:
    files = {path.name for path in resources.kernels_dir().glob("*.cu")}
    assert {variant.file for variant in variants("sm_80", quick=True)} == files


@pytest.mark.parametrize("quick", [True, full(False)])
def test_every_kernel_lets_the_next_begin_and_waits_for_the_last(quick: bool) -> None:
    """griddepcontrol in every kernel but the probe, which runs alone: launches overlap unless a kernel waits."""
    for variant, uses in reports(THOROUGH, quick=quick):
        if variant.file == "probe.cu":
            continue
        for name, use in uses.items():
            assert use.releases, f"{variant}: {name}"
            assert use.waits, f"{variant}: {name}"


CALLS = """
__device__ __attribute__((noinline)) void sums(float* x) {
    float held[200];
#pragma unroll
    for (int i = 0; i < 200; i++) held[i] = x[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 200; i++) x[i] = held[199 - i] + held[i];
}
extern "C" __global__ void __launch_bounds__(1024) calls(float* x) {
    asm volatile("griddepcontrol.wait;");
    sums(x + 200 * threadIdx.x);
}
extern "C" __global__ void alone(float* x) { x[threadIdx.x] = 0.0f; }
"""


def test_what_a_called_function_spills_is_its_kernels() -> None:
    uses = kernel_use.report(CALLS, "calls.cu", THOROUGH)
    assert uses["calls"].spilled > 0
    assert uses["calls"].waits
    assert uses["alone"].spilled == 0


def record(files: Collection[str] = ()) -> None:
    """Write the most registers that each kernel takes over all of its variants: of these files, or of all."""
    known: dict[str, int] = json.loads(RECORD.read_text()) if files else {}
    kept = {file.name for file in resources.kernels_dir().iterdir()} - set(files)
    most = {place: registers for place, registers in known.items() if place.split()[1] in kept}
    for arch in ARCHITECTURES:
        for variant, uses in reports(arch, files=files):
            for name, use in uses.items():
                place = f"{arch} {variant.file} {name}"
                most[place] = max(most.get(place, 0), use.registers)
    RECORD.write_text(json.dumps(dict(sorted(most.items())), indent=1) + "\n")


if __name__ == "__main__":
    record(sys.argv[1:])
