"""The tensors of a file by the part of the model that they belong to, for lists."""

from __future__ import annotations

import re

from dflash_core.formats.weights import WeightFile


def types_by_group(weights: WeightFile) -> dict[str, dict[str, tuple[int, int]]]:
    """For each group of tensors and each type: how many tensors, how many bytes."""
    mtp = tuple(name.split("nextn.")[0] for name in weights.tensors if ".nextn." in name)
    groups: dict[str, dict[str, tuple[int, int]]] = {}
    for name, info in weights.tensors.items():
        group = next((group for pattern, group in GROUPS if re.search(pattern, name)), "other")
        if name.startswith(mtp):
            group = "MTP"
        if group == "delta net" and f"{name.split('.attn_')[0]}.attn_output.weight" in weights.tensors:
            group = "attention"  # whose gate or fused projection has the same name
        types = groups.setdefault(group, {})
        count, size = types.get(info.type, (0, 0))
        types[info.type] = (count + 1, size + info.n_bytes)
    return groups


# First match wins; the order is also that of a forward pass, roughly.
GROUPS = (
    (r"norm\.weight$", "norms"),
    (r"^(token_embd|per_layer_\w+)\.", "embedding"),
    (r"^output\.", "output"),
    (r"^fc\.", "feature fusion"),
    (r"\.ffn_", "feed-forward"),
    (r"\.(attn_qkv|attn_gate|ssm_\w+)", "delta net"),
    (r"\.attn_", "attention"),
)
