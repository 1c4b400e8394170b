"""The shapes of an MTP head in its target's file."""

from __future__ import annotations

from tools.bench.variants import mtp_config, mtp_types

from dflash_core.bench.shapes import ShapedDraft, header
from dflash_core.bench.synthetic_models import Model


def mtp_header(model: Model) -> ShapedDraft:
    """The MTP head in the target's file."""
    config = mtp_config(model)
    return ShapedDraft((header("mtp", config.tensors(), mtp_types(config, model)),), config)
