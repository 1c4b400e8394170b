"""Folders of GPT-OSS: experts as MXFP4 or as floats, gate and up of an expert row by row in turn."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dflash_core.arch.folders.form import ATTENTION, Form, Maker, Values, refused
from dflash_core.arch.folders.settings import check_activation, common, sliding, whole_rotary
from dflash_core.arch.kinds import CLAMP, CLAMP_ALPHA
from dflash_core.formats.folders.floats8 import halves_in_bytes
from dflash_core.formats.folders.layouts import Modules
from dflash_core.formats.folders.parts import Part, computed
from dflash_core.formats.metadata import Settings
from dflash_core.formats.quants import FLOATS, Bytes
from dflash_core.formats.weights import WeightFile

EXPERTS = "mlp.experts."
GATE, UP, DOWN = "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"
OF: Mapping[str, tuple[str, ...]] = {"gate_up_proj": (GATE, UP), "down_proj": (DOWN,)}
"""What a tensor's rows, one after the other, belong to."""


def settings(keys: Settings, modules: Modules) -> Values:
    """Of 20B and 120B."""
    check_activation(keys, "hidden_act")
    for name, expected in (("swiglu_limit", CLAMP), ("swiglu_alpha", CLAMP_ALPHA)):
        if keys.number(name, default=expected) != expected:
            raise refused(keys, name, f"{expected:g}")
    keys.find("attention_bias")  # the tensors say so
    values = common(keys) | whole_rotary(keys, truncate=False)
    return values | {
        "attention.sliding_window": keys.integer("sliding_window"),
        "attention.sliding_window_pattern": sliding(keys, [at % 2 == 0 for at in range(values["block_count"])]),
        "expert_count": keys.integer("num_local_experts", "num_experts"),
        "expert_used_count": keys.integer("num_experts_per_tok", "experts_per_token"),
        "expert_feed_forward_length": keys.integer("intermediate_size"),
    }


def _packed(modules: Modules, module: str) -> Mapping[str, Part]:
    modules.check_type(module, "U8")
    name = module.removesuffix("_blocks")
    to = OF[name.rpartition(".")[2]]
    return {f"{one}.weight": mxfp4_experts(modules.file, name, at, len(to)) for at, one in enumerate(to)}


def _floats(modules: Modules, module: str) -> Mapping[str, Part]:
    info, to = modules.file.tensors[module], OF[module.rpartition(".")[2]]
    if len(info.shape) != 3 or info.shape[2] % len(to):
        raise modules.file.damaged(module, f"has shape {list(info.shape)}", "experts, inputs and outputs")
    modules.check_type(module, *FLOATS)
    return {f"{one}.weight": turned_experts(modules.file, module, at, len(to)) for at, one in enumerate(to)}


def _biases(modules: Modules, module: str) -> Mapping[str, Part]:
    to = OF[module.rpartition(".")[2].removesuffix("_bias")]
    return {f"{one}.bias": _bias(modules, module, at, len(to)) for at, one in enumerate(to)}


def _bias(modules: Modules, module: str, first: int, step: int) -> Part:
    modules.check_type(module, *FLOATS)
    experts, rows = modules.file.tensors[module].shape[0], modules.file.tensors[module].shape[-1]
    return computed(
        module, (experts, rows // step),
        lambda: np.ascontiguousarray(modules.file.float32(module)[:, first::step]),
    )  # fmt: skip


MADE: dict[str, Maker] = {}
for _part in OF:
    MADE |= {f"{EXPERTS}{_part}_blocks": _packed, f"{EXPERTS}{_part}_scales": lambda modules, module: {}}
    MADE |= {f"{EXPERTS}{_part}": _floats, f"{EXPERTS}{_part}_bias": _biases}
NAMES = ATTENTION | {
    "self_attn.sinks": "attn_sinks",
    "post_attention_layernorm": "post_attention_norm",
    "mlp.router": "ffn_gate_inp",
}
FORM = Form("gpt-oss", settings, NAMES, made=MADE, harmless=frozenset({"initial_context_length", "experts_per_token"}))


def mxfp4_experts(file: WeightFile, name: str, first: int = 0, step: int = 1) -> Part:
    """NAME_blocks (experts, rows, inputs / 32, 16), two neighbours in a byte, with NAME_scales (experts, rows,
    inputs / 32): powers of two by their exponents. Raises FormatError."""
    stored, scales = file.tensors[name + "_blocks"], file.tensors.get(name + "_scales")
    fits = scales is not None and (*scales.shape, 16) == stored.shape and len(stored.shape) == 4
    if not fits or {stored.type, scales.type if scales else ""} != {"U8"} or stored.shape[1] % step:
        expected = "U8 (experts, rows, blocks, 16) and _scales of the same sizes"
        raise file.damaged(stored.name, f"is {stored.type} {list(stored.shape)}", expected)
    experts, each, blocks, _ = stored.shape

    def read(begin: int, end: int) -> Bytes:
        rows = slice(begin * step, end * step)
        codes = file.raw(name + "_blocks", slice(rows.start * blocks, rows.stop * blocks)).view("<u8")
        codes = codes.reshape(-1, step, blocks, 2)[:, first]
        found = np.empty((end - begin, blocks, 17), np.uint8)
        found[..., 0] = file.raw(name + "_scales", rows).reshape(-1, step, blocks)[:, first]
        found[..., 1:] = halves_in_bytes(np.ascontiguousarray(codes))
        return found.reshape(end - begin, -1)

    return Part(name, "MXFP4", (experts, each // step, blocks * 32), read)


def turned_experts(file: WeightFile, name: str, first: int = 0, step: int = 1) -> Part:
    """Floats (experts, inputs, outputs)."""
    info = file.tensors[name]
    experts, inputs, outputs = info.shape
    each = outputs // step

    def read(begin: int, end: int) -> Bytes:
        found = []
        for expert in range(begin // each, -(-end // each)):
            stored = file.raw(name, slice(expert * inputs, (expert + 1) * inputs))
            values = stored.view({2: np.uint16, 4: np.uint32}[stored.shape[1] // outputs])
            rows = slice(max(begin - expert * each, 0), min(end - expert * each, each))
            found.append(np.ascontiguousarray(values[:, first::step][:, rows].T).view(np.uint8))
        return np.concatenate(found) if found else np.empty((0, inputs * 2), np.uint8)

    return Part(name, info.type, (experts, each, inputs), read)
