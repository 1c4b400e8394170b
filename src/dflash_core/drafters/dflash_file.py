"""DFlash drafters in all their wrappings, under one set of names: those of the upstream `dflash` GGUF.

A z-lab folder or file (safetensors and config.json), or GGUF of architecture dflash (upstream), dflash-draft (buun,
bee) or qwen35-dflash-draft (lucebox). They differ in names of tensors and keys, and upstream stores layer ids plus one.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash_core.arch.registry import ARCHITECTURES
from dflash_core.config import DraftConfig, Flavour
from dflash_core.errors import FormatError, UnsupportedError
from dflash_core.formats.gguf import open_gguf
from dflash_core.formats.metadata import Settings
from dflash_core.formats.safetensors import open_safetensors, read_json
from dflash_core.formats.weights import RenamedWeights, WeightFile, check_tensors, listed

FLAVOURS: dict[str, Flavour] = {
    "dflash": "dflash",
    "dflash-draft": "dflash-draft",
    "qwen35-dflash-draft": "lucebox",
}
DEFAULT_BLOCK = 16
MAX_BLOCK = 256
MAX_LAYER = 1023

# Canonical name of each tensor by the names other files use; {} is `blk.N.` or `layers.N.`.
OUTSIDE = {
    "fc.weight": "fc.weight",
    "dflash_fc.weight": "fc.weight",
    "dflash.fc.weight": "fc.weight",
    "enc.output_norm.weight": "enc.output_norm.weight",
    "hidden_norm.weight": "enc.output_norm.weight",
    "dflash_hidden_norm.weight": "enc.output_norm.weight",
    "dflash.hidden_norm.weight": "enc.output_norm.weight",
    "output_norm.weight": "output_norm.weight",
    "norm.weight": "output_norm.weight",
}
INSIDE = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "post_attention_norm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
# Newer drafter heads, recognised by their tensors or keys so that they can be refused by name.
OTHER_HEADS = (
    (r"domino", "a Domino head"),
    (r"dspark|markov_head", "a DSpark head"),
    (r"attention_conv|mlp_conv", "DFlash 2 convolutions"),
    (r"candidate_selector", "a DFlash 2 candidate selector"),
    (r"aux_hidden_norm", "per-layer feature norms"),
    (r"context_kv_layer_norm", "a norm over the context keys"),
    (r"attn_gate", "gated attention"),
    (r"embed_tokens|token_embd", "an embedding of its own"),
    (r"lm_head|^output\.weight", "an output matrix of its own"),
)


def open_drafter(path: str | Path) -> tuple[DraftConfig, WeightFile]:
    """Open a drafter of any flavour. Raises FormatError for a damaged one, UnsupportedError for anything else."""
    path = Path(path)
    if path.is_dir() or path.suffix == ".safetensors":
        return _open_zlab(path)
    return _open_gguf(path)


def canonical(name: str) -> str:
    """The upstream GGUF name of a tensor; a name that no flavour knows stays as it is."""
    if name in OUTSIDE:
        return OUTSIDE[name]
    match = re.fullmatch(r"(?:blk|layers)\.(\d{1,4})\.(.+)\.weight", name)
    if match is None:
        return name
    return f"blk.{match[1]}.{INSIDE.get(match[2], match[2])}.weight"


def _canonical_weights(source: str, weights: WeightFile, config: DraftConfig) -> RenamedWeights:
    if config.key_length % 2:
        raise FormatError(f"{source}: the head size is {config.key_length}, expected an even number; convert it again")
    names: dict[str, str] = {}
    for name in weights.tensors:
        to = canonical(name)
        if to in names:
            raise FormatError(f"{source}: {names[to]} and {name} are the same tensor ({to}); convert the drafter again")
        names[to] = name
    tensors = {to: dataclasses.replace(weights.tensors[name], name=to) for to, name in names.items()}
    check_tensors(source, tensors, config.tensors())
    return RenamedWeights(weights, names, tensors)


def _check_heads(source: str, names: Mapping[str, Any]) -> None:
    """Refuse a drafter that has more than the plain DFlash network."""
    for pattern, what in OTHER_HEADS:
        found = [name for name in names if re.search(pattern, name)]
        if found:
            raise UnsupportedError(
                f"{source} has {what} ({listed(found, 2)}), expected a plain DFlash drafter; use one of those"
            )


def _open_gguf(path: Path) -> tuple[DraftConfig, WeightFile]:
    weights = open_gguf(path)
    source = path.name
    architecture = Settings(source, weights.metadata).text("general.architecture")
    if architecture not in FLAVOURS:
        role = "a target model" if architecture in ARCHITECTURES else "not a DFlash drafter"
        raise UnsupportedError(
            f"{source} is {role} (architecture {architecture}), expected a DFlash drafter"
            f" ({', '.join(FLAVOURS)}); give the drafter made for your target"
        )
    keys = Settings(source, weights.metadata, architecture + ".")
    _check_heads(source, weights.tensors)
    if keys.get("dflash.domino.enabled") or keys.get("dflash.dspark.enabled"):
        raise UnsupportedError(
            f"{source} has a Domino or DSpark head, expected a plain DFlash drafter; use one of those"
        )
    flavour = FLAVOURS[architecture]
    blocks = keys.integer("block_count", high=1024)
    window, sliding = _gguf_window(keys, blocks)
    config = DraftConfig(
        name=keys.text("general.name", default=path.stem),
        flavour=flavour,
        block_count=blocks,
        embedding_length=keys.integer("embedding_length"),
        feed_forward_length=keys.uniform("feed_forward_length"),
        head_count=keys.uniform("attention.head_count"),
        head_count_kv=keys.uniform("attention.head_count_kv"),
        key_length=keys.integer("attention.key_length"),
        rms_eps=keys.number("attention.layer_norm_rms_epsilon"),
        rope_freq_base=keys.number("rope.freq_base", default=0.0 if flavour == "lucebox" else None),
        block_size=keys.integer("dflash.block_size", "block_size", low=2, high=MAX_BLOCK, default=DEFAULT_BLOCK),
        target_layers=_gguf_layers(keys),
        mask_token_id=_optional(keys, "dflash.mask_token_id", "tokenizer.ggml.mask_token_id", low=0),
        vocab_size=_gguf_vocabulary(keys),
        target_block_count=None,
        sliding_window=window,
        sliding=sliding,
        # Converters write attention.causal = false for every drafter; it says nothing about sliding layers.
        causal=(True,) * blocks if keys.get("attention.causal") is True else sliding,
    )
    _check_gguf(keys, config)
    return config, _canonical_weights(source, weights, config)


def _optional(keys: Settings, *names: str, low: int = 1) -> int | None:
    return keys.integer(*names, low=low) if keys.find(*names) else None


def _gguf_layers(keys: Settings) -> tuple[int, ...]:
    """0-based layer ids. Upstream stores the layer whose input is taken, one more than the layer whose output it is."""
    if keys.find("target_layers"):
        return tuple(layer - 1 for layer in keys.integers("target_layers", low=1, high=MAX_LAYER + 1))
    return keys.integers("dflash.target_layer_ids", low=0, high=MAX_LAYER)


def _gguf_vocabulary(keys: Settings) -> int | None:
    tokens = keys.get("tokenizer.ggml.tokens")
    return len(tokens) if isinstance(tokens, list) else _optional(keys, "vocab_size")


def _gguf_window(keys: Settings, blocks: int) -> tuple[int, tuple[bool, ...]]:
    window = keys.integer("attention.sliding_window", low=0, default=0)
    if not window:
        return 0, (False,) * blocks
    sliding = keys.flags("attention.sliding_window_pattern", count=blocks)
    return (window if any(sliding) else 0), sliding


def _check_gguf(keys: Settings, config: DraftConfig) -> None:
    """Settings that repeat, in other words, what the configuration already says."""
    taps = len(config.target_layers)
    for name, expected in (
        ("dflash.n_target_layers", taps),
        ("dflash.n_target_features", taps * config.embedding_length),
        ("attention.value_length", config.key_length),
        ("rope.dimension_count", config.key_length),
    ):
        if keys.get(name) not in (None, expected):
            raise UnsupportedError(f"{keys.source}: {keys.find(name)} is {keys.get(name)!r}, expected {expected}")
    keys.check_divides("attention.head_count_kv", config.head_count_kv, "attention.head_count", config.head_count)


def _open_zlab(path: Path) -> tuple[DraftConfig, WeightFile]:
    folder = path if path.is_dir() else path.parent
    if not path.exists():
        raise FormatError(f"{path} does not exist; check the path")
    if not (folder / "config.json").exists():
        inside = sorted(file.name for file in folder.glob("*.gguf")) if path.is_dir() else []
        hint = f"name the file {inside[0]} itself" if inside else "download config.json as well"
        raise FormatError(f"{path} has no config.json beside its weights, which a safetensors drafter needs; {hint}")
    name = path.resolve().name if path.is_dir() else path.resolve().parent.name
    source = f"{name}/config.json"
    raw = read_json(folder / "config.json")
    _check_zlab(source, raw)
    weights = open_safetensors(path)
    _check_heads(name, weights.tensors)
    config = _zlab_config(name, Settings(source, raw))
    return config, _canonical_weights(name, weights, config)


def _check_zlab(source: str, raw: Mapping[str, Any]) -> None:
    architectures = raw.get("architectures")
    if architectures != ["DFlashDraftModel"]:
        raise UnsupportedError(
            f"{source}: architectures is {architectures!r}, expected ['DFlashDraftModel'];"
            " give the folder of a plain DFlash drafter"
        )
    scaling = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default")) if isinstance(scaling, dict) else scaling
    for what, found, expected in (
        ("the rotary scaling", kind, "default"),
        ("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0), 1.0),
        ("attention_bias", raw.get("attention_bias", False), False),
        ("hidden_act", raw.get("hidden_act", "silu"), "silu"),
    ):
        if found != expected:
            raise UnsupportedError(
                f"{source}: {what} is {found!r}, expected {expected!r}; this drafter cannot run here"
            )


def _zlab_config(name: str, keys: Settings) -> DraftConfig:
    inner = _sub(keys, "dflash_config")
    both = Settings(keys.source, {**keys.values, **inner})  # block_size and others moved inside in newer files
    rope = Settings(keys.source, {**keys.values, **_sub(keys, "rope_parameters")})
    blocks = keys.integer("num_hidden_layers", high=1024)
    window, sliding = _zlab_window(keys, blocks)
    target_blocks = _optional(both, "num_target_layers")
    config = DraftConfig(
        name=name,
        flavour="z-lab",
        block_count=blocks,
        embedding_length=keys.integer("hidden_size"),
        feed_forward_length=keys.integer("intermediate_size"),
        head_count=keys.integer("num_attention_heads"),
        head_count_kv=keys.integer("num_key_value_heads"),
        key_length=keys.integer("head_dim"),
        rms_eps=keys.number("rms_norm_eps"),
        rope_freq_base=rope.number("rope_theta"),
        block_size=both.integer("block_size", low=2, high=MAX_BLOCK),
        target_layers=_zlab_layers(both, blocks, target_blocks),
        mask_token_id=_optional(both, "mask_token_id", low=0),
        vocab_size=_optional(keys, "vocab_size"),
        target_block_count=target_blocks,
        sliding_window=window,
        sliding=sliding,
        causal=both.flags("is_causal", "causal", count=blocks) if both.find("is_causal", "causal") else sliding,
    )
    keys.check_divides("num_key_value_heads", config.head_count_kv, "num_attention_heads", config.head_count)
    return config


def _sub(keys: Settings, name: str) -> dict[str, Any]:
    value = keys.get(name)
    if value is not None and not isinstance(value, dict):
        raise FormatError(f"{keys.source}: {name} is {str(value)[:40]!r}, expected an object")
    return value or {}


def _zlab_layers(keys: Settings, blocks: int, target_blocks: int | None) -> tuple[int, ...]:
    """The layer ids, or the spread that z-lab's code takes where a file has none."""
    if keys.find("target_layer_ids") or target_blocks is None:
        return keys.integers("target_layer_ids", low=0, high=MAX_LAYER)
    if blocks == 1:
        return (target_blocks // 2,)
    return tuple(round(1 + index * (target_blocks - 4) / (blocks - 1)) for index in range(blocks))


def _zlab_window(keys: Settings, blocks: int) -> tuple[int, tuple[bool, ...]]:
    kinds = keys.get("layer_types")
    if kinds is None and not keys.get("use_sliding_window"):
        kinds = ["full_attention"] * blocks
    known = ("full_attention", "sliding_attention")
    if not isinstance(kinds, list) or len(kinds) != blocks or not all(kind in known for kind in kinds):
        raise FormatError(f"{keys.source}: layer_types is {str(kinds)[:80]}, expected {blocks} of {' or '.join(known)}")
    sliding = tuple(kind == "sliding_attention" for kind in kinds)
    return (keys.integer("sliding_window") if any(sliding) else 0), sliding
