"""Memory plans of published models from their shapes: no weights are needed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from dflash_core.arch.spec import ModelSpec
from dflash_core.backends.cpu.machine import CpuMachine, HostMemoryEstimator
from dflash_core.backends.cuda.activations import activations
from dflash_core.backends.cuda.memory_estimator import CardMemoryEstimator, Footprint
from dflash_core.backends.cuda.meta import PlannedCard
from dflash_core.bench.synthetic_models import Model, draft_types, target_types
from dflash_core.drafters.base import DraftModel
from dflash_core.drafters.capabilities import Capabilities
from dflash_core.drafters.draft import Draft, TargetHeader
from dflash_core.expert_places import possible_layers
from dflash_core.fits import DEFAULT_CARD, ON_HOST, CardOptions, MemoryEstimator
from dflash_core.formats.gguf import GGUFFile
from dflash_core.formats.quants import BY_NAME, LIST_TYPES
from dflash_core.formats.weights import TensorInfo
from dflash_core.loading import planned_card


def header(name: str, shapes: Mapping[str, tuple[int, ...]], types: Mapping[str, str]) -> GGUFFile:
    """A file of these tensors, as far as plans need it: it has no values."""
    kinds, tensors = {**BY_NAME, **LIST_TYPES}, {}
    for tensor, shape in shapes.items():
        elements, kind = math.prod(shape), kinds[types[tensor]]
        nbytes = elements // kind.block * kind.size
        tensors[tensor] = TensorInfo(tensor, tuple(shape), types[tensor], nbytes, elements, 0, 0)
    return GGUFFile(Path(name), tensors, (), 3, {})


def headers(model: Model, draft: str) -> tuple[ModelSpec, GGUFFile, Draft | None]:
    """The target's spec, its file, and its drafter, whose matrices are of the type `draft`; None for ""."""
    spec = model.target()
    config, file = model.drafter(), header(model.name, spec.tensors(), target_types(spec, model))
    if not draft:
        return spec, file, None
    types = {name: kind if kind == "F32" else draft for name, kind in draft_types(config).items()}
    return spec, file, drafter_of(spec, file, config, header("draft", config.tensors(), types))


def drafter_of(spec: ModelSpec, target: GGUFFile, config: DraftModel, file: GGUFFile) -> Draft:
    """A drafter in `file`, as far as plans need it."""
    return Draft(TargetHeader(target, spec), Capabilities(config.kind, 1), config, (file,))


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
    spec: ModelSpec, target: GGUFFile, drafter: Draft | None, found: PlannedCard, card: CardOptions = DEFAULT_CARD
) -> CardMemoryEstimator:
    on_host = card.embedding == ON_HOST
    footprint = Footprint(target, spec, found.layout, activations(card.activations), embedding_on_host=on_host)
    layers = possible_layers(card.experts, spec)
    return CardMemoryEstimator(
        footprint, drafter, machine=found.name, available=found.free, draft_type=card.draft_type, expert_layers=layers
    )
