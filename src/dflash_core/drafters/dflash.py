"""Block drafters (DFlash, DFlash 2, DSpark): their files of every format, read under one set of tensor names, those of
the upstream `dflash` GGUF, and checked against their target.

A z-lab folder or file (safetensors and config.json), or GGUF of architecture dflash (upstream; DSpark also as dspark),
dflash-draft (buun, bee) or qwen35-dflash-draft (lucebox). Names of tensors and keys differ, and upstream stores layer
ids plus one. What a file has in addition to a plain DFlash network is read in drafters/dflash_heads.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash_core.arch.draft_heads import ZLAB_ARCHITECTURES, Heads
from dflash_core.arch.reading import apart
from dflash_core.arch.registry import ARCHITECTURES
from dflash_core.arch.rope import gguf_scaling, json_scaling
from dflash_core.arch.spec import EMBEDDING
from dflash_core.config import DraftConfig, Flavour, check_pair, draft_tokens, mask_token, paired
from dflash_core.drafters.capabilities import BLOCK_KNOBS, ON_DEVICE, Capabilities
from dflash_core.drafters.dflash_heads import GGUF_HARMLESS, check_json, read_heads, table_vocabulary
from dflash_core.drafters.dflash_names import EXPECTED_HEADS, check_families, check_heads, renamed
from dflash_core.drafters.draft import Draft, DraftTarget
from dflash_core.drafters.kinds import KINDS
from dflash_core.errors import FormatError, UnsupportedError
from dflash_core.files import folder_name
from dflash_core.formats.gguf import open_gguf
from dflash_core.formats.metadata import MAX_EPS, Settings, check_unread
from dflash_core.formats.safetensors import open_safetensors, read_json
from dflash_core.formats.weights import WeightFile, check_tensors, shown

FLAVOURS: dict[str, Flavour] = {
    "dflash": "dflash", "dspark": "dspark", "dflash-draft": "dflash-draft", "qwen35-dflash-draft": "lucebox",
}  # fmt: skip
UPSTREAM = ("dflash.", "dspark.")
LAGUNA_WINDOW = 512  # of every layer of poolside's drafters; their GGUF files leave it out
DEFAULT_BLOCK = {"dflash": 16, "dflash2": 8, "dspark": 7}  # of public drafters, where a file has none
MAX_BLOCK, MAX_LAYER = 256, 1023


def open_drafter(path: str | Path) -> tuple[DraftConfig, WeightFile]:
    """Open a drafter of any flavour. Raises FormatError for a damaged one, UnsupportedError for anything else."""
    path = Path(path)
    if path.is_dir() or path.suffix == ".safetensors":
        return _open_zlab(path)
    return _open_gguf(path)


def _canonical_weights(source: str, weights: WeightFile, config: DraftConfig) -> WeightFile:
    if config.key_length % 2:
        raise FormatError(f"{source}: the head size is {config.key_length}, expected an even number; convert it again")
    names = renamed(source, weights.tensors)
    tensors = {to: dataclasses.replace(weights.tensors[name], name=to) for to, name in names.items()}
    # Of poolside's drafters, query, key and value are one tensor.
    file = apart(dataclasses.replace(weights, tensors=tensors), enumerate(config.layers), config.embedding_length)
    check_tensors(source, file.tensors, config.tensors())
    return file


def _open_gguf(path: Path) -> tuple[DraftConfig, WeightFile]:
    weights = open_gguf(path)
    source = str(path)
    architecture = Settings(source, weights.metadata).text("general.architecture")
    if architecture not in FLAVOURS:
        role = "a target model" if architecture in ARCHITECTURES else "not a DFlash drafter"
        found = f"{source} is {role} (architecture {architecture}), expected a DFlash drafter ({', '.join(FLAVOURS)})"
        raise UnsupportedError(f"{found}; give the drafter made for your target")
    keys = Settings(source, weights.metadata, architecture + ".")
    check_heads(source, weights.tensors)
    check_families(source, weights.tensors)
    if keys.flag("dflash.domino.enabled") or keys.flag("dflash.dspark.enabled"):
        raise UnsupportedError(f"{source} has a Domino or DSpark head of a fork's own kind, {EXPECTED_HEADS}")
    flavour = FLAVOURS[architecture]
    blocks = keys.integer("block_count", high=1024)
    window, sliding = _gguf_window(keys, blocks)
    heads = read_heads(keys, weights.tensors, keys.integer("embedding_length"))
    base = keys.number("rope.freq_base", default=0.0 if flavour == "lucebox" else None)
    given, usual = keys.find("block_size", "dflash.block_size"), DEFAULT_BLOCK[heads.kind]
    tokens = keys.get("tokenizer.ggml.tokens")
    vocab = len(tokens) if isinstance(tokens, list) else _optional(keys, "vocab_size")
    config = DraftConfig(
        name=keys.text("general.name", default=path.stem), flavour=flavour, block_count=blocks,
        embedding_length=keys.integer("embedding_length"), feed_forward_length=keys.uniform("feed_forward_length"),
        head_count=keys.uniform("attention.head_count"), head_count_kv=keys.uniform("attention.head_count_kv"),
        key_length=keys.integer("attention.key_length"), heads=heads,
        rms_eps=keys.number("attention.layer_norm_rms_epsilon", high=MAX_EPS),
        rope_freq_base=base, rope_scaling=gguf_scaling(keys, base),
        block_size=keys.integer(given, low=2, high=MAX_BLOCK) if given else usual, target_layers=_gguf_layers(keys),
        mask_token_id=_optional(keys, "dflash.mask_token_id", "tokenizer.ggml.mask_token_id", low=0),
        vocab_size=vocab or table_vocabulary(weights.tensors), target_block_count=None,
        sliding_window=window, sliding=sliding, causal=_gguf_causal(keys, sliding, heads),
    )  # fmt: skip
    _check_gguf(keys, config)
    if keys.get("decoder_arch") not in (None, "laguna"):
        found = f"decoder_arch is {shown(repr(keys.get('decoder_arch')))}, expected laguna or none"
        raise UnsupportedError(f"{source}: {found}; this drafter cannot run here")
    assumed = f"the drafter's file has no block size: {usual} is taken, as usual for {KINDS[config.kind].title}"
    notes = check_unread(keys, GGUF_HARMLESS)
    config = dataclasses.replace(config, notes=notes if given else (*notes, assumed))
    return config, _canonical_weights(source, weights, config)


def _gguf_causal(keys: Settings, sliding: tuple[bool, ...], heads: Heads) -> tuple[bool, ...]:
    """Whether a row of the block sees only those before it, by layer.

    Converters write attention.causal = false for every plain drafter; there the key does not apply to sliding layers.
    """
    stated = keys.flag("attention.causal")
    if stated:
        return (True,) * len(sliding)
    return (False,) * len(sliding) if heads.markov or (heads.selector and stated is False) else sliding


def _optional(keys: Settings, *names: str, low: int = 1) -> int | None:
    return keys.integer(*names, low=low) if keys.find(*names) else None


def _gguf_layers(keys: Settings) -> tuple[int, ...]:
    """0-based layer ids. Upstream stores the layer whose input is taken, one more than the layer whose output it is."""
    if keys.find("target_layers") or (keys.prefix in UPSTREAM and not keys.find("dflash.target_layer_ids")):
        return tuple(layer - 1 for layer in keys.integers("target_layers", low=EMBEDDING + 1, high=MAX_LAYER + 1))
    return keys.integers("dflash.target_layer_ids", low=EMBEDDING, high=MAX_LAYER)


def _gguf_window(keys: Settings, blocks: int) -> tuple[int, tuple[bool, ...]]:
    pattern = "attention.sliding_window_pattern"
    # Layers that slide need the window's length: without it they would see all.
    slides = keys.find(pattern) is not None and any(keys.flags(pattern, count=blocks))
    window = keys.integer("attention.sliding_window", low=0, default=None if slides else 0)
    if not window:
        laguna = keys.get("decoder_arch") == "laguna"
        return (LAGUNA_WINDOW if laguna else 0), (laguna,) * blocks
    sliding = keys.flags(pattern, count=blocks)
    return (window if any(sliding) else 0), sliding


def _check_gguf(keys: Settings, config: DraftConfig) -> None:
    """Check the settings that repeat what the configuration already says."""
    captured = len(config.target_layers)
    for name, expected in (
        ("dflash.n_target_layers", captured),
        ("dflash.n_target_features", captured * config.embedding_length),
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
        if path.is_dir() and not any(folder.glob("*.safetensors")):
            if inside:
                raise FormatError(f"{path} is a folder, expected one of its GGUF files; name it, such as {inside[0]}")
            expected = "a GGUF file, or a config.json and .safetensors files"
            raise FormatError(f"{path} has no model in it, expected {expected}; check the path")
        hint = f"name the file {inside[0]} itself" if inside else "download config.json as well"
        raise FormatError(f"{path} has no config.json next to its weights, which a safetensors drafter needs; {hint}")
    name = folder_name(path.absolute() if path.is_dir() else path.absolute().parent)
    source = f"{name}/config.json"
    given = Settings(source, read_json(folder / "config.json"))
    keys = given.part(_flat(given))
    _check_zlab(keys)
    weights = open_safetensors(path)
    check_heads(name, weights.tensors)
    check_families(name, weights.tensors)
    config = _zlab_config(name, keys, weights)
    config = dataclasses.replace(config, notes=check_json(keys, _sub(keys, "dflash_config")))
    return config, _canonical_weights(name, weights, config)


def _check_zlab(keys: Settings) -> None:
    source, architectures = keys.source, keys.get("architectures")
    if not isinstance(architectures, list) or len(architectures) != 1 or architectures[0] not in ZLAB_ARCHITECTURES:
        found = f"architectures is {architectures!r}, expected one of {' '.join(ZLAB_ARCHITECTURES)}"
        raise UnsupportedError(f"{source}: {found}; give the folder of a drafter of those kinds")
    rope = keys.part(_sub(keys, "rope_parameters"))
    for what, found, expected in (
        ("partial_rotary_factor", rope.get("partial_rotary_factor"), 1.0),
        ("partial_rotary_factor", keys.get("partial_rotary_factor"), 1.0),
        ("attention_bias", keys.get("attention_bias"), False),
        ("hidden_act", keys.get("hidden_act"), "silu"),
        ("gating", keys.get("gating"), "per-head"),
    ):
        if found not in (None, expected):
            raise UnsupportedError(
                f"{source}: {what} is {shown(repr(found))}, expected {expected!r}; this drafter cannot run here"
            )


def _flat(keys: Settings) -> Mapping[str, Any]:
    """The settings of a config.json; those that the speculators format nests under its layers come to the top."""
    raw, layers = keys.values, _sub(keys, "transformer_layer_config")
    if not layers:
        return raw
    flat = layers | {key: value for key, value in raw.items() if value is not None}
    ids = raw.get("aux_hidden_state_layer_ids")
    if isinstance(ids, list) and "target_layer_ids" not in flat:
        flat["target_layer_ids"] = [id - 1 if type(id) is int else id for id in ids]  # here the embedding is number 0
    non_causal = keys.flag("sliding_window_non_causal")
    if non_causal is not None and raw.get("is_causal") is None:
        kinds = layers.get("layer_types")
        flat["is_causal"] = not non_causal and isinstance(kinds, list) and "sliding_attention" in kinds
    return flat


def _zlab_config(name: str, keys: Settings, weights: WeightFile) -> DraftConfig:
    inner = {key: value for key, value in _sub(keys, "dflash_config").items() if value is not None}
    both = keys.part({**keys.values, **inner})  # block_size and others moved inside in newer files
    rope = keys.part({**keys.values, **_sub(keys, "rope_parameters")})
    blocks = keys.integer("num_hidden_layers", high=1024)
    window, sliding = _zlab_window(keys, blocks)
    target_blocks = _optional(both, "num_target_layers")
    heads = read_heads(both, weights.tensors, keys.integer("hidden_size"), json=True)
    stated = both.find("is_causal", "causal")
    config = DraftConfig(
        name=name, flavour="z-lab", block_count=blocks, embedding_length=keys.integer("hidden_size"),
        feed_forward_length=keys.integer("intermediate_size"), head_count=keys.integer("num_attention_heads"),
        head_count_kv=keys.integer("num_key_value_heads"), key_length=keys.integer("head_dim"), heads=heads,
        rms_eps=keys.number("rms_norm_eps", high=MAX_EPS), rope_freq_base=rope.number("rope_theta"),
        rope_scaling=json_scaling(keys, rope.number("rope_theta")),
        block_size=both.integer("block_size", "dspark_block_size", low=2, high=MAX_BLOCK),
        target_layers=_zlab_layers(both, blocks, target_blocks), target_block_count=target_blocks,
        mask_token_id=_optional(both, "mask_token_id", "dspark_noise_token_id", low=0),
        vocab_size=_optional(keys, "vocab_size") or table_vocabulary(weights.tensors),
        sliding_window=window, sliding=sliding,
        causal=both.flags(stated, count=blocks) if stated else (False,) * blocks if heads.markov else sliding,
    )  # fmt: skip
    keys.check_divides("num_key_value_heads", config.head_count_kv, "num_attention_heads", config.head_count)
    return config


def _sub(keys: Settings, name: str) -> dict[str, Any]:
    value = keys.get(name)
    if value is not None and not isinstance(value, dict):
        raise FormatError(f"{keys.source}: {name} is {str(value)[:40]!r}, expected an object")
    return value or {}


def _zlab_layers(keys: Settings, blocks: int, target_blocks: int | None) -> tuple[int, ...]:
    """The layer ids; where a file has none, spread evenly as in z-lab's code."""
    names = ("target_layer_ids", "dspark_target_layer_ids")
    if keys.find(*names) or target_blocks is None:
        return keys.integers(*names, low=EMBEDDING, high=MAX_LAYER)
    if blocks == 1:
        return (target_blocks // 2,)
    return tuple(round(1 + index * (target_blocks - 4) / (blocks - 1)) for index in range(blocks))


def _zlab_window(keys: Settings, blocks: int) -> tuple[int, tuple[bool, ...]]:
    kinds, used = keys.get("layer_types"), keys.flag("use_sliding_window")
    if kinds is None:
        # The rule of Hugging Face's config: where windows are used, layers from max_window_layers on have one.
        first = keys.integer("max_window_layers", low=0, default=28) if used else blocks
        kinds = ["full_attention" if index < first else "sliding_attention" for index in range(blocks)]
    known = ("full_attention", "sliding_attention")
    if not isinstance(kinds, list) or len(kinds) != blocks or not all(kind in known for kind in kinds):
        raise FormatError(f"{keys.source}: layer_types is {str(kinds)[:80]}, expected {blocks} of {' or '.join(known)}")
    # The flag overrules the list.
    sliding = tuple(used is not False and kind == "sliding_attention" for kind in kinds)
    return (keys.integer("sliding_window") if any(sliding) else 0), sliding


def capabilities(config: DraftConfig, *, on_device: bool = False) -> Capabilities:
    knobs = BLOCK_KNOBS | {"by_parent"} if config.heads.conditional else BLOCK_KNOBS
    knobs |= ON_DEVICE if on_device else frozenset()
    return Capabilities(config.kind, 1 + config.depths, on_device, tuple(config.target_layers), knobs)


def open_dflash(path: str | Path, target: DraftTarget) -> Draft:
    """Read a header, and the token list if there is one. Raises FormatError, UnsupportedError, MismatchError."""
    config, file = open_drafter(path)
    mask = mask_token(target.file)
    notes = check_pair(target.config, config, mask)
    if config.heads.draft_vocab:
        draft_tokens(config, file)  # checked here: backends use each as a token of the target
    config = paired(target.config, config, mask)
    return Draft(target, capabilities(config), config, (file,), notes)
