"""Folders of models whose layers are alike: Llama and models of its shape, Qwen3."""

from __future__ import annotations

from dflash_core.arch.folders.form import ATTENTION, DENSE, EXPERTS, Form, Values, refused
from dflash_core.arch.folders.settings import check_activation, common, experts, whole_rotary
from dflash_core.formats.folders.layouts import Modules
from dflash_core.formats.metadata import Settings


def llama(keys: Settings, modules: Modules) -> Values:
    """Llama 2 and 3, Mistral, SmolLM2."""
    check_activation(keys, "hidden_act")
    for name in ("attention_bias", "mlp_bias"):
        keys.find(name)  # the tensors say so
    values = common(keys) | whole_rotary(keys, 1e4)
    return values | {"feed_forward_length": keys.integer("intermediate_size"), "attention.rows_in_halves": True}


def qwen3(keys: Settings, modules: Modules) -> Values:
    """Qwen3, dense."""
    return _qwen3(keys) | {"feed_forward_length": keys.integer("intermediate_size")}


def qwen3moe(keys: Settings, modules: Modules) -> Values:
    """Qwen3 with experts."""
    return _qwen3(keys) | experts(keys) | {"expert_weights_norm": keys.flag("norm_topk_prob") is True}


def _qwen3(keys: Settings) -> Values:
    check_activation(keys, "hidden_act")
    if keys.flag("use_sliding_window"):
        raise refused(keys, "use_sliding_window", "false")
    for name in ("sliding_window", "layer_types"):
        keys.find(name)  # of no effect without windows
    return common(keys) | whole_rotary(keys)


LLAMA = Form("llama", llama, ATTENTION | DENSE)
QWEN3 = Form("qwen3", qwen3, ATTENTION | DENSE)
QWEN3MOE = Form("qwen3moe", qwen3moe, ATTENTION | EXPERTS, harmless=frozenset({"mlp_only_layers"}))
