"""Qwen3.5 and Qwen3.6, dense and with experts (35B-A3B, 122B-A10B, 397B-A17B): gated attention on every fourth layer,
gated delta nets on the others."""

from __future__ import annotations

from dflash_core.arch import reading
from dflash_core.arch.architecture import Architecture, Head, matrix_types
from dflash_core.arch.kinds import Attention, DeltaNet, Experts
from dflash_core.arch.spec import LayerSpec, ModelSpec
from dflash_core.formats.gguf import GGUFFile
from dflash_core.formats.metadata import Settings
from dflash_core.formats.quants import FLOATS
from dflash_core.formats.weights import listed

NORM = "post_attention_norm.weight"


def _read(keys: Settings, head: Head, ffn: reading.FeedForwardOf) -> ModelSpec:
    blocks = reading.blocks(keys)
    nextn = keys.integer("nextn_predict_layers", low=0, high=blocks - 1, default=0)
    trunk = blocks - nextn
    attention = reading.attention(keys, gate="sigmoid")
    conv_kernel, key_dim = keys.integer("ssm.conv_kernel", low=2, high=64), keys.integer("ssm.state_size")
    key_heads, value_heads = keys.integer("ssm.group_count"), keys.integer("ssm.time_step_rank")
    inner = keys.integer("ssm.inner_size")
    full = _full_attention(keys, blocks, nextn)[:trunk]
    keys.check_divides("ssm.group_count", key_heads, "ssm.time_step_rank", value_heads)
    keys.check_divides("ssm.time_step_rank", value_heads, "ssm.inner_size", inner)
    delta = DeltaNet(key_heads, value_heads, key_dim, inner // value_heads, conv_kernel, attention.eps)

    def layer(index: int, attends: bool) -> LayerSpec:
        return LayerSpec(attention if attends else delta, ffn(keys, head, index), NORM)

    more = {"nextn": layer(trunk, True), "nextn_predict_layers": nextn} if nextn else {}
    return reading.model(keys, head, [layer(*one) for one in enumerate(full)], **more)


def _full_attention(keys: Settings, blocks: int, nextn: int) -> tuple[bool, ...]:
    """Which layers are full attention: every fourth, unless the file lists others. Its list may leave out the MTP
    blocks."""
    if keys.find("attention.recurrent_layers"):
        named = keys.flags("attention.recurrent_layers", count=blocks, fewer=nextn)
        return tuple(not recurrent for recurrent in named)
    interval = keys.integer("full_attention_interval", high=1024, default=4)
    return tuple((index + 1) % interval == 0 for index in range(blocks))


def notes(gguf: GGUFFile, spec: ModelSpec) -> list[str]:
    """Notes on unusual properties of a file."""
    found = []
    narrow = {i.type for i in gguf.tensors.values() if i.name.endswith(("ssm_alpha.weight", "ssm_beta.weight"))}
    if narrow & {*FLOATS} and len(matrix_types(gguf)) > 1:
        found.append(f"ssm_alpha and ssm_beta are not quantised ({', '.join(sorted(narrow))})")
    if gguf.metadata.get(f"{spec.architecture}.attention.recurrent_layers") is not None:
        chosen = [str(index) for index, layer in enumerate(spec.layers) if isinstance(layer.mixer, Attention)]
        found.append(f"the file itself names its full-attention layers: {listed(chosen, 20)}")
    for delta in spec.of(DeltaNet)[:1]:
        if delta.value_dim != delta.key_dim:
            found.append(f"V heads of {delta.value_dim} with K heads of {delta.key_dim}")
    if any(isinstance(layer.ffn, Experts) and not layer.ffn.shared for layer in spec.layers):
        found.append("no shared expert")
    return found


DENSE = Architecture(
    "qwen35", "Qwen3.5, Qwen3.6 and Qwen3.8, dense", lambda keys, head: _read(keys, head, reading.dense), notes
)
EXPERTS = Architecture(
    "qwen35moe", "Qwen3.5 and Qwen3.6 with experts", lambda keys, head: _read(keys, head, reading.experts), notes
)
