"""Where the matrices of routed experts are: on the card, or those of the last layers in main memory."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_core.arch.facts import layers_of_experts, routed_tensors
from dflash_core.arch.kinds import Experts
from dflash_core.arch.spec import ModelSpec
from dflash_core.cache_types import AUTO
from dflash_core.errors import UnsupportedError
from dflash_core.fits import ON_CARD, ON_HOST
from dflash_core.memory import checked_experts


def possible_layers(experts: str, spec: ModelSpec) -> Sequence[int]:
    """The numbers of layers whose experts may be in main memory, the fewest first. Raises KnobError, and
    UnsupportedError for more layers than have experts."""
    layers = len(layers_of_experts(spec))
    known = {ON_CARD: (0,), ON_HOST: (layers,), AUTO: range(layers + 1)}
    if checked_experts(experts) in known:
        return known[experts]
    if int(experts) > layers:
        found = f"experts of {int(experts)} layers in main memory, but {layers} layers of the model have experts"
        raise UnsupportedError(f"{found}; give at most {layers}")
    return (int(experts),)


def tensors_on_host(spec: ModelSpec, layers: int) -> frozenset[str]:
    """The matrices of routed experts of the last `layers` layers that have any."""
    found = layers_of_experts(spec)
    chosen = ((index, spec.layers[index].ffn) for index in found[len(found) - layers :])
    return frozenset(name for index, ffn in chosen if isinstance(ffn, Experts) for name in routed_tensors(index, ffn))
