"""Qwen3.5 and Qwen3.6, dense: gated attention on every fourth layer, gated delta nets on the others."""

from __future__ import annotations

from typing import Any

from dflash_core.arch.architecture import Architecture, Head, file_type, matrix_types
from dflash_core.arch.kinds import Attention, DeltaNet, SwiGLU
from dflash_core.arch.spec import LayerSpec, ModelSpec
from dflash_core.errors import FormatError, UnsupportedError
from dflash_core.formats.gguf import GGUFFile
from dflash_core.formats.metadata import Settings
from dflash_core.formats.quants import FLOATS
from dflash_core.formats.weights import listed


def read(keys: Settings, head: Head) -> ModelSpec:
    """The model that the settings describe. Raises FormatError or UnsupportedError."""
    _check_settings(keys)
    blocks = keys.integer("block_count", high=1024)
    nextn = keys.integer("nextn_predict_layers", low=0, high=blocks - 1, default=0)
    head_dim, eps = keys.integer("attention.key_length"), keys.number("attention.layer_norm_rms_epsilon")
    context = keys.integer("context_length", high=1 << 40)
    hidden = keys.integer("embedding_length")
    ffn = SwiGLU(keys.uniform("feed_forward_length"))
    attention = Attention(
        heads=keys.uniform("attention.head_count"),
        kv_heads=keys.uniform("attention.head_count_kv"),
        head_dim=head_dim,
        rope_base=keys.number("rope.freq_base"),
        rotary=keys.integer("rope.dimension_count", low=2, high=head_dim),
        eps=eps,
        gated=True,
    )
    conv_kernel, key_dim = keys.integer("ssm.conv_kernel", low=2, high=64), keys.integer("ssm.state_size")
    key_heads, value_heads = keys.integer("ssm.group_count"), keys.integer("ssm.time_step_rank")
    inner = keys.integer("ssm.inner_size")
    full = _full_attention(keys, blocks)[: blocks - nextn]
    keys.check_divides("attention.head_count_kv", attention.kv_heads, "attention.head_count", attention.heads)
    keys.check_divides("ssm.group_count", key_heads, "ssm.time_step_rank", value_heads)
    keys.check_divides("ssm.time_step_rank", value_heads, "ssm.inner_size", inner)
    if attention.rotary % 2:
        raise FormatError(f"{keys.source}: rope.dimension_count is {attention.rotary}, expected an even number")
    delta = DeltaNet(key_heads, value_heads, key_dim, inner // value_heads, conv_kernel, eps)
    return ModelSpec(
        name=keys.text("general.name", default=keys.source.removesuffix(".gguf")),
        architecture=ARCHITECTURE.name,
        context_length=context,
        embedding_length=hidden,
        vocab_size=head.vocab_size,
        rms_eps=eps,
        layers=tuple(LayerSpec(attention if one else delta, ffn, "post_attention_norm.weight") for one in full),
        tied_output=head.tied_output,
        nextn_predict_layers=nextn,
        nextn=LayerSpec(attention, ffn, "post_attention_norm.weight") if nextn else None,
        file_type=file_type(keys),
    )


def _check_settings(keys: Settings) -> None:
    """Refuse settings that would change the forward pass and that nothing here implements."""
    scaling = keys.get("rope.scaling.type")
    if scaling not in (None, "none") and keys.get("rope.scaling.factor") != 1.0:
        raise UnsupportedError(f"{keys.source} scales its rotary positions ({scaling}), expected none")
    key, value = keys.integer("attention.key_length"), keys.get("attention.value_length")
    if value not in (None, key):
        raise UnsupportedError(f"{keys.source}: attention.value_length is {value!r}, expected {key}, the key length")


def _full_attention(keys: Settings, blocks: int) -> tuple[bool, ...]:
    """Which layers are full attention: every fourth, unless the file says otherwise."""
    if keys.find("attention.recurrent_layers"):
        return tuple(not recurrent for recurrent in keys.flags("attention.recurrent_layers", count=blocks))
    interval = keys.integer("full_attention_interval", high=1024, default=4)
    return tuple((index + 1) % interval == 0 for index in range(blocks))


def _full_layers(spec: ModelSpec) -> list[int]:
    return [index for index, layer in enumerate(spec.layers) if isinstance(layer.mixer, Attention)]


def check(gguf: GGUFFile, spec: ModelSpec) -> None:
    """Refuse a file whose converter fused what belongs apart."""
    for index in _full_layers(spec):
        if f"blk.{index}.attn_qkv.weight" in gguf.tensors:
            raise UnsupportedError(
                f"{gguf.path.name}: blk.{index}.attn_qkv.weight fuses Q, K and V of a full-attention layer,"
                " expected attn_q, attn_k and attn_v; convert the model again without fusing"
            )


def facts(spec: ModelSpec) -> dict[str, Any]:
    """The model's sizes, named after the settings."""
    sizes: dict[str, Any] = {
        "name": spec.name,
        "architecture": spec.architecture,
        "block_count": spec.block_count,
        "nextn_predict_layers": spec.nextn_predict_layers,
        "context_length": spec.context_length,
        "embedding_length": spec.embedding_length,
    }
    for layer in spec.layers:
        if isinstance(layer.ffn, SwiGLU):
            sizes["feed_forward_length"] = layer.ffn.width
    for attention in spec.of(Attention)[:1]:
        sizes |= {
            "head_count": attention.heads,
            "head_count_kv": attention.kv_heads,
            "key_length": attention.head_dim,
            "rope_freq_base": attention.rope_base,
            "rope_dimension_count": attention.rotary,
        }
    for delta in spec.of(DeltaNet)[:1]:
        sizes |= {
            "conv_kernel": delta.conv_kernel,
            "state_size": delta.key_dim,
            "group_count": delta.key_heads,
            "time_step_rank": delta.value_heads,
            "inner_size": delta.inner,
        }
    return sizes | {
        "rms_eps": spec.rms_eps,
        "full_attention": [isinstance(layer.mixer, Attention) for layer in spec.layers],
        "vocab_size": spec.vocab_size,
        "tied_output": spec.tied_output,
        "file_type": spec.file_type,
    }


def notes(gguf: GGUFFile, spec: ModelSpec) -> list[str]:
    """What most files are not like."""
    found = []
    narrow = {i.type for i in gguf.tensors.values() if i.name.endswith(("ssm_alpha.weight", "ssm_beta.weight"))}
    if narrow & {*FLOATS} and len(matrix_types(gguf)) > 1:
        found.append(f"ssm_alpha and ssm_beta are not quantised ({', '.join(sorted(narrow))})")
    if gguf.metadata.get("qwen35.attention.recurrent_layers") is not None:
        chosen = [str(index) for index in _full_layers(spec)]
        found.append(f"the file itself names its full-attention layers: {listed(chosen, 20)}")
    for delta in spec.of(DeltaNet)[:1]:
        if delta.value_dim != delta.key_dim:
            found.append(f"V heads of {delta.value_dim} beside K heads of {delta.key_dim}")
    return found


ARCHITECTURE = Architecture(
    name="qwen35",
    models="a dense Qwen3.5 or Qwen3.6 model",
    read=read,
    facts=facts,
    check=check,
    notes=notes,
)
