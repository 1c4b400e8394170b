"""Settings of a file that no reader has looked up.

A setting may change the result: one that is not followed is refused by name. Settings that are known to
be harmless and values that change nothing are accepted; a note names the latter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from dflash_core.errors import UnsupportedError
from dflash_core.formats.metadata import Settings
from dflash_core.formats.weights import listed, shown

HARMLESS = frozenset({
    "context_length", "vocab_size",
    "attention.layer_norm_epsilon",  # the norms are RMS norms, which have an epsilon of their own
    "full_attention_interval",  # where the file lists its layers
    "feed_forward_length",  # of a model of experts
    "expert_shared_count",  # expert_shared_feed_forward_length is the width of all of them
    # What scaled positions need, where a file has it without scaling.
    "rope.scaling.finetuned", "rope.scaling.original_context_length",
    "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
    # Windows: without `attention.sliding_window` these have no effect.
    "attention.sliding_window_pattern", "rope.freq_base_swa", "rope.dimension_count_swa",
    # Images: for text all axes of a rotary position are the same.
    "rope.dimension_sections", "mrope_sections", "rope.mrope_section", "rope.mrope_interleaved",
    "vision.", "image_token_id", "vision_start_token_id", "vision_end_token_id",
})  # fmt: skip
"""Settings that change nothing for text, whatever their value, in all architectures. A name that ends in a dot stands
for all that begin so."""
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "ssm.v_head_reordered": (True,),
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
    "moe_every_n_layers": (0, 1),
    "tensor_data_layout": ("reference",),
}
"""Values that change nothing, where 0 and false (of a factor also 1) are not the ones."""
FACTOR = re.compile(r"(scale|scaling|multiplier|factor)$")
TRANSFORMED = re.compile(r"hadamard|quarot|spinquant|rotation_matri", re.IGNORECASE)
"""Keys of weights that were rotated: activations must be rotated before they are multiplied."""
OTHER_NAMES = ("general.", "tokenizer.", "quantize.", "split.")


def check_unread(keys: Settings, harmless: Iterable[str] = ()) -> tuple[str, ...]:
    """Check the settings under `keys.prefix` that no reader has looked up. Returns notes for the user.

    harmless: further names of harmless settings; one that ends in a dot stands for all that begin so. Raises
    UnsupportedError for a setting that may change the result.
    """
    check_transformed(keys)
    allowed = {*HARMLESS, *harmless}
    neutral, parts = [], tuple(name for name in allowed if name.endswith("."))
    for key, value in keys.values.items():
        name = key.removeprefix(keys.prefix)
        if not key.startswith(keys.prefix) or key in keys.read or name in allowed or name.startswith(parts):
            continue
        if not is_neutral(name, value, keys):
            raise not_followed(keys.source, key, value)
        neutral.append(f"{shown(key)} ({shown(repr(value))})")
    return (f"settings without effect: {listed(neutral)}",) if neutral else ()


def check_transformed(keys: Settings) -> None:
    """Raises UnsupportedError for weights that were rotated."""
    rotated = [key for key in keys.values if TRANSFORMED.search(key) and not key.startswith(OTHER_NAMES)]
    if rotated:
        raise UnsupportedError(
            f"{keys.source}: its weights are transformed ({listed(rotated, 2)}), expected plain ones, without which it"
            " would run as noise; use the model's plain file"
        )


def not_followed(source: str, key: str, value: Any) -> UnsupportedError:
    """The refusal of a setting."""
    return UnsupportedError(
        f"{source}: {shown(key)} is {shown(repr(value))}, expected a file without it: it may change the result, and is"
        " not followed here; use another file of the model"
    )


def is_neutral(name: str, value: Any, keys: Settings) -> bool:
    """Whether a setting changes nothing with this value: 0, false, empty, 1 for a factor, or what is done anyway."""
    if isinstance(value, list):
        return all(is_neutral(name, item, keys) for item in value)
    if name in NEUTRAL:
        return value in NEUTRAL[name]
    if isinstance(value, int | float) and not isinstance(value, bool):
        if name == "attention.scale" and isinstance(head := keys.get("attention.key_length"), int) and head > 0:
            return value == 0 or math.isclose(value, head**-0.5, rel_tol=1e-5)
        if name == "attention.sliding_window" and isinstance(context := keys.get("context_length"), int):
            return value == 0 or value >= context
        if value == 1 and FACTOR.search(name):
            return True
    return value in (None, 0, "", "none")
