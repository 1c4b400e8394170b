"""Random block drafters (DFlash, DFlash 2, DSpark) written in every file format that users have."""

from __future__ import annotations

import dataclasses
import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from dflash_core import loading
from dflash_core.arch.draft_heads import Convolution, Heads, Markov, Selector
from dflash_core.backends.cpu.dflash import CpuDFlashDrafter
from dflash_core.backends.opened import Target
from dflash_core.config import DraftConfig
from dflash_core.drafters.dflash import capabilities, open_drafter
from dflash_core.drafters.draft import Draft
from dflash_core.models.dflash import DFlash
from dflash_core.models.matrix import DenseMatrix, Weights
from support.formats import write_gguf, write_safetensors

FORMS = ("z-lab", "upstream", "fork")
PLAIN = DraftConfig(
    name="small", flavour="z-lab", block_count=2, embedding_length=32, feed_forward_length=48, head_count=2,
    head_count_kv=1, key_length=16, rms_eps=1e-6, rope_freq_base=1e7, block_size=8, target_layers=(0, 2),
    mask_token_id=5, vocab_size=96, target_block_count=4, sliding_window=24, sliding=(True, True),
    causal=(False, False),
)  # fmt: skip
TWO = {"conv": Convolution(2, 16), "selector": Selector(8, 16)}
SPARK = {"markov": Markov(8, confidence=40, confidence_bias=True), "anchor_first": True, "sliding": (False, False),
         "sliding_window": 0, "own_embedding": True, "own_head": True, "block_size": 7}  # fmt: skip
LAGUNA = {"gated": True, "taps_normed": True, "causal": (True, True)}


def changed(config: DraftConfig, **changes: Any) -> DraftConfig:
    """`config` with some fields replaced, those of its heads too."""
    names = {field.name for field in dataclasses.fields(Heads)}
    heads = {name: value for name, value in changes.items() if name in names}
    own = {name: value for name, value in changes.items() if name not in names}
    return dataclasses.replace(config, heads=dataclasses.replace(config.heads, **heads), **own)


_ZLAB = {
    "enc.output_norm.weight": "hidden_norm.weight", "output_norm.weight": "norm.weight",
    "token_embd.weight": "embed_tokens.weight", "output.weight": "lm_head.weight",
    "selector_hidden.weight": "candidate_selector.hidden_projection.weight",
    "selector_predecessor.weight": "candidate_selector.predecessor_codebook",
    "selector_successor.weight": "candidate_selector.successor_codebook",
    "markov_w1.weight": "markov_head.markov_w1.weight", "markov_w2.weight": "markov_head.markov_w2.weight",
    "conf_proj.weight": "confidence_head.proj.weight", "conf_proj.bias": "confidence_head.proj.bias",
    "attn_norm.weight": "input_layernorm.weight", "ffn_norm.weight": "post_attention_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight", "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight", "attn_output.weight": "self_attn.o_proj.weight",
    "attn_gate.weight": "self_attn.g_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight", "attn_k_norm.weight": "self_attn.k_norm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight", "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "attn_conv_base": "attention_conv.base_kernel", "attn_conv_proj.weight": "attention_conv.kernel_projection.weight",
    "ffn_conv_base": "mlp_conv.base_kernel", "ffn_conv_proj.weight": "mlp_conv.kernel_projection.weight",
}  # fmt: skip
_FORK = {
    "selector_hidden.weight": "selector.hidden_proj.weight", "selector_predecessor.weight": "selector.pred_codebook",
    "selector_successor.weight": "selector.succ_codebook",
    "attn_conv_base": "attn_conv.base", "attn_conv_proj.weight": "attn_conv.proj.weight",
    "ffn_conv_base": "ffn_conv.base", "ffn_conv_proj.weight": "ffn_conv.proj.weight",
}  # fmt: skip


def name_in(form: str, name: str) -> str:
    """A canonical tensor name as files of `form` have it."""
    table = {"z-lab": _ZLAB, "fork": _FORK, "upstream": {}}[form]
    if not name.startswith("blk."):
        if form == "z-lab" and name.startswith("enc.aux_norm."):
            return name.replace("enc.aux_norm", "aux_hidden_norms")
        return table.get(name, name)
    _, index, inside = name.split(".", 2)
    return f"{'layers' if form == 'z-lab' else 'blk'}.{index}.{table.get(inside, inside)}"


def random_weights(config: DraftConfig, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights by canonical name. Convolutions are near the identity, and pair biases large enough to have an effect."""
    random = np.random.default_rng(seed)
    made: dict[str, np.ndarray] = {}
    for name, shape in config.tensors().items():
        values = random.standard_normal(shape)
        if "norm." in name:
            values = 1 + 0.25 * values
        elif name.endswith("_conv_base"):
            values = 0.3 * values
            values[:, 0] += 1
        elif name.startswith("blk.") or name in (
            "fc.weight",
            "selector_hidden.weight",
            "output.weight",
            "conf_proj.weight",
        ):
            values = values * shape[-1] ** -0.5 * (0.4 if "conv_proj" in name or "selector" in name else 1)
        elif name == "d2t":
            assert config.vocab_size, "a vocabulary"
            made[name] = np.sort(random.permutation(config.vocab_size)[: shape[0]]).astype(np.int64)
            continue
        made[name] = values.astype(np.float32)
    return made


def zlab_config(config: DraftConfig) -> dict[str, Any]:
    """The config.json of a folder."""
    kinds = ["sliding_attention" if one else "full_attention" for one in config.sliding]
    architecture = {"dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel", "dspark": "Qwen3DSparkModel"}
    laguna = config.heads.gated
    inner: dict[str, Any] = {
        "target_layer_ids": list(config.target_layers), "mask_token_id": config.mask_token_id,
        "block_size": config.block_size,
    }  # fmt: skip
    if config.heads.conv:
        inner |= {"conv_kernel_size": config.heads.conv.kernel, "conv_group_size": config.heads.conv.group}
    if config.heads.selector:
        inner |= {"selector_rank": config.heads.selector.rank, "selector_top_k": config.heads.selector.top_k}
    if config.heads.markov:
        inner |= {"markov_rank": config.heads.markov.rank, "markov_head_type": "vanilla"}
    if config.heads.embedding_scale != 1:
        inner["input_embedding_scale"] = config.heads.embedding_scale
    if config.heads.logit_scale != 1:
        inner["output_multiplier"] = config.heads.logit_scale
    if config.heads.softcap:
        inner["final_logit_softcapping"] = config.heads.softcap
    full = {
        "architectures": ["DFlashLagunaForCausalLM" if laguna else architecture[config.kind]],
        "hidden_size": config.embedding_length,
        "num_hidden_layers": config.block_count, "num_attention_heads": config.head_count,
        "num_key_value_heads": config.head_count_kv, "head_dim": config.key_length,
        "intermediate_size": config.feed_forward_length, "vocab_size": config.vocab_size,
        "rms_norm_eps": config.rms_eps, "rope_theta": config.rope_freq_base,
        "num_target_layers": config.target_block_count, "layer_types": kinds, "is_causal": config.causal[0],
        "dflash_config": inner,
    }  # fmt: skip
    if laguna:  # what such a config.json has besides
        full |= {"gating": "per-head", "num_experts": 0, "moe_routed_scaling_factor": 2.5, "norm_topk_prob": True}
    if any(config.sliding):
        full["sliding_window"] = config.sliding_window
    if config.heads.markov and not config.heads.anchor_first:
        full["sample_from_anchor"] = False
    return full


def gguf_keys(config: DraftConfig) -> dict[str, Any]:
    """The metadata of a GGUF file of architecture dflash."""
    keys: dict[str, Any] = {
        "block_count": config.block_count, "embedding_length": config.embedding_length,
        "feed_forward_length": config.feed_forward_length, "attention.head_count": config.head_count,
        "attention.head_count_kv": config.head_count_kv, "attention.key_length": config.key_length,
        "attention.layer_norm_rms_epsilon": config.rms_eps, "rope.freq_base": config.rope_freq_base,
        "block_size": config.block_size, "target_layers": [layer + 1 for layer in config.target_layers],
        "vocab_size": config.vocab_size, "attention.causal": config.causal[0],
    }  # fmt: skip
    if config.heads.conv:
        keys |= {"conv_kernel_size": config.heads.conv.kernel, "conv_group_size": config.heads.conv.group}
    if config.heads.selector:
        keys |= {"selector_rank": config.heads.selector.rank, "selector_top_k": config.heads.selector.top_k}
    if any(config.sliding):
        keys |= {"attention.sliding_window": config.sliding_window}
        keys |= {"attention.sliding_window_pattern": list(config.sliding)}
    if config.heads.markov and not config.heads.anchor_first:
        keys["sample_from_anchor"] = False
    for name, value in (("logit_scale", config.heads.logit_scale), ("embedding_scale", config.heads.embedding_scale)):
        if value != 1:
            keys[name] = value
    if config.heads.softcap:
        keys["final_logit_softcapping"] = config.heads.softcap
    if config.heads.gated:
        keys["decoder_arch"] = "laguna"
    named = {f"dflash.{key}": value for key, value in keys.items()}
    own = {"general.architecture": "dflash", "general.name": config.name}
    return own | named | {"tokenizer.ggml.mask_token_id": config.mask_token_id}


def write_drafter(
    path: Path, config: DraftConfig, form: str = "z-lab", seed: int = 0, weights: dict[str, np.ndarray] | None = None
) -> Path:
    """A folder, or a file with `.gguf` added."""
    made = random_weights(config, seed) if weights is None else weights
    if form != "z-lab" and config.heads.taps_normed:
        taps = [made[f"enc.aux_norm.{at}.weight"] for at in range(len(config.target_layers))]
        made = {name: values for name, values in made.items() if not name.startswith("enc.aux_norm.")}
        made["enc.aux_norm.weight"] = np.stack(taps)
    tensors = {name_in(form, name): values for name, values in made.items()}
    for layer in range(config.block_count if form == "z-lab" and config.heads.gated else 0):
        at = f"layers.{layer}.self_attn."
        tensors[f"{at}qkv_proj.weight"] = np.concatenate([tensors.pop(f"{at}{one}_proj.weight") for one in "qkv"])
    if form != "z-lab":
        return write_gguf(path.with_suffix(".gguf"), gguf_keys(config), tensors)
    if "d2t" in tensors:  # a checkpoint holds offsets
        tensors["d2t"] = tensors["d2t"] - np.arange(len(tensors["d2t"]))
    path.mkdir()
    (path / "config.json").write_text(json.dumps(zlab_config(config)))
    write_safetensors(path / "model.safetensors", tensors)
    return path


def behind_ends(path: Path, embedding: np.ndarray, head: np.ndarray, *, double: bool = False) -> Draft:
    """A drafter's file, loaded with what it takes from a target: embedding and head (vocab, hidden)."""
    config, file = open_drafter(path)
    dtype = torch.float64 if double else torch.float32
    model = SimpleNamespace(
        token_embd=DenseMatrix(torch.from_numpy(embedding).to(dtype)),
        output=DenseMatrix(torch.from_numpy(head).to(dtype)), spec=SimpleNamespace(vocab_size=len(embedding)),
    )  # fmt: skip
    target: Any = SimpleNamespace(model=model, config=model.spec)
    net = DFlash(Weights(file, dtype=dtype), config)
    drafter = partial(CpuDFlashDrafter, net, target.model)
    return Draft(target, capabilities(config), config, (file,), model=net, drafter=drafter)


def config_for(target: Target, kind: str, **changes: Any) -> DraftConfig:
    """The config of a drafter that fits `target`. `kind`: dflash, dflash2 or dspark."""
    spec = target.config
    hidden = spec.embedding_length
    heads: dict[str, Any] = {"dflash": {}, "dflash2": TWO, "dspark": {
        **SPARK, "markov": Markov(8, confidence=hidden + 8, confidence_bias=True)}}[kind]  # fmt: skip
    sized = {"embedding_length": hidden, "vocab_size": spec.vocab_size, "target_block_count": spec.block_count}
    return changed(PLAIN, **{**sized, **heads, **changes})


def write_random(folder: Path, target: Target, kind: str, seed: int = 0, **changes: Any) -> Path:
    """Such a drafter with random weights."""
    return write_drafter(folder / kind, config_for(target, kind, **changes), seed=seed)


def random_draft(folder: Path, target: Target, kind: str, seed: int = 0, **changes: Any) -> Draft:
    """The same, loaded."""
    return loading.load_draft(write_random(folder, target, kind, seed, **changes), target)
