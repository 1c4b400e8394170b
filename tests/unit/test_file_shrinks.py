"""A model file that becomes shorter while it is in use is one line of error. A memory map would end the process."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from support.golden import golden

SHRINK = """
import os, sys
from dflash_core.errors import DFlashError
from dflash_core.drafters.dflash import open_drafter
from dflash_core.loading import open_target
from dflash_core.progress import silent
sys.path.insert(0, sys.argv[1])

def cut(path):
    os.truncate(path, os.path.getsize(path) // 3)

def dense(path):
    target = open_target(path)
    cut(path)
    target.load(packed=False, progress=silent)

def packed(path):
    target = open_target(path)
    target.load(packed=True, progress=silent)
    cut(path)
    target.logits([1, 2, 3])

def device(path):
    from support.emulated_device import EmulatedDevice
    from dflash_core.backends.cuda.upload import DeviceUpload
    file = open_target(path).file
    device = EmulatedDevice()
    cut(path)
    with device.stream():
        upload = DeviceUpload(device, file)
        for name in file.tensors:
            upload.raw(name)

def drafter(path):
    config, file = open_drafter(path)
    cut(path)
    for name in file.tensors:
        file.float32(name)

for read, path in zip((dense, packed, device, drafter), sys.argv[2:], strict=True):
    try:
        read(path)
    except DFlashError as error:
        print(read.__name__, error, flush=True)
"""
FILES = {
    "dense": "tiny-F16.gguf",
    "packed": "tiny-F16.gguf",
    "device": "tiny-F16.gguf",
    "drafter": "tiny-dflash/model.safetensors",
}


def test_one_line(tmp_path: Path) -> None:
    """One program runs all readers in turn. A reader that ends it is the one after the last that printed its line."""
    copies = []
    for reader, file in FILES.items():
        copies.append(copy := tmp_path / reader / Path(file).name)
        copy.parent.mkdir()
        shutil.copy(golden(file), copy)
        if (config := golden(file).parent / "config.json").exists():
            shutil.copy(config, copy.parent)
    command = [sys.executable, "-c", SHRINK, str(Path(__file__).parents[1]), *map(str, copies)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(FILES)
    for (reader, file), line in zip(FILES.items(), lines, strict=True):
        assert line.startswith(f"{reader} ")
        assert f"{Path(file).name} has become shorter while it was in use" in line
