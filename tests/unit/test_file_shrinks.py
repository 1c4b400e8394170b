"""A model file that becomes shorter while it is in use is told in one line. A memory map would end the process."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.golden import golden

SHRINK = """
import os, sys
from dflash_core.errors import DFlashError
from dflash_core.drafters.dflash_file import open_drafter
from dflash_core.loading import open_target
from dflash_core.progress import silent
sys.path.insert(0, sys.argv[3])
path = sys.argv[2]

def cut():
    os.truncate(path, os.path.getsize(path) // 3)

def dense():
    target = open_target(path)
    cut()
    target.load(packed=False, progress=silent)

def packed():
    target = open_target(path)
    target.load(packed=True, progress=silent)
    cut()
    target.logits([1, 2, 3])

def device():
    from support.emulated_device import EmulatedDevice
    from dflash_core.backends.cuda.upload import DeviceUpload
    file = open_target(path).file
    device = EmulatedDevice()
    cut()
    with device.stream():
        upload = DeviceUpload(device, file)
        for name in file.tensors:
            upload.raw(name)

def drafter():
    config, file = open_drafter(path)
    cut()
    for name in file.tensors:
        file.float32(name)

try:
    {name}()
except DFlashError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("reader", "file"),
    [
        ("dense", "tiny-F16.gguf"),
        ("packed", "tiny-F16.gguf"),
        ("device", "tiny-F16.gguf"),
        ("drafter", "tiny-dflash/model.safetensors"),
    ],
)
def test_one_line(reader: str, file: str, tmp_path: Path) -> None:
    copy = tmp_path / Path(file).name
    shutil.copy(golden(file), copy)
    if (config := golden(file).parent / "config.json").exists():
        shutil.copy(config, tmp_path)
    program = SHRINK.replace("{name}", reader)
    command = [sys.executable, "-c", program, reader, str(copy), str(Path(__file__).parents[1])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{copy.name} has become shorter while it was in use" in done.stdout
    assert done.stdout.count("\n") == 1
