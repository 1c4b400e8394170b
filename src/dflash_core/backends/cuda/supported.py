"""What no kernel does yet: a model that needs it is refused by name, before any of its weights is read.

Sizes that kernels do not support are refused by the layers themselves.
"""

from __future__ import annotations

from collections.abc import Iterator

from dflash_core.arch.kinds import Attention, Experts
from dflash_core.arch.spec import LayerSpec, ModelSpec
from dflash_core.errors import cpu_only


def check_supported(spec: ModelSpec) -> None:
    """Raises UnsupportedError for a target that a card cannot run. Its layers' options are data of `arch/`."""
    missing = dict.fromkeys(name for layer in spec.layers for name in _missing(layer))  # each once, in order
    if missing:
        raise cpu_only(f"{spec.name} needs what no kernel does yet on a card: {', '.join(missing)}")


def _missing(layer: LayerSpec) -> Iterator[str]:
    mixer, ffn = layer.mixer, layer.ffn
    if isinstance(mixer, Attention) and mixer.gate == "sigmoid" and "attn_q" in mixer.biases:
        yield "biases of gated queries"
    if not isinstance(ffn, Experts):
        return
    if ffn.router_scale and ffn.shared and ffn.shared_gate:
        yield "a gated shared expert beside a router that reads other rows than the experts"
    if ffn.biases and ffn.shared:
        yield "biases of experts beside a shared one"
    if ffn.choice_bias and ffn.router == "softmax":
        yield "a bias for the choice of experts by softmax"
