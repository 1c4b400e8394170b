"""Code that the architectures share: attention, experts, and common errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from dflash_core.arch.architecture import Head, file_type
from dflash_core.arch.kinds import CHOICE_BIAS, GATE_UP, Attention, Experts, Gate, Router
from dflash_core.arch.rope import Yarn, gguf_scaling
from dflash_core.arch.spec import LayerSpec, ModelSpec
from dflash_core.errors import FormatError, UnsupportedError
from dflash_core.formats.gguf import GGUFFile
from dflash_core.formats.metadata import MAX_EPS, Settings
from dflash_core.formats.weights import in_parts

GATING = {"softmax": 1, "sigmoid": 2}
"""expert_gating_func; 0 is a file that leaves it open."""
MAX_EXPERTS = 1 << 16


def check_settings(keys: Settings, head_dim: int | None = None) -> None:
    """Refuse embedding and reranker models, which have the same tensors but do not generate text, and settings
    whose change of the forward pass is not implemented. `head_dim`: the key length of a file that does not say."""
    if keys.find("pooling_type"):
        raise UnsupportedError(
            f"{keys.source} is an embedding or reranker model (pooling_type {keys.get('pooling_type')!r}), expected one"
            " that generates text; use the chat model of the family"
        )
    key, value = keys.integer("attention.key_length", default=head_dim), keys.get("attention.value_length")
    if value not in (None, key):
        raise UnsupportedError(f"{keys.source}: attention.value_length is {value!r}, expected {key}, the key length")


def attention(
    keys: Settings, *, heads: tuple[int, int] | None = None, gate: Gate = "none", kv_heads: int | None = None,
    head_dim: int | None = None, rotary: int | None = None, base: float | None = None, truncate: bool = True,
) -> Attention:  # fmt: skip
    """The full-attention layers. `heads`: of queries, and of keys and values, where layers differ. Where the file does
    not say them, `kv_heads`: heads of keys and values, `head_dim`, `rotary`: a head's dimensions and those of them that
    are rotated, `base`: of the rotation; None where it must. `truncate`: see `rope.Yarn`."""
    head_dim = keys.integer("attention.key_length", default=head_dim)
    base = keys.number("rope.freq_base", default=base)
    query, key = heads or (
        keys.uniform("attention.head_count"),
        keys.uniform("attention.head_count_kv", default=kv_heads),
    )
    found = Attention(
        heads=query,
        kv_heads=key,
        head_dim=head_dim,
        rope_base=base,
        rotary=_even(keys, "rope.dimension_count", head_dim, rotary),
        eps=keys.number("attention.layer_norm_rms_epsilon", high=MAX_EPS),
        gate=gate,
        scaling=gguf_scaling(keys, base, truncate),
    )
    if heads is None:
        keys.check_divides("attention.head_count_kv", found.kv_heads, "attention.head_count", found.heads)
    return found


def _even(keys: Settings, name: str, head_dim: int, default: int | None) -> int:
    """Rotated dimensions of a head."""
    found = keys.integer(name, low=2, high=head_dim, default=default)
    if found % 2:
        raise FormatError(f"{keys.source}: {name} is {found}, expected an even number")
    return found


def attention_by_layer(
    keys: Settings, sliding: Sequence[bool], *, gate: Gate = "none", window_base: float | None = None
) -> list[Attention]:
    """The attention of each layer, whose heads may differ. `sliding`: those that have a window; they have settings of
    their own for a head's dimensions and for rotary positions, which are not scaled there. `window_base`: of these,
    where the file does not say."""
    count = len(sliding)
    heads = keys.per_layer("attention.head_count", count)
    kv_heads = keys.per_layer("attention.head_count_kv", count)
    full = replace(
        attention(keys, heads=(heads[0], kv_heads[0]), rotary=keys.integer("attention.key_length")), gate=gate
    )
    head_dim = keys.integer("attention.key_length_swa", default=full.head_dim)
    if (value := keys.get("attention.value_length_swa")) not in (None, head_dim):
        raise UnsupportedError(
            f"{keys.source}: attention.value_length_swa is {value!r}, expected {head_dim}, the key length"
        )
    window = replace(
        full, head_dim=head_dim, scaling=None, window=keys.integer("attention.sliding_window"),
        rope_base=keys.number("rope.freq_base_swa", default=window_base),
        rotary=_even(keys, "rope.dimension_count_swa", head_dim, head_dim),
    )  # fmt: skip
    for query, key in zip(heads, kv_heads):
        if not query or not key or query % key:
            raise FormatError(
                f"{keys.source}: a layer has {query} heads over {key} heads of keys, expected a multiple; convert it"
                " again"
            )
    kinds = (window if one else full for one in sliding)
    return [replace(kind, heads=query, kv_heads=key) for kind, query, key in zip(kinds, heads, kv_heads)]


def sliding(keys: Settings, blocks: int, period: int, *, full_first: bool = False) -> tuple[bool, ...]:
    """Which layers have a window: all but one of each `period`, the last of them or, where `full_first`, the first. The
    file may have another period, or name the layers. Raises FormatError."""
    name = "attention.sliding_window_pattern"
    found = keys.get(name)
    if isinstance(found, list) and len(found) == 1:
        found = found[0]
    if isinstance(found, list | bool):
        return keys.flags(name, count=blocks) if isinstance(found, list) else (found,) * blocks
    if found is not None:
        period = keys.part(values={keys.prefix + name: found}).integer(name, low=0, high=1024)
    if period == 0:
        return (True,) * blocks
    full = 0 if full_first else period - 1
    return tuple(index % period != full for index in range(blocks))


def softcap(keys: Settings) -> float:
    """The cap of the logits, 0 for none."""
    return keys.number("final_logit_softcapping") if keys.get("final_logit_softcapping") else 0.0


def suppressed(keys: Settings, vocab: int) -> tuple[int, ...]:
    """Tokens that are never drawn."""
    name = "tokenizer.ggml.suppress_tokens"
    return keys.integers(name, low=0, high=vocab - 1) if keys.get(name) else ()


def experts(keys: Settings, head: Head, index: int, router: Router = "softmax") -> Experts:
    """The experts of layer `index`. `router`: what the architecture's models choose them by. Raises FormatError or
    UnsupportedError."""
    count, used = keys.integer("expert_count", high=MAX_EXPERTS), keys.integer("expert_used_count", high=MAX_EXPERTS)
    if used > count:
        raise FormatError(
            f"{keys.source}: expert_used_count is {used:,}, expected at most expert_count ({count:,}); convert it again"
        )
    gating = keys.integer("expert_gating_func", low=0, default=0)
    if gating not in (0, GATING[router]):
        raise UnsupportedError(
            f"{keys.source}: expert_gating_func is {gating}, expected {GATING[router]}, a {router} over all experts;"
            " use a model that chooses its experts so"
        )
    dense = keys.uniform("feed_forward_length", low=0) if keys.find("feed_forward_length") else 0
    # Files without a length of their own for experts share the dense one among those a token takes.
    width = keys.integer("expert_feed_forward_length", default=dense // used or None)
    shared = keys.integer("expert_shared_feed_forward_length", low=0, default=0)
    if not shared and f"blk.{index}.ffn_gate_shexp.weight" in head.names:
        shared = keys.integer("expert_shared_feed_forward_length", default=dense or None)
    scale = keys.number("expert_weights_scale") if keys.get("expert_weights_scale") else 1.0
    return Experts(
        count=count,
        used=used,
        width=width,
        shared=shared,
        normalised=keys.flag("expert_weights_norm", "norm_top_k_prob") is not False,
        scale=scale,
        fused=f"blk.{index}.{GATE_UP}" in head.names,
        router=router,
        choice_bias=f"blk.{index}.{CHOICE_BIAS}" in head.names,
    )


def apart(gguf: GGUFFile, spec: ModelSpec) -> GGUFFile:
    """The file with Q, K and V of its attention layers, MTP blocks too, apart where its converter made them one tensor.

    Raises FormatError where such a tensor has not as many rows as its three parts.
    """
    tensors = dict(gguf.tensors)
    for index, layer in _layers(spec):
        fused = f"blk.{index}.attn_qkv.weight"
        if not isinstance(layer.mixer, Attention) or fused not in tensors:
            continue
        parts = {f"blk.{index}.{name}": rows for name, rows in layer.mixer.fused_rows.items()}
        if tensors.keys() & parts.keys():
            continue  # the file has both forms: the check of tensors names the unexpected one
        found, expected = list(tensors[fused].shape), [sum(parts.values()), spec.embedding_length]
        if found != expected:
            raise FormatError(
                f"{gguf.path}: tensor {fused} has shape {found}, expected {expected} (Q, K and V) from the file's"
                " own settings; convert the model again"
            )
        tensors |= in_parts(tensors.pop(fused), parts)
    return replace(gguf, tensors=tensors)


def in_halves(gguf: GGUFFile, spec: ModelSpec) -> GGUFFile:
    """The file with rows of Q and K, and their biases, in the order of halves in layers whose rows are interleaved."""
    tensors = dict(gguf.tensors)
    for index, layer in _layers(spec):
        mixer = layer.mixer
        if isinstance(mixer, Attention) and mixer.interleaved:
            for part in ("attn_q.weight", "attn_k.weight", "attn_q.bias", "attn_k.bias"):
                if info := tensors.get(f"blk.{index}.{part}"):
                    tensors[info.name] = replace(info, interleaved=mixer.head_dim)
    return replace(gguf, tensors=tensors)


def _layers(spec: ModelSpec) -> Iterator[tuple[int, LayerSpec]]:
    """The layers of the trunk and the MTP blocks, with their numbers in the file."""
    yield from enumerate(spec.layers)
    if spec.nextn is not None:
        yield from ((spec.block_count + place, spec.nextn) for place in range(spec.nextn_predict_layers))


def model(
    name: str, keys: Settings, head: Head, layers: tuple[LayerSpec, ...], eps: float, nextn: LayerSpec | None = None,
    nextn_predict_layers: int = 0,
) -> ModelSpec:  # fmt: skip
    """A model of these layers, with the settings of the whole model. `nextn`: its MTP blocks, if any.

    Some converters write YaRN beside the context length of the training: the context is then what YaRN scales it to.
    """
    scalings = (layer.mixer.scaling for layer in layers if isinstance(layer.mixer, Attention))
    scaled = (scaling.positions for scaling in scalings if isinstance(scaling, Yarn))
    return ModelSpec(
        name=keys.text("general.name", default=Path(keys.source).name.removesuffix(".gguf")),
        architecture=name,
        context_length=max((keys.integer("context_length", high=1 << 40), *scaled)),
        embedding_length=keys.integer("embedding_length"),
        vocab_size=head.vocab_size,
        rms_eps=eps,
        layers=layers,
        tied_output=head.tied_output,
        nextn_predict_layers=nextn_predict_layers,
        nextn=nextn,
        file_type=file_type(keys),
    )
