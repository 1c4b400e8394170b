"""Memory plans of published models from their shapes: no weights are needed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dflash_core.arch.assistant import AssistantConfig
from dflash_core.arch.spec import ModelSpec
from dflash_core.backends.cpu.machine import CpuMachine, HostMemoryEstimator
from dflash_core.backends.cuda.activations import activations
from dflash_core.backends.cuda.memory_estimator import CardMemoryEstimator, Footprint
from dflash_core.backends.cuda.meta import PlannedCard
from dflash_core.bench.synthetic_models import Model, draft_types, target_types
from dflash_core.config import DraftConfig, MtpConfig
from dflash_core.expert_places import possible_layers
from dflash_core.fits import DEFAULT_CARD, ON_HOST, CardOptions, MemoryEstimator
from dflash_core.formats.quants import BY_NAME, LIST_TYPES
from dflash_core.formats.weights import TensorInfo
from dflash_core.loading import planned_card


@dataclass(frozen=True, slots=True)
class ShapeHeader:
    """The part of a WeightFile that plans need: the shapes and types of tensors."""

    path: Path
    tensors: Mapping[str, TensorInfo]


@dataclass(frozen=True, slots=True)
class ShapedDraft:
    """The part of an OpenedDraft that plans need."""

    files: tuple[ShapeHeader, ...]
    config: DraftConfig | AssistantConfig | MtpConfig


def header(name: str, shapes: Mapping[str, tuple[int, ...]], types: Mapping[str, str]) -> ShapeHeader:
    """A file of these tensors."""
    kinds, tensors = {**BY_NAME, **LIST_TYPES}, {}
    for tensor, shape in shapes.items():
        elements, kind = math.prod(shape), kinds[types[tensor]]
        nbytes = elements // kind.block * kind.size
        tensors[tensor] = TensorInfo(tensor, tuple(shape), types[tensor], nbytes, elements, 0, 0)
    return ShapeHeader(Path(name), tensors)


def headers(model: Model, draft: str) -> tuple[ModelSpec, Any, Any]:
    """The target's spec, its file, and its drafter, whose matrices are of the type `draft`; None for ""."""
    spec = model.target()
    config = model.drafter()
    types = {name: kind if kind == "F32" else draft for name, kind in draft_types(config).items()}
    drafter = ShapedDraft((header("draft", config.tensors(), types),), config) if draft else None
    return spec, header(model.name, spec.tensors(), target_types(spec, model)), drafter


def estimator_of_shapes(
    model: Model, draft: str, device: str = "auto", *, memory: int = 0, card: CardOptions = DEFAULT_CARD
) -> MemoryEstimator:
    """The estimator of a model and its drafter, with the options of `loading.estimator_of`."""
    spec, target, drafter = headers(model, draft)
    found = planned_card(device, memory, card)
    if found is None:
        return HostMemoryEstimator(CpuMachine(), target, spec, drafter, memory)
    if 0 < card.vram_limit < found.free:
        found = replace(found, free=card.vram_limit)
    return card_estimator(spec, target, drafter, found, card)


def card_estimator(
    spec: ModelSpec, target: Any, drafter: Any, found: PlannedCard, card: CardOptions = DEFAULT_CARD
) -> CardMemoryEstimator:
    on_host = card.embedding == ON_HOST
    footprint = Footprint(target, spec, found.layout, activations(card.activations), embedding_on_host=on_host)
    layers = possible_layers(card.experts, spec)
    return CardMemoryEstimator(
        footprint, drafter, machine=found.name, available=found.free, draft_type=card.draft_type, expert_layers=layers
    )
