"""How an architecture's folder is read: its settings, the names of its tensors, and what changes in their values.

The names on the left of all tables are those of published checkpoints, the others are GGUF's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dflash_core.errors import FormatError, UnsupportedError
from dflash_core.formats.folders.layouts import BIAS, Modules
from dflash_core.formats.folders.parts import Part, computed, stack
from dflash_core.formats.metadata import Settings
from dflash_core.formats.quants import Float32
from dflash_core.formats.weights import shown

Values = dict[str, Any]
"""Settings by GGUF's names, without the architecture's prefix."""
Change = Callable[[Part, Values, Modules], Part]
"""What is done to a tensor of a folder before it has its name here, by the model's settings."""
Maker = Callable[[Modules, str], Mapping[str, Part]]
"""From a tensor's name in a folder: tensors by their names here, without the layer."""

PREFIXES = ("model.language_model.", "language_model.model.", "model.", "language_model.")
"""What precedes the names of a language model, the longer ones first."""
OTHERS = (
    "visual.", "vision_tower.", "vision_model.", "vision_embedder.", "multi_modal_projector.", "audio_tower.",
    "embed_vision.", "embed_audio.",
)  # fmt: skip
"""Parts that turn images and sounds into rows: text does without."""
_LAYER = re.compile(r"layers\.(\d+)\.(.+)")
_EXPERT = re.compile(r"(.*)\.experts\.(\d+)\.(\w+)")
_ROTARY = re.compile(r"rotary_emb\.inv_freq$")
"""Tensors that old checkpoints have and that follow from the settings."""
WITHOUT_ENDING = frozenset({"ssm_a"})

GLOBAL = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
    "embed_tokens_per_layer": "per_layer_token_embd",
    "per_layer_model_projection": "per_layer_model_proj",
    "per_layer_projection_norm": "per_layer_proj_norm",
    "pre_projection": "nextn.pre_projection",
    "post_projection": "nextn.post_projection",
    "masked_embedding.centroids": "masked_embd_centroids",
}
ATTENTION = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
}
DENSE = {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
EXPERTS = {
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
    "mlp.experts.gate_up_proj": "ffn_gate_up_exps",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}
"""Experts are a tensor for each, or one for all."""
MTP = {
    "fc": "nextn.eh_proj",
    "pre_fc_norm_embedding": "nextn.enorm",
    "pre_fc_norm_hidden": "nextn.hnorm",
    "norm": "nextn.shared_head_norm",
}


@dataclass(frozen=True, slots=True)
class Form:
    """Folders of one architecture.

    settings: a config's settings under GGUF's names. names: modules of a layer. changes: by names here, without the
    layer. made: tensors of a layer that become other ones than that of a module. harmless: settings that change
    nothing, in addition to those of `settings.HARMLESS`. defaults: what a config that leaves a setting out means.
    """

    architecture: str
    settings: Callable[[Settings, Modules], Values]
    names: Mapping[str, str]
    changes: Mapping[str, Change] = field(default_factory=dict)
    made: Mapping[str, Maker] = field(default_factory=dict)
    harmless: frozenset[str] = frozenset()
    defaults: Mapping[str, Any] = field(default_factory=dict)


def parts(form: Form, modules: Modules, values: Values, tied: bool | None) -> dict[str, Part]:
    """All tensors of a folder by their names here. A module without a name here keeps its own, and is refused with the
    unknown tensors. `tied`: whether the config says that the embedding is the head too, None where it does not say.
    Raises FormatError or UnsupportedError."""
    found, experts = dict[str, Part](), dict[str, dict[int, str]]()
    if tied is False and not any(bare_name(module) == "lm_head" for module in modules.modules):
        raise FormatError(
            f"{modules.file.path} has no lm_head, expected it: tie_word_embeddings is false; download the folder again"
        )
    for module in modules.modules:
        bare = bare_name(module)
        if is_of_images(module) or _ROTARY.search(bare) or (tied and bare == "lm_head"):
            continue
        if one := _EXPERT.fullmatch(bare):
            experts.setdefault(f"{one[1]}.experts.{one[3]}", {})[int(one[2])] = module
            continue
        block, name = _named(bare, form.names, values)
        if make := form.made.get(name):
            found |= {block + to: part for to, part in make(modules, module).items()}
            continue
        if (leaves := modules.modules[module]) != {BIAS}:
            part, change = modules.part(module), form.changes.get(name)
            whole = name if "." in name.removeprefix("nextn.") or name in WITHOUT_ENDING else f"{name}.weight"
            found[block + whole] = part if change is None else change(part, values, modules)
        if BIAS in leaves:
            found[f"{block}{name}.{BIAS}"] = modules.floats(f"{module}.{BIAS}")
    for bare, each in experts.items():
        if sorted(each) != list(range(len(each))):
            found_experts = f"has {len(each):,} experts with numbers up to {max(each):,}"
            raise modules.file.damaged(bare, found_experts, "each number once")
        block, name = _named(bare, form.names, values)
        found[f"{block}{name}.weight"] = stack([modules.part(each[index]) for index in range(len(each))])
    return found


def bare_name(module: str) -> str:
    """A module's name without the prefix of the language model."""
    prefix = next((prefix for prefix in PREFIXES if module.startswith(prefix)), "")
    return module.removeprefix(prefix)


def is_of_images(module: str) -> bool:
    """Whether a module turns images or sounds into rows."""
    return bare_name(module).startswith(OTHERS)


def _named(bare: str, names: Mapping[str, str], values: Values) -> tuple[str, str]:
    """The block of a module, as a prefix, and its name here."""
    trunk = values["block_count"] - values.get("nextn_predict_layers", 0)
    if bare.startswith("mtp."):
        rest = bare.removeprefix("mtp.")
        if layer := _LAYER.fullmatch(rest):
            return f"blk.{trunk + int(layer[1])}.", names.get(layer[2], layer[2])
        return f"blk.{trunk}.", MTP.get(rest, rest)
    if layer := _LAYER.fullmatch(bare):
        return f"blk.{layer[1]}.", names.get(layer[2], layer[2])
    return "", GLOBAL.get(bare, bare)


def changed(part: Part, modules: Modules, change: Callable[[Float32], Float32]) -> Part:
    """A small tensor of floats after `change`, whose result has the same number of values."""
    stored = modules.file.tensors[part.name].shape

    def values() -> Float32:
        return change(modules.file.float32(part.name).reshape(stored))

    return computed(part.name, stored, values)


def plus_one(part: Part, values: Values, modules: Modules) -> Part:
    """A norm whose weights are stored minus one."""
    return changed(part, modules, lambda stored: stored + np.float32(1))


def flat(part: Part, values: Values, modules: Modules) -> Part:
    """A matrix of one row as a vector."""
    read, (rows, columns) = modules.file, part.shape
    if rows != 1:
        raise read.damaged(part.name, f"has {rows} rows", "one")
    return computed(part.name, (columns,), lambda: read.float32(part.name).reshape(-1))


def refused(keys: Settings, name: str, expected: str) -> UnsupportedError:
    """The refusal of a setting with a value that has no equal here."""
    return UnsupportedError(
        f"{keys.source}: {name} is {shown(str(keys.get(name)))}, expected {expected}; use the model's GGUF, or another"
        " model"
    )
