"""Makes the drafter on a card from its config, by its kind's row in the table of drafters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dflash_core.backends.cuda.activations import Activations
from dflash_core.backends.cuda.drafters.base import OnDevice
from dflash_core.backends.cuda.layers.base import Upload
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.drafters import registry
from dflash_core.drafters.base import DraftModel
from dflash_core.drafters.kinds import CARD

Loader = Callable[[Any, Upload, DeviceTarget, Activations], OnDevice]
"""Makes a drafter of its config and its weights; see `loaders` in drafters/kinds.py."""


def on_device(config: DraftModel, upload: Upload, target: DeviceTarget, activations: Activations) -> OnDevice:
    """A drafter of `target` with the weights of `upload`. Raises UnsupportedError."""
    load: Loader = registry.loader(config.kind, CARD)
    return load(config, upload, target, activations)
