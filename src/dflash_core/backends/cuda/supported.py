"""What no kernel does yet: a model that needs it is refused by name, before any of its weights is read.

Sizes that kernels do not support are refused by the layers themselves.
"""

from __future__ import annotations

from collections.abc import Iterator

from dflash_core.arch.kinds import Attention
from dflash_core.arch.spec import LayerSpec, ModelSpec
from dflash_core.errors import cpu_only


def check_supported(spec: ModelSpec) -> None:
    """Raises UnsupportedError for a target that a card cannot run. Its layers' options are data of `arch/`."""
    missing = dict.fromkeys(name for layer in spec.layers for name in _of_attention(layer))  # each once, in order
    if missing:
        raise cpu_only(f"{spec.name} needs what no kernel does yet on a card: {', '.join(missing)}")


def _of_attention(layer: LayerSpec) -> Iterator[str]:
    spec = layer.mixer
    if not isinstance(spec, Attention):
        return
    options = {
        "biases of gated queries": spec.gate == "sigmoid" and "attn_q" in spec.biases,
    }
    yield from (name for name, needed in options.items() if needed)
