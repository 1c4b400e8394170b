"""Folders on a device: quantised layouts give the CPU's logits, in passes and in a chunk, and the plan's memory is
that of the load."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dflash_core import load_target
from dflash_core.backends.cuda.meta import MetaDevice
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.backends.cuda.upload import DeviceUpload, Upload
from support.device_pairs import device_named
from support.folders import PRE, quantised, saved, wide
from support.grids import full
from support.on_a_device import KL_BAR, chain, check_bits, divergences, session_of
from support.quantised import LAYOUTS
from support.random_family import first_close
from support.random_model import VOCAB

ROWS, MARGIN = 24, 5e-4
KINDS = [layout for layout in LAYOUTS if layout != "gptq-v2"]
TYPES = ({"INT4S_128", "INT4_32", "F8_E4M3"}, {"INT4_64", "INT4_32", "F8_E4M3", "NVFP4"}, {"F8_E4M3", "NVFP4"})


def folder(name: str, seed: int, layouts: list[str], path: Path) -> Path:
    quantised(path, saved(wide(name, seed), path, PRE.get(name, "qwen2")), layouts, seed)
    return path


# Each third with experts and in one dense model; with `full` in both.
@pytest.mark.parametrize(
    ("name", "turn"),
    [
        (name, turn) if name == "qwen35moe" or turn % 2 == (name == "qwen3") else full(name, turn)
        for name in ("qwen35", "qwen35moe", "qwen3")
        for turn in range(3)
    ],
)
def test_logits_are_those_of_the_cpu(device_name: str, name: str, turn: int, tmp_path: Path) -> None:
    """Layouts mixed per matrix, a third of them in each turn."""
    target = load_target(folder(name, turn + 3, KINDS[turn::3], tmp_path))
    assert {info.type for info in target.file.tensors.values()} >= TYPES[turn]
    ids = np.random.default_rng(turn).integers(0, VOCAB, ROWS).tolist()
    logits = session_of(device_name, target).verify(ids, chain(ROWS, np.random.default_rng(0)))
    rows = first_close(target, ids, MARGIN)
    assert rows >= 6
    assert divergences(logits, target.logits(ids))[:rows].mean() < KL_BAR


@pytest.mark.parametrize("activations", ["f16", "int8"])
def test_trees_leave_the_bits_of_plain_decoding(device_name: str, activations: str, tmp_path: Path) -> None:
    target = load_target(folder("qwen35", 1, ["gptq-128-signed", "awq-32", "fp8-block", "nvfp4-modelopt"], tmp_path))
    session = session_of(device_name, target, activations)
    check_bits(session, np.random.default_rng(0), begin=12, positions=4)


def test_a_plan_counts_what_a_load_takes(tmp_path: Path) -> None:
    target = load_target(folder("qwen35", 2, KINDS[1:9:2], tmp_path))
    device, planned = device_named("emulated"), Upload(target.file)
    DeviceTarget(MetaDevice(device.card), planned, target.config)
    upload = DeviceUpload(device, target.file, nbytes=planned.nbytes)
    with device.stream():
        DeviceTarget(device, upload, target.config)
    upload.close()
    assert upload.nbytes == planned.nbytes
