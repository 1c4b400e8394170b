"""A model's sizes by the names of its settings, and notes on its layers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from dflash_core.arch.kinds import ROUTER, Attention, DeltaNet, Experts, SwiGLU
from dflash_core.arch.spec import ModelSpec
from dflash_core.formats.gguf import GGUFFile


def sizes(spec: ModelSpec) -> dict[str, Any]:
    """The model's sizes, named after the settings."""
    found: dict[str, Any] = {
        "name": spec.name,
        "architecture": spec.architecture,
        "block_count": spec.block_count,
        "nextn_predict_layers": spec.nextn_predict_layers,
        "context_length": spec.context_length,
        "embedding_length": spec.embedding_length,
        "active_parameters": spec.active_parameters,
    }
    for layer in spec.layers:
        match layer.ffn:
            case SwiGLU(width=width):
                found["feed_forward_length"] = width
            case Experts() as experts:
                found |= {
                    "expert_count": experts.count,
                    "expert_used_count": experts.used,
                    "expert_feed_forward_length": experts.width,
                    "expert_shared_feed_forward_length": experts.shared,
                }
    for attention in spec.of(Attention)[:1]:
        found |= {
            "head_count": attention.heads,
            "head_count_kv": attention.kv_heads,
            "key_length": attention.head_dim,
            "rope_freq_base": attention.rope_base,
            "rope_dimension_count": attention.rotary,
        }
        if attention.scaling:
            found["rope_scaling"] = {"type": type(attention.scaling).__name__.lower()} | asdict(attention.scaling)
    for delta in spec.of(DeltaNet)[:1]:
        found |= {
            "conv_kernel": delta.conv_kernel,
            "state_size": delta.key_dim,
            "group_count": delta.key_heads,
            "time_step_rank": delta.value_heads,
            "inner_size": delta.inner,
        }
    return found | {
        "rms_eps": spec.rms_eps,
        "full_attention": [isinstance(layer.mixer, Attention) for layer in spec.layers],
        "vocab_size": spec.vocab_size,
        "tied_output": spec.tied_output,
        "file_type": spec.file_type,
    }


def layers_of_experts(spec: ModelSpec) -> list[int]:
    """The layers that choose among experts."""
    return [index for index, layer in enumerate(spec.layers) if isinstance(layer.ffn, Experts)]


def has_experts(spec: ModelSpec) -> bool:
    """Whether any layer chooses among experts."""
    return bool(layers_of_experts(spec))


def routed_tensors(index: int, experts: Experts) -> list[str]:
    """The tensors with the matrices of all experts of layer `index`."""
    return [f"blk.{index}.{name}" for name in experts.tensors(1) if name.endswith("_exps.weight")]


def expert_notes(gguf: GGUFFile, spec: ModelSpec) -> list[str]:
    """Notes on unusual properties of files with experts."""
    found, kinds = [], [(index, layer.ffn) for index, layer in enumerate(spec.layers)]
    experts = [(index, ffn) for index, ffn in kinds if isinstance(ffn, Experts)]
    fused = sum(ffn.fused for _, ffn in experts)
    if fused:
        where = "" if fused == len(experts) else f" in {fused} of {len(experts)} layers"
        found.append(f"gate and up of the experts are one tensor{where}")
    mixed = [
        index for index, ffn in experts if len({gguf.tensors[name].type for name in routed_tensors(index, ffn)}) > 1
    ]
    if mixed:
        found.append(f"the experts of {len(mixed)} of {len(experts)} layers mix types")
    routers = {gguf.tensors[f"blk.{index}.{ROUTER}"].type for index, _ in experts} - {"F32"}
    if routers:
        found.append(f"routers are stored as {', '.join(sorted(routers))}, which may choose other experts than F32")
    if any(not ffn.normalised for _, ffn in experts):
        found.append("weights of the chosen experts do not add up to 1")
    scales = {ffn.scale for _, ffn in experts} - {1.0}
    if scales:
        found.append(f"weights of the experts are multiplied by {max(scales):g}")
    return found
