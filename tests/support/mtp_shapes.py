"""The shapes of an MTP head in its target's file."""

from __future__ import annotations

from tools.bench.variants import mtp_config, mtp_types

from dflash_core.bench.shapes import drafter_of, header, headers
from dflash_core.bench.synthetic_models import Model
from dflash_core.drafters.draft import Draft


def mtp_header(model: Model) -> Draft:
    """The MTP head in the target's file."""
    config, (spec, file, _) = mtp_config(model), headers(model, "")
    return drafter_of(spec, file, config, header("mtp", config.tensors(), mtp_types(config, model)))
