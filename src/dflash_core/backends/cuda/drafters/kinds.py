"""Chooses the drafter on a card by the kind of its config."""

from __future__ import annotations

from dflash_core.backends.cuda.activations import Activations
from dflash_core.backends.cuda.drafters.base import OnDevice
from dflash_core.backends.cuda.drafters.dflash import DFlashOnDevice
from dflash_core.backends.cuda.drafters.dflash_weights import DeviceDraft
from dflash_core.backends.cuda.drafters.mtp import MtpOnDevice
from dflash_core.backends.cuda.drafters.mtp_weights import DeviceMtp
from dflash_core.backends.cuda.layers.base import Upload
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.config import DraftConfig, MtpConfig

DeviceConfig = DraftConfig | MtpConfig
"""Configs of the drafters that propose on a card."""


def on_device(
    config: DeviceConfig, upload: Upload, target: DeviceTarget, activations: Activations, mask_token: int = 0
) -> OnDevice:
    """A drafter of `target` with the weights of `upload`. Raises UnsupportedError."""
    if isinstance(config, MtpConfig):
        return MtpOnDevice(DeviceMtp(target.device, upload, config, activations), target)
    return DFlashOnDevice(DeviceDraft(target.device, upload, config, activations), mask_token)
