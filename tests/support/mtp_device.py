"""The golden target with its golden MTP head, on the CPU and on a device: see support.device_pairs."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from dflash_core import load_draft, load_target
from dflash_core.backends.cuda.activations import CHOICES
from dflash_core.backends.cuda.drafters.mtp import DeviceMtp
from dflash_core.backends.cuda.launch import Device
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.backends.cuda.upload import DeviceUpload
from dflash_core.backends.opened import Session, Target
from dflash_core.drafters.draft import Draft
from support.device_pairs import CONTEXT, device_named
from support.golden import golden
from support.mtp_files import HEAD
from support.shallow import shallow, shallow_head


@dataclass(frozen=True)
class MtpPair:
    """One pair on the CPU and on the device."""

    target: Target
    head: Draft
    device_target: DeviceTarget
    device_head: DeviceMtp

    def sessions(self, context: int = CONTEXT) -> tuple[CudaSession, Session]:
        ours = CudaSession(self.device_target, self.device_head, context=context)
        return ours, self.target.session(self.head)


@functools.cache
def mtp_pair(device_name: str, half: bool = True) -> MtpPair:
    return mtp_pair_on(device_named(device_name), half)


@functools.cache
def whole_mtp_pair(device_name: str) -> MtpPair:
    """With all layers of the target."""
    return mtp_pair_on(device_named(device_name), head_file=HEAD)


def mtp_pair_on(device: Device, half: bool = True, head_file: Path | None = None) -> MtpPair:
    """A pair of its own, cut if no file with a head for the whole target is given: see support.shallow. `half`:
    activations f16, not int8."""
    file = "tiny-F16.gguf"
    target = load_target(golden(file) if head_file else shallow(file))
    head = load_draft(head_file or shallow_head(), target)
    with device.stream():
        uploads = [DeviceUpload(device, weights) for weights in (target.file, head.file)]
        activations = CHOICES["f16" if half else "mixed"]
        device_target = DeviceTarget(device, uploads[0], target.config, activations)
        device_head = DeviceMtp(head.config, uploads[1], device_target, activations)
        for upload in uploads:
            upload.close()
    return MtpPair(target, head, device_target, device_head)
