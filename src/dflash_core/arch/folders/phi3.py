"""Folders of Phi-3, 3.5 and 4, and of GLM-4: gate and up of a layer as one module, and Phi's Q, K and V as another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dflash_core.arch.folders.form import ATTENTION, Form, Values
from dflash_core.arch.folders.settings import DIVISORS, check_activation, common, rotary
from dflash_core.arch.rope import SCALING, LongRope
from dflash_core.errors import FormatError
from dflash_core.formats.folders.layouts import Modules
from dflash_core.formats.folders.parts import Part, rows_in_order
from dflash_core.formats.metadata import Settings


def settings(keys: Settings, modules: Modules) -> Values:
    """Phi's: sizes, the window of all layers, and rotary positions. Raises FormatError or UnsupportedError."""
    check_activation(keys, "hidden_act")
    found = keys.get("rope_parameters") or keys.get("rope_scaling") or {}
    long = isinstance(found, Mapping) and found.get("rope_type", found.get("type")) in ("longrope", "su")
    plain = {**found, "rope_type": "default"} if long else found
    inner = keys.part(values={**keys.values, "rope_parameters": plain, "rope_scaling": None})
    values = _sizes(keys, inner)
    keys.find("original_max_position_embeddings")  # of no effect without scaling
    if long:
        values |= _long(keys, keys.part(values=found), values["rope.dimension_count"] // 2)
    return values | {"attention.sliding_window": keys.get("sliding_window") or 0}


def glm4(keys: Settings, modules: Modules) -> Values:
    """GLM-4's. Raises FormatError or UnsupportedError."""
    check_activation(keys, "hidden_act")
    keys.find("attention_bias")  # the tensors say so
    return _sizes(keys, keys)


def _sizes(keys: Settings, rope: Settings) -> Values:
    values = common(keys) | rotary(rope, 1e4) | {"feed_forward_length": keys.integer("intermediate_size")}
    values["rope.dimension_count"] = int(values["rope.dimension_count"] * values.pop("rope.partial"))
    return values


def _long(keys: Settings, inner: Settings, pairs: int) -> Values:
    """LongRoPE's divisors for long contexts, and its scaling."""
    length, divisors = "original_max_position_embeddings", inner.get("long_factor")
    if (
        not isinstance(divisors, list)
        or len(divisors) != pairs
        or not all(type(one) in (int, float) for one in divisors)
    ):
        raise FormatError(
            f"{keys.source}: long_factor is {str(divisors)[:40]}, expected {pairs} numbers; download it again"
        )
    original = (keys if keys.find(length) else inner).integer(length, low=2, high=1 << 40)
    factor = keys.integer("max_position_embeddings", high=1 << 40) / original
    factor = inner.number("factor", default=max(factor, 1.0))
    usual = math.sqrt(1 + math.log(factor) / math.log(original))
    return {DIVISORS: divisors, SCALING: LongRope(original, inner.number("attention_factor", default=usual))}


def _apart(modules: Modules, module: str, names: Sequence[str], first: int) -> Mapping[str, Part]:
    """A module's rows as separate matrices: `first` rows of the first one, the others in equal parts."""
    whole = modules.part(module)
    each = (whole.shape[0] - first) // (len(names) - 1)
    begins = [0, *(first + at * each for at in range(len(names)))]
    return {
        f"{name}.weight": rows_in_order(whole, range(begin, end)) for name, begin, end in zip(names, begins, begins[1:])
    }


def _attention(modules: Modules, module: str) -> Mapping[str, Part]:
    output = module.replace("qkv_proj", "o_proj")  # as wide as the queries; a missing one is refused later
    queries = modules.part(output).shape[1] if output in modules.modules else 0
    return _apart(modules, module, ("attn_q", "attn_k", "attn_v"), queries)


def _gate_up(modules: Modules, module: str) -> Mapping[str, Part]:
    """Gate and up of a feed-forward."""
    return _apart(modules, module, ("ffn_gate", "ffn_up"), modules.part(module).shape[0] // 2)


NAMES = {"mlp.gate_up_proj": "ffn_gate_up", "mlp.down_proj": "ffn_down"}
FORM = Form(
    "phi3", settings, ATTENTION | NAMES | {"self_attn.qkv_proj": "attn_qkv"},
    made={"attn_qkv": _attention, "ffn_gate_up": _gate_up},
)  # fmt: skip
GLM4 = Form(
    "glm4", glm4,
    ATTENTION | NAMES | {
        "post_self_attn_layernorm": "post_attention_norm", "post_attention_layernorm": "ffn_norm",
        "post_mlp_layernorm": "post_ffw_norm",
    },
    made={"ffn_gate_up": _gate_up}, defaults={"partial_rotary_factor": 0.5},
)  # fmt: skip
