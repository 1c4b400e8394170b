"""Variants of the models that synthetic files stand in for: fewer layers, and an MTP head after the last one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dflash_core.arch.kinds import NextN
from dflash_core.bench.synthetic_models import Model, is_float, more_bits
from dflash_core.config import MtpConfig


def cut(model: Model, layers: int) -> Model:
    """The same model with only its first `layers` layers."""
    whole = model.settings["block_count"]
    if layers == whole:
        return model
    settings = {
        key: value[:layers] if isinstance(value, list) and len(value) == whole else value
        for key, value in model.settings.items()
    }
    captured = tuple(layer for layer in model.draft.target_layers if layer < layers)
    return replace(
        model, name=f"{model.name}-{layers}-layers", settings={**settings, "block_count": layers},
        draft=replace(model.draft, target_layers=captured),
    )  # fmt: skip


def with_block(model: Model) -> dict[str, Any]:
    """The settings with an MTP block after the last layer."""
    return {**model.settings, "block_count": model.settings["block_count"] + 1, "nextn_predict_layers": 1}


def mtp_config(model: Model) -> MtpConfig:
    """An MTP head as publishers ship it: of the optional tensors it has only its own norm."""
    spec = model.read(with_block(model))
    assert spec.nextn is not None, "settings with an MTP block"
    hidden, index = spec.embedding_length, spec.block_count
    return MtpConfig(spec.name, index, spec.nextn, NextN(), hidden, spec.vocab_size, spec.rms_eps)


def mtp_types(config: MtpConfig, model: Model) -> dict[str, str]:
    """The storage type of every tensor of an MTP head, which is the last layer of its file."""
    generous = more_bits(config.index, config.index + 1), more_bits(config.index // 4, (config.index + 1) // 4)
    return {
        name: "F32" if is_float(name, shape) else model.storage(name.split(".", 2)[-1], *generous)
        for name, shape in config.tensors().items()
    }
