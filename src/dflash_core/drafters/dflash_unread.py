"""Settings of drafters' files that no reader has looked up: what may stand there, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dflash_core.formats.metadata import Settings
from dflash_core.formats.unread import FACTOR, check_transformed, is_neutral, not_followed
from dflash_core.formats.weights import listed

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
