"""The golden target with its golden MTP head, on the CPU and on a device: see support.device_pairs."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from dflash_core import load_draft, load_target
from dflash_core.backends.base import Session, Target
from dflash_core.backends.cpu.mtp import CpuMtp
from dflash_core.backends.cuda.activations import CHOICES
from dflash_core.backends.cuda.drafters.mtp import MtpOnDevice
from dflash_core.backends.cuda.drafters.mtp_weights import DeviceMtp
from dflash_core.backends.cuda.launch import Device
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.backends.cuda.upload import DeviceUpload
from support.device_pairs import CONTEXT, device_named
from support.golden import golden
from support.mtp_files import HEAD


@dataclass(frozen=True)
class MtpPair:
    """One pair on the CPU and on the device."""

    target: Target
    head: CpuMtp
    device_target: DeviceTarget
    device_head: MtpOnDevice

    def sessions(self, context: int = CONTEXT) -> tuple[CudaSession, Session]:
        ours = CudaSession(self.device_target, self.device_head, context=context)
        return ours, self.target.session(self.head)


@functools.cache
def mtp_pair(device_name: str, half: bool = True) -> MtpPair:
    return mtp_pair_on(device_named(device_name), half)


def mtp_pair_on(device: Device, half: bool = True, head_file: Path = HEAD) -> MtpPair:
    """A pair of its own. `half`: activations f16, not int8."""
    target = load_target(golden("tiny-F16.gguf"))
    head = load_draft(head_file, target)
    assert isinstance(head, CpuMtp)
    with device.stream():
        uploads = [DeviceUpload(device, weights) for weights in (target.file, head.file)]
        activations = CHOICES["f16" if half else "mixed"]
        device_target = DeviceTarget(device, uploads[0], target.config, activations)
        device_head = MtpOnDevice(DeviceMtp(device, uploads[1], head.config, activations), device_target)
        for upload in uploads:
            upload.close()
    return MtpPair(target, head, device_target, device_head)
