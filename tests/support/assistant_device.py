"""The golden Gemma targets with their assistants, on the CPU and on a device."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dflash_core import load_draft
from dflash_core.backends.cuda.activations import CHOICES
from dflash_core.backends.cuda.drafters.base import OnDevice, on_device
from dflash_core.backends.cuda.session import CudaSession
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.backends.cuda.upload import DeviceUpload
from dflash_core.backends.opened import Session, Target
from dflash_core.cache_types import F16, CachePair
from dflash_core.drafters.draft import Draft
from support.device_pairs import CONTEXT, device_named
from support.golden import other_targets, target

ASSISTANTS = {"gemma4-e-assistant-F16": "gemma4-e-F16", "gemma4-moe-assistant-F16": "gemma4-moe-Q8_0"}
PRESENT = [path.stem for path in other_targets("gemma4-*-assistant-*.gguf")]


def loaded(name: str) -> tuple[Target, Draft, Any]:
    """The target of an assistant, the assistant with the golden file's number of cells, and what it should give."""
    of = target(f"{ASSISTANTS[name]}.gguf")
    draft, expected = load_draft(other_targets(f"{name}.gguf")[0], of), np.load(other_targets(f"{name}.npz")[0])
    if draft.model.centroids is not None:
        draft.model.centroids.used = int(expected["centroid_top_k"])
    return of, draft, expected


@dataclass(frozen=True)
class AssistantPair:
    """One pair on the CPU and on the device."""

    target: Target
    draft: Draft
    device_target: DeviceTarget
    device_draft: OnDevice
    expected: Any

    @property
    def ids(self) -> list[int]:
        return [int(token) for token in self.expected["ids"]]

    def sessions(self, context: int = CONTEXT, kv: CachePair = F16) -> tuple[CudaSession, Session]:
        ours = CudaSession(self.device_target, self.device_draft, context=context, kv=kv)
        return ours, self.target.session(self.draft)


@functools.cache
def assistant_pair(device_name: str, name: str, activations: str = "f16") -> AssistantPair:
    of, draft, expected = loaded(name)
    device, chosen = device_named(device_name), CHOICES[activations]
    cells = draft.model.centroids.used if draft.model.centroids is not None else 0
    with device.stream():
        uploads = [DeviceUpload(device, weights) for weights in (of.file, draft.file)]
        device_target = DeviceTarget(device, uploads[0], of.config, chosen)
        model = on_device(
            replace(draft.config, cells_used=cells or draft.config.cells_used), uploads[1], device_target, chosen
        )
        for upload in uploads:
            upload.close()
    return AssistantPair(of, draft, device_target, model, expected)
