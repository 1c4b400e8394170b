"""Heads and tables that a drafter's file may have in addition to a plain DFlash network: read from its settings and
checked against its tensors. And the settings that no reader has looked up: what may stand there, what is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dflash_core.arch.draft_heads import Convolution, Heads, Markov, Selector
from dflash_core.drafters.dflash_names import CONVOLUTIONS, SELECTOR, canonical
from dflash_core.errors import FormatError, UnsupportedError
from dflash_core.formats.metadata import FACTOR, Settings, check_transformed, is_neutral, not_followed
from dflash_core.formats.weights import TensorInfo, listed

GGUF_HARMLESS = frozenset({
    # Of heads that the file does not have; a head that it has shows in its tensors.
    "conv_kernel_size", "conv_group_size", "markov_head_type", "dflash.markov_head_type", "markov_rank",
    "dflash.markov_rank", "enable_confidence_head", "confidence_head_with_markov", "dflash.domino.", "dflash.dspark.",
    # What the file states twice.
    "target_hidden_size", "dflash.target_layer_ids", "dflash.block_size", "dflash.mask_token_id",
    "dflash.n_target_layers", "dflash.n_target_features",
})  # fmt: skip
JSON_HARMLESS = frozenset({
    "architectures", "model_type", "auto_map", "dtype", "torch_dtype", "transformers_version", "name_or_path",
    "tokenizer_class", "use_cache", "return_dict", "initializer_range", "tie_word_embeddings", "pretraining_tp",
    "max_window_layers", "sliding_window", "max_position_embeddings", "vocab_size", "draft_vocab_size",
    "target_hidden_size", "transformer_layer_config", "layer_types", "speculators_version", "speculators_config",
    "speculators_model_type", "aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids", "num_anchors",
    "markov_head_type", "dspark_markov_head_type", "enable_confidence_head", "confidence_head_with_markov",
    "conv_kernel_size", "conv_group_size", "rope_scaling", "rope_parameters", "rope_theta", "dflash_config",
    # Of training, and of generating with the library that wrote the file.
    "attention_dropout", "hidden_dropout", "max_length", "min_length", "top_k", "top_p", "temperature", "id2label",
    "label2id", "num_beams", "num_beam_groups", "num_return_sequences",
})  # fmt: skip
CHANGES = re.compile(r"quantization|compression|softcap|sink|bias|_norm$|norm_|scale|scaling|multiplier|projector")
"""Names of settings that change what a drafter computes, wherever they stand in a config.json."""
OF_EXPERTS = ("moe_", "num_experts", "norm_topk_prob", "shared_expert")
"""How settings of experts begin, which no drafter has: configs of a target's kind repeat them."""
PROJECTORS = ("dflash", "dflash2", "dspark")


def check_json(keys: Settings, inner: Mapping[str, Any]) -> tuple[str, ...]:
    """Check the settings of a config.json that no reader has looked up. Returns notes for the user.

    inner: those of `dflash_config`, which are the drafter's own; beside it stands whatever the writing library knows,
    so there a setting is refused only where its name says that it changes the network. Raises UnsupportedError.
    """
    check_transformed(keys)
    unknown = []
    for key, value in {**keys.values, **inner}.items():
        if not keys.get("num_experts") and key.startswith(OF_EXPERTS):
            continue
        if key in keys.read or key in JSON_HARMLESS or key.startswith("_") or key.endswith(("token_id", "_dropout")):
            continue
        if is_neutral(key, value, keys) or value in ({}, "silu") or (key == "projector_type" and value in PROJECTORS):
            continue
        if key in inner or CHANGES.search(key) or FACTOR.search(key):
            raise not_followed(keys.source, key, value)
        unknown.append(key)
    return (f"settings that are not known and not followed: {listed(unknown)}",) if unknown else ()


MAX_TAPS = 64
MAX_RANK = 1 << 16
MAX_TOP_K = 1 << 12
_TWO = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")


def table_vocabulary(tensors: Mapping[str, TensorInfo]) -> int | None:
    """The target's tokens in the drafter's own vocabulary tables, if there are any."""
    have = {canonical(name): info.shape for name, info in tensors.items()}
    for name in ("selector_predecessor.weight", "markov_w1.weight", "token_embd.weight", "output.weight"):
        if name in have and not (name == "output.weight" and "d2t" in have):
            return have[name][0] if have[name] else None
    return None


SCALES = (
    ("embedding_scale", "dflash.embedding_scale"), ("logit_scale", "dflash.logit_scale"),
    ("final_logit_softcapping", "dflash.final_logit_softcapping"),
)  # fmt: skip
JSON_SCALES = ("input_embedding_scale",), ("output_multiplier",), ("final_logit_softcapping",)


def read_heads(keys: Settings, tensors: Mapping[str, TensorInfo], hidden: int, *, json: bool = False) -> Heads:
    """`json`: from a config.json, where settings of dflash_config take precedence; else both naming schemes of GGUF
    have the same keys."""
    two = json and keys.get("architectures") == ["DFlash2DraftModel"]
    # By default the speculators format has a row for the anchor in addition to the proposals.
    anchor_first = not (json and keys.find("speculators_model_type", "speculators_config"))
    embedding, logits, softcap = JSON_SCALES if json else SCALES
    have = {canonical(name): info.shape for name, info in tensors.items()}
    two = two or any(name in have for name in SELECTOR) or any(keys.get(name) for name in _TWO[2:])
    folded = two or any(re.fullmatch(CONVOLUTIONS, name) for name in have)
    markov = _markov(keys, have)
    conv = selector = None
    if folded:
        conv = Convolution(keys.integer(_TWO[0], high=MAX_TAPS), keys.integer(_TWO[1], high=hidden))
        keys.check_divides(_TWO[1], conv.group, "hidden_size" if json else "embedding_length", hidden)
    if two:
        selector = Selector(keys.integer(_TWO[2], high=MAX_RANK), keys.integer(_TWO[3], high=MAX_TOP_K))
    anchor = keys.flag("sample_from_anchor", "dflash.sample_from_anchor")
    if anchor and not markov:
        raise UnsupportedError(
            f"{keys.source}: sample_from_anchor is true without a Markov head, expected false; use another drafter"
        )
    if selector and markov:
        raise UnsupportedError(f"{keys.source} has both a candidate selector and a Markov head, expected one of them")
    vocab = table_vocabulary(tensors)
    if selector and vocab and selector.top_k > vocab:
        raise FormatError(
            f"{keys.source}: {_TWO[3]} is {selector.top_k}, expected {vocab} at most, its vocabulary; convert it again"
        )
    return Heads(
        conv, selector, markov, bool(markov) and (anchor_first if anchor is None else anchor),
        have["d2t"][0] if "d2t" in have else None,
        "token_embd.weight" in have,
        # A list of tokens without a head of its own would be a head that is missing.
        "output.weight" in have or "d2t" in have,
        _scale(keys, *embedding), _scale(keys, *logits), _scale(keys, *softcap, none=0.0),
        gated="blk.0.attn_gate.weight" in have,
        taps_normed=any(name.startswith("enc.aux_norm.") for name in have),
    )  # fmt: skip


def _markov(keys: Settings, have: Mapping[str, tuple[int, ...]]) -> Markov | None:
    rank = keys.find("markov_rank", "dspark_markov_rank", "dflash.markov_rank")
    rank = rank if rank and keys.values[rank] != 0 else None
    dspark = keys.get("architectures") in (["Qwen3DSparkModel"], ["DSparkDraftModel"]) or keys.prefix == "dspark."
    if "markov_w1.weight" not in have and "markov_w2.weight" not in have and not rank and not dspark:
        return None
    kind = keys.get("markov_head_type", "dspark_markov_head_type", "dflash.markov_head_type")
    if kind not in (None, "vanilla"):
        name = str(kind)[:40] if str(kind)[:40].isprintable() else "strange"
        raise UnsupportedError(
            f"{keys.source} has a Markov head of type {name}, expected vanilla; use a drafter with such a head"
        )
    shape = have.get("markov_w1.weight", (0, 0))
    known = keys.integer(rank, high=MAX_RANK) if rank else shape[-1] or 1
    head = have.get("conf_proj.weight")
    confidence = head[-1] if head else 0
    joined = keys.flag("confidence_head_with_markov")
    if keys.flag("enable_confidence_head") and head is None:
        found = "enable_confidence_head is true and there is no confidence head, expected its tensors"
        raise FormatError(f"{keys.source}: {found}; the file is incomplete")
    hidden = keys.integer("embedding_length", "hidden_size")
    allowed = (hidden, hidden + known) if joined is None else (hidden + known * joined,)
    if confidence and confidence not in allowed:
        found = f"the confidence head has {confidence} inputs, expected {' or '.join(map(str, allowed))}"
        raise FormatError(f"{keys.source}: {found}; convert the model again")
    return Markov(known, "markov_w2.scale" in have, confidence, "conf_proj.bias" in have)


def _scale(keys: Settings, *names: str, none: float = 1.0) -> float:
    """A factor, `none` where the file has none; 0 says that there is none."""
    return none if keys.get(*names) in (None, 0) else keys.number(*names)
