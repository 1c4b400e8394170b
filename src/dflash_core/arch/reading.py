"""Code that the architectures share: attention, experts, and common errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from dflash_core.arch.architecture import Head
from dflash_core.arch.kinds import (
    CHOICE_BIAS,
    GATE_UP,
    LONG_FACTORS,
    ROPE_FACTORS,
    SHORT_FACTORS,
    Attention,
    Experts,
    FeedForward,
    Gate,
    Router,
    SwiGLU,
)
from dflash_core.arch.rope import Yarn, gguf_scaling
from dflash_core.arch.spec import LayerSpec, ModelSpec
from dflash_core.errors import FormatError, UnsupportedError
from dflash_core.formats.gguf import GGUFFile
from dflash_core.formats.metadata import MAX_EPS, Settings
from dflash_core.formats.weights import WeightFile, in_parts

GATING = {"softmax": 1, "sigmoid": 2}
"""expert_gating_func; 0 is a file that leaves it open."""
MAX_EXPERTS = 1 << 16
FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M",
    30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 24: "IQ1_S", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
}  # fmt: skip
File = TypeVar("File", bound=WeightFile)
FeedForwardOf = Callable[[Settings, Head, int], FeedForward]
"""The feed-forward of a layer, by its index."""


def blocks(keys: Settings) -> int:
    """Layers, MTP blocks among them."""
    return keys.integer("block_count", high=1024)


def given(keys: Settings, name: str, neutral: float) -> float:
    """A number that a file may leave out, or have as 0."""
    return keys.number(name) if keys.get(name) else neutral


def _check_length(keys: Settings, name: str, key_length: int) -> None:
    if (value := keys.get(name)) not in (None, key_length):
        raise UnsupportedError(f"{keys.source}: {name} is {value!r}, expected {key_length}, the key length")


def attention(
    keys: Settings, *, heads: tuple[int, int] | None = None, gate: Gate = "none", kv_heads: int | None = None,
    head_dim: int | None = None, rotary: int | None = None, base: float | None = None, truncate: bool = True,
) -> Attention:  # fmt: skip
    """The full-attention layers. `heads`: of queries, and of keys and values, where layers differ. Where the file does
    not say them, `kv_heads`: heads of keys and values, `head_dim`, `rotary`: a head's dimensions and those of them that
    are rotated, `base`: of the rotation; None where it must. `truncate`: see `rope.Yarn`. Raises FormatError, and
    UnsupportedError for what is not implemented."""
    head_dim = keys.integer("attention.key_length", default=head_dim)
    _check_length(keys, "attention.value_length", head_dim)
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
    _check_length(keys, "attention.value_length_swa", head_dim)
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


def suppressed(keys: Settings, vocab: int) -> tuple[int, ...]:
    """Tokens that are never drawn."""
    name = "tokenizer.ggml.suppress_tokens"
    return keys.integers(name, low=0, high=vocab - 1) if keys.get(name) else ()


def dense(keys: Settings, head: Head, index: int) -> SwiGLU:
    """A feed-forward that is the same in all layers."""
    return SwiGLU(keys.uniform("feed_forward_length"))


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
    return Experts(
        count=count,
        used=used,
        width=width,
        shared=shared,
        normalised=keys.flag("expert_weights_norm", "norm_top_k_prob") is not False,
        scale=given(keys, "expert_weights_scale", 1.0),
        fused=f"blk.{index}.{GATE_UP}" in head.names,
        router=router,
        choice_bias=f"blk.{index}.{CHOICE_BIAS}" in head.names,
    )


def with_options(layers: Iterable[LayerSpec], **options: Any) -> tuple[LayerSpec, ...]:
    """The layers with other options of attention."""
    return tuple(
        replace(one, mixer=replace(one.mixer, **options)) if isinstance(one.mixer, Attention) else one for one in layers
    )


def apart(file: File, layers: Iterable[tuple[int, LayerSpec]], hidden: int) -> File:
    """The file with Q, K and V of the attention among `layers` apart where its converter made them one tensor, and so
    gate and up of the feed-forward; of LongRoPE's divisors it has those for long contexts.

    Raises FormatError where such a tensor has not as many rows as its parts.
    """
    tensors = dict(file.tensors)
    if LONG_FACTORS in tensors:
        tensors.pop(SHORT_FACTORS, None)
        tensors[ROPE_FACTORS] = replace(tensors.pop(LONG_FACTORS), name=ROPE_FACTORS)
    for index, part in ((index, part) for index, layer in layers for part in (layer.mixer, layer.ffn)):
        fused = f"blk.{index}.{part.fused_name}"
        parts = {f"blk.{index}.{name}": rows for name, rows in part.fused_rows.items()}
        if fused not in tensors or tensors.keys() & parts.keys() - {fused}:
            continue  # a file with both forms: the check of tensors names the unexpected one
        found, expected = list(tensors[fused].shape), [sum(parts.values()), hidden]
        if found == [parts.get(fused), hidden]:
            continue  # not fused: another one is missing
        if found != expected:
            names = ", ".join(name.split(".")[2] for name in parts)
            raise FormatError(
                f"{file.path}: tensor {fused} has shape {found}, expected {expected} ({names}) from the file's own"
                " settings; convert the model again"
            )
        tensors |= in_parts(tensors.pop(fused), parts)
    return replace(file, tensors=tensors)


def in_halves(gguf: GGUFFile, spec: ModelSpec) -> GGUFFile:
    """The file with rows of Q and K, and their biases, in the order of halves in layers whose rows are interleaved.

    Rows of a head that do not turn change places likewise, in Q and K alike: products of the two stay as they are.
    """
    tensors = dict(gguf.tensors)
    for index, layer in layers_of(spec):
        mixer = layer.mixer
        if isinstance(mixer, Attention) and mixer.interleaved:
            for part in ("attn_q.weight", "attn_k.weight", "attn_q.bias", "attn_k.bias"):
                if info := tensors.get(f"blk.{index}.{part}"):
                    tensors[info.name] = replace(info, interleaved=mixer.rotary)
    return replace(gguf, tensors=tensors)


def layers_of(spec: ModelSpec) -> Iterator[tuple[int, LayerSpec]]:
    """The layers of the trunk and the MTP blocks, with their numbers in the file."""
    yield from enumerate(spec.layers)
    if spec.nextn is not None:
        yield from ((spec.block_count + place, spec.nextn) for place in range(spec.nextn_predict_layers))


def model(keys: Settings, head: Head, layers: Sequence[LayerSpec], **more: Any) -> ModelSpec:
    """A model of these layers, with the settings of the whole model. `more`: other fields of ModelSpec.

    Some converters write YaRN beside the context length of the training: the context is then what YaRN scales it to.
    """
    mixers = [layer.mixer for layer in layers]
    scalings = (mixer.scaling for mixer in mixers if isinstance(mixer, Attention))
    scaled = (scaling.positions for scaling in scalings if isinstance(scaling, Yarn))
    return ModelSpec(
        name=keys.text("general.name", default=Path(keys.source).name.removesuffix(".gguf")),
        architecture=keys.prefix.removesuffix("."),
        context_length=max((keys.integer("context_length", high=1 << 40), *scaled)),
        embedding_length=keys.integer("embedding_length"),
        vocab_size=head.vocab_size,
        rms_eps=mixers[0].eps,
        layers=tuple(layers),
        tied_output=head.tied_output,
        file_type=FILE_TYPES.get(keys.integer("general.file_type", low=0, default=-1), ""),
        **more,
    )
