"""Granite 3 and 4, dense: Llama's layers, with factors of the embedding, the scores, the logits, and of what each part
adds to the residual stream."""

from __future__ import annotations

from dataclasses import replace

from dflash_core.arch import llama, reading
from dflash_core.arch.architecture import Architecture, Head
from dflash_core.arch.rope import UNROTATED
from dflash_core.arch.spec import ModelSpec
from dflash_core.formats.metadata import Settings


def read(keys: Settings, head: Head) -> ModelSpec:
    """The model that the settings describe. Raises FormatError or UnsupportedError.

    Its stream is h += r * part(norm(h)). All that reads h norms it, so h / r is stored: then r is 1, and the norms have
    the epsilon of a stream that is larger by 1 / r.
    """
    spec = llama.read(keys, head)
    residual = reading.given(keys, "residual_scale", 1.0)
    layers = reading.with_options(spec.layers, scale=reading.given(keys, "attention.scale", 0.0) or None)
    if keys.flag("rope.scaling.finetuned") is False:  # so does the converter write a model without positions
        layers = reading.with_options(layers, scaling=UNROTATED)
    return replace(
        spec,
        layers=layers,
        rms_eps=spec.rms_eps / residual**2,
        embedding_scale=reading.given(keys, "embedding_scale", 1.0) / residual,
        logit_scale=1 / reading.given(keys, "logit_scale", 1.0),
    )


ARCHITECTURE = Architecture("granite", "Granite 3 and 4, dense", read)
