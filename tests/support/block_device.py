"""Random block drafters for the golden target, on the CPU and on a device: see support.device_pairs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_core import load_target
from dflash_core.backends.cuda.activations import CHOICES
from dflash_core.backends.cuda.drafters.base import OnDevice, on_device
from dflash_core.backends.cuda.launch import Device
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.backends.cuda.upload import DeviceUpload
from dflash_core.backends.opened import Session, Target
from dflash_core.drafters.draft import Draft
from support.device_pairs import CONTEXT
from support.draft_files import random_draft
from support.golden import golden
from support.shallow import shallow

SIZES: dict[str, Any] = {"head_count": 2, "head_count_kv": 1, "key_length": 64, "feed_forward_length": 192}


@dataclass(frozen=True)
class BlockPair:
    """One pair on the CPU and on the device."""

    target: Target
    draft: Draft
    device_target: DeviceTarget
    device_draft: OnDevice

    def sessions(self, context: int = CONTEXT) -> tuple[CudaSession, Session]:
        ours = CudaSession(self.device_target, self.device_draft, context=context)
        return ours, self.target.session(self.draft)


def block_pair(device: Device, folder: Path, kind: str, half: bool = True, **changes: Any) -> BlockPair:
    """A random drafter of `kind`. `half`: activations f16, not int8. Where it reads no more than two layers of the
    target, the target has no more."""
    changes = {**SIZES, "target_layers": (0, 1), **changes}
    cut = max(changes["target_layers"]) < 2
    target = load_target(shallow("tiny-F16.gguf") if cut else golden("tiny-F16.gguf"))
    folder.mkdir(exist_ok=True)
    draft = random_draft(folder, target, kind, **changes)
    with device.stream():
        uploads = [DeviceUpload(device, weights) for weights in (target.file, draft.file)]
        activations = CHOICES["f16" if half else "mixed"]
        device_target = DeviceTarget(device, uploads[0], target.config, activations)
        device_draft = on_device(draft.config, uploads[1], device_target, activations)
        for upload in uploads:
            upload.close()
    return BlockPair(target, draft, device_target, device_draft)
