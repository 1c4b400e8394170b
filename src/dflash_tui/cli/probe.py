"""The checks that `doctor` runs in a separate process, because a broken driver can hang or kill its process.

`python -m dflash_tui.cli.probe` prints one JSON object per stage, `{"stage": {facts}}`, each as soon as it is
known: the stages before a crash are not lost, and the first missing one is the one that crashed. Libraries
come first, the driver last.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib import import_module
from typing import Any

from dflash_core import nvrtc, resources
from dflash_core.backends.cuda import driver as cuda_driver
from dflash_core.demo import demo_draft_path, demo_target_path
from dflash_core.errors import DFlashError
from dflash_core.nvml import Management

Facts = dict[str, Any]
KERNEL = "probe.cu"


def torch() -> Facts:
    build = import_module("torch")
    return {"version": build.__version__, "cuda": build.version.cuda}


def compiler() -> Facts:
    """Compile the probe kernel for every supported architecture."""
    source = (resources.kernels_dir() / KERNEL).read_text(encoding="utf-8")
    for arch in nvrtc.ARCHITECTURES:
        nvrtc.compile_cubin(source, KERNEL, arch)
    return {"version": nvrtc.version(), "architectures": nvrtc.ARCHITECTURES}


def demo() -> Facts:
    """Load the demo pair as the app would."""
    from dflash_core.engine import load_pair

    for path in (demo_target_path(), demo_draft_path()):
        if not path.is_file():
            raise DFlashError(f"{path} is missing")
    started = time.perf_counter()
    load_pair(demo_target_path(), demo_draft_path(), "cpu")
    return {"seconds": time.perf_counter() - started}


def management() -> Facts:
    """The facts from NVIDIA's management library, which uses no card."""
    with Management() as library:
        cards = [asdict(card) for card in library.cards()]
        return {"driver": library.driver, "cuda": library.cuda, "cards": cards}


def driver() -> Facts:
    """What the driver says of the first card, or why it refuses; raises DeviceError where there is none."""
    calls = cuda_driver.Driver(cuda_driver.find_driver())
    try:
        card, count = cuda_driver.describe_card(calls), calls.call("the cards", calls.api.cuDeviceGetCount)
    except DFlashError as error:
        return {"error": str(error), "refuses": True}
    return {"count": count, "name": card.name, "capability": card.capability, "free": card.free, "total": card.total}


def kernels() -> Facts:
    """Run a small pair on the first card, and compare with the CPU."""
    from dflash_core.backends.cuda import device, selftest

    started, card = time.perf_counter(), device.CudaDevice()
    selftest.run(card, demo_target_path(), demo_draft_path())
    return {"seconds": time.perf_counter() - started, "note": card.programs.cache.note}


STAGES: Mapping[str, Callable[[], Facts]] = {
    stage.__name__: stage for stage in (torch, compiler, demo, management, driver, kernels)
}


def main() -> None:
    for name, stage in STAGES.items():
        try:
            facts = stage()
        except Exception as error:  # any exception of a broken installation is a finding
            facts = {"error": " ".join(str(error).split()) or type(error).__name__}
        sys.stdout.write(json.dumps({name: facts}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
