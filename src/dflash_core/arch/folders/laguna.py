"""Folders of Laguna: gated attention whose heads differ by layer, a dense layer first, experts chosen by sigmoids."""

from __future__ import annotations

from dflash_core.arch.folders.form import ATTENTION, DENSE, EXPERTS, Form, Values, refused
from dflash_core.arch.folders.settings import check_activation, common, experts, rope_by_kind, rotary, sliding
from dflash_core.arch.laguna import WINDOW_ROPE_BASE
from dflash_core.arch.reading import GATING
from dflash_core.arch.rope import SCALING
from dflash_core.formats.folders.layouts import Modules
from dflash_core.formats.metadata import Settings

PER_HEAD = (None, True, "per-head", "per_head")


def settings(keys: Settings, modules: Modules) -> Values:
    """Laguna XS and S."""
    check_activation(keys, "hidden_act")
    each = keys.get("gating_types") or []
    if keys.get("gating") not in PER_HEAD or not isinstance(each, list) or any(one not in PER_HEAD for one in each):
        raise refused(keys, "gating", "a number per head")
    values = common(keys)
    blocks, head_dim = values["block_count"], values["attention.key_length"]
    windows = sliding(keys, [False] * blocks)
    full, window = (rotary(one) for one in rope_by_kind(keys) or (_usual(keys, 5e5, 0.5), _usual(keys)))
    if SCALING in window:
        raise refused(keys, "rope_parameters", "sliding_attention without scaling")
    full["rope.dimension_count"] = int(head_dim * full.pop("rope.partial"))
    heads = "num_attention_heads_per_layer"
    values |= full | experts(keys, shared=True) | {
        "attention.sliding_window_pattern": windows,
        "attention.sliding_window": keys.integer("sliding_window") if any(windows) else values["context_length"],
        "rope.freq_base_swa": window["rope.freq_base"],
        "rope.dimension_count_swa": int(head_dim * window["rope.partial"]),
        "leading_dense_block_count": _dense(keys, blocks),
        "feed_forward_length": keys.integer("intermediate_size"),
        "expert_weights_norm": keys.flag("norm_topk_prob") is not False,
        "expert_weights_scale": keys.number("moe_routed_scaling_factor", default=1.0),
        "expert_gating_func": GATING["sigmoid"],
    }  # fmt: skip
    keys.find("sliding_window")
    if keys.get(heads):
        values["attention.head_count"] = list(keys.per_layer(heads, blocks))
    return values


def _usual(keys: Settings, base: float = WINDOW_ROPE_BASE, share: float = 1.0) -> Settings:
    """The rotary positions of a config that leaves them out."""
    return keys.part(values={"rope_theta": base, "partial_rotary_factor": share})


def _dense(keys: Settings, blocks: int) -> int:
    """How many layers have no experts: the first ones."""
    only, kinds = keys.get("mlp_only_layers"), keys.get("mlp_layer_types")
    if not isinstance(only, list | None):
        raise refused(keys, "mlp_only_layers", "a list of layers")
    kinds = kinds or ["dense" if at in (only or [0]) else "sparse" for at in range(blocks)]
    dense = kinds.count("dense") if isinstance(kinds, list) else 0
    if kinds != ["dense"] * dense + ["sparse"] * (blocks - dense):
        raise refused(keys, "mlp_layer_types", f"dense and then sparse ones, {blocks} in all")
    return dense


SHARED = {
    f"mlp.{shared}.{part}_proj": f"ffn_{part}_shexp"
    for shared in ("shared_expert", "shared_experts")
    for part in ("gate", "up", "down")
}
CHOICE_BIAS = dict.fromkeys(
    ("mlp.experts.e_score_correction_bias", "mlp.gate.e_score_correction_bias"), "exp_probs_b.bias"
)  # fmt: skip
NAMES = ATTENTION | DENSE | EXPERTS | SHARED | CHOICE_BIAS | {"self_attn.g_proj": "attn_gate"}
FORM = Form("laguna", settings, NAMES, harmless=frozenset({"partial_rotary_factor"}))
