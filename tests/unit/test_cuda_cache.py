"""The cache of compiled kernels: entry names, damaged entries, other writers, and nothing is compiled twice."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings")
from dflash_core import nvrtc, resources
from dflash_core.backends.cuda.device import CubinCache, Programs, Variant
from dflash_core.backends.cuda.driver import open_card
from dflash_core.backends.cuda.runtime import Runtime
from dflash_core.errors import UnsupportedError
from support.fake_cuda import FakeDriver, fake_torch

SOURCE = '#include "shared.cuh"\nextern "C" __global__ void f(int* out) { *out = VALUE + SHARED; }\n'


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "kernels"
    folder.mkdir()
    (folder / "f.cu").write_text(SOURCE)
    (folder / "shared.cuh").write_text("#define SHARED 1\n")
    monkeypatch.setattr(resources, "kernels_dir", lambda: folder)
    return folder


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The defines of every compile, in order; the real compiler runs."""
    calls: list[str] = []
    compile_cubin = nvrtc.compile_cubin

    def record(source, name, arch, *, defines, include):  # type: ignore[no-untyped-def]
        calls.append(f"{arch} {defines.get('VALUE')}")
        return compile_cubin(source, name, arch, defines=defines, include=include)

    monkeypatch.setattr(nvrtc, "compile_cubin", record)
    return calls


def get(folder: Path, value: str = "1", arch: str = "sm_80") -> bytes:
    return CubinCache(folder).get("f.cu", arch, {"VALUE": value})


def test_the_second_start_compiles_nothing(kernels: Path, made: list[str], tmp_path: Path) -> None:
    code = get(tmp_path / "cache")
    assert get(tmp_path / "cache") == code
    assert made == ["sm_80 1"]
    assert code[:4] == b"\x7fELF"


@pytest.mark.parametrize("change", ["define", "architecture", "source", "header", "compiler"])
def test_whatever_an_entry_is_made_of_names_it(
    change: str, kernels: Path, made: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache"
    first = get(folder)
    if change == "source":
        (kernels / "f.cu").write_text(SOURCE.replace("VALUE +", "3 * VALUE +"))
    if change == "header":
        (kernels / "shared.cuh").write_text("#define SHARED 2\n")
    if change == "compiler":
        monkeypatch.setattr(nvrtc, "version", lambda: (13, 9))
    second = get(folder, "2" if change == "define" else "1", "sm_90a" if change == "architecture" else "sm_80")
    assert len(made) == 2
    assert (first == second) == (change == "compiler")
    assert get(folder, "2" if change == "define" else "1", "sm_90a" if change == "architecture" else "sm_80") == second
    assert len(made) == 2


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "headless"])
def test_a_damaged_entry_is_compiled_again(damage: str, kernels: Path, made: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    code = get(folder)
    [entry] = folder.iterdir()
    data = entry.read_bytes()
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1
    entry.write_bytes({"cut": data[:-100], "empty": b"", "flipped": bytes(flipped), "headless": code}[damage])
    assert get(folder) == code
    assert entry.read_bytes() == data
    assert len(made) == 2


def test_a_folder_that_cannot_be_written_costs_a_note_and_nothing_else(
    kernels: Path, made: list[str], tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    cache = CubinCache(blocked / "kernels")
    assert cache.get("f.cu", "sm_80", {"VALUE": "1"})
    assert made == ["sm_80 1"]
    assert "cannot be saved" in (cache.note or "")
    assert "every start compiles" in (cache.note or "")


def test_two_writers_at_once_leave_whole_entries(kernels: Path, made: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    start = threading.Barrier(2)
    codes: list[list[bytes]] = []

    def work() -> None:
        start.wait()
        codes.append([get(folder, str(value)) for value in range(4)])

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes[0] == codes[1]
    assert len(list(folder.iterdir())) == 4
    compiled = len(made)
    assert [get(folder, str(value)) for value in range(4)] == codes[0]
    assert len(made) == compiled


def test_two_processes_share_a_folder(kernels: Path, made: list[str], tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from dflash_core import resources\n"
        "from dflash_core.backends.cuda.device import CubinCache\n"
        "kernels, cache = map(pathlib.Path, sys.argv[1:]); resources.kernels_dir = lambda: kernels\n"
        "for value in range(3): CubinCache(cache).get('f.cu', 'sm_80', {'VALUE': str(value)})\n"
    )
    folder = tmp_path / "cache"
    command = [sys.executable, "-c", code, str(kernels), str(folder)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    assert [(process.communicate()[1], process.returncode) for process in processes] == [("", 0)] * 2
    assert len(list(folder.iterdir())) == 3
    for value in range(3):
        get(folder, str(value))
    assert not made


def test_an_interrupted_write_leaves_nothing(kernels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    cache = CubinCache(tmp_path / "cache")
    assert cache.get("f.cu", "sm_80", {"VALUE": "1"})
    assert "No space left on device" in (cache.note or "")
    assert not list((tmp_path / "cache").iterdir())


def test_programs_compile_together_with_progress_and_only_once(kernels: Path, made: list[str], tmp_path: Path) -> None:
    variants = [Variant.of("f.cu", {"VALUE": value}) for value in range(5)]
    seen: list[tuple[int, int]] = []
    for start in range(2):
        torch = fake_torch()
        runtime = Runtime(*open_card(FakeDriver(), torch, {}), torch)
        programs = Programs(runtime, CubinCache(tmp_path / "cache"))
        programs.compile([*variants, variants[0]], lambda done, total: seen.append((done, total)))
        assert programs.kernel(variants[2], "f") is programs.kernel(variants[2], "f")
        assert programs.cache.compiled == (5 if start == 0 else 0)
    assert seen == [(i, 5) for i in range(1, 6)] * 2
    assert sorted(made) == [f"sm_90a {value}" for value in range(5)]


def test_a_source_that_does_not_compile_says_which(kernels: Path, tmp_path: Path) -> None:
    (kernels / "bad.cu").write_text('extern "C" __global__ void g() { x = 1; }\n')
    torch = fake_torch()
    runtime = Runtime(*open_card(FakeDriver(), torch, {}), torch)
    programs = Programs(runtime, CubinCache(tmp_path / "cache"))
    with pytest.raises(UnsupportedError, match=r'bad\.cu does not compile for sm_90a: .*"x" is undefined'):
        programs.compile([Variant.of("bad.cu")])
