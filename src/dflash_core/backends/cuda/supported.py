"""What no kernel does yet: a model that needs it is refused by name, before any of its weights is read.

Sizes that kernels do not support are refused by the layers themselves.
"""

from __future__ import annotations

from collections.abc import Iterator

from dflash_core.arch.kinds import Attention, Experts, SwiGLU
from dflash_core.arch.spec import LayerSpec, ModelSpec
from dflash_core.errors import cpu_only


def check_supported(spec: ModelSpec) -> None:
    """Raises UnsupportedError for a target that a card cannot run. Its layers' options are data of `arch/`."""
    missing = dict.fromkeys(_of_model(spec))  # each once, in order
    for layer in spec.layers:
        missing |= dict.fromkeys((*_of_layer(layer), *_of_attention(layer), *_of_feed_forward(layer)))
    if missing:
        raise cpu_only(f"{spec.name} needs what no kernel does yet on a card: {', '.join(missing)}")


def _of_model(spec: ModelSpec) -> Iterator[str]:
    if spec.embedding_scale != 1:
        yield "a scaled embedding"
    if spec.softcap or spec.logit_scale != 1:
        yield "scaled or capped logits"
    if spec.suppressed:
        yield "suppressed tokens"
    if spec.per_layer_input:
        yield "per-layer inputs"


def _of_layer(layer: LayerSpec) -> Iterator[str]:
    if layer.post_attn_norm or layer.post_ffn_norm:
        yield "norms after a branch"
    if layer.beside is not None:
        yield "experts beside a dense feed-forward"
    if layer.output_scale:
        yield "scaled layers"


def _of_attention(layer: LayerSpec) -> Iterator[str]:
    spec = layer.mixer
    if not isinstance(spec, Attention):
        return
    options = {
        "attention windows": spec.window,
        "divisors of rotary frequencies": spec.rope_factors,
        "an attention scale of its own": spec.scale not in (None, spec.head_dim**-0.5),
        "attention without norms over heads": not spec.qk_norm,
        "norms over values": spec.v_norm,
        "biases": spec.biases,
        "attention sinks": spec.sinks,
        "softplus gates": spec.gate == "softplus",
        "keys that are values": spec.key_is_value,
        "layers that share keys and values": spec.kv_from is not None,
    }
    yield from (name for name, needed in options.items() if needed)


def _of_feed_forward(layer: LayerSpec) -> Iterator[str]:
    spec = layer.ffn
    if isinstance(spec, SwiGLU | Experts) and spec.activation != "silu":
        yield f"{spec.activation} feed-forwards"
    if not isinstance(spec, Experts):
        return
    options = {
        "sigmoid routers": spec.router == "sigmoid",
        "router biases": spec.router_bias or spec.choice_bias,
        "scaled routers": spec.router_scale,
        "scaled experts": spec.expert_scales,
        "biases of experts": spec.biases,
        "shared experts without a gate": spec.shared and not spec.shared_gate,
    }
    yield from (name for name, needed in options.items() if needed)
