"""Folders with the settings and tensors of published quantised models: each opens with the types it should."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dflash_core.arch.folders.opening import open_folder
from dflash_core.config import read_target
from dflash_core.errors import UnsupportedError
from support.folders import PRE, WIDE, changed, in_shards, quantised, saved, wide

GPTQ = {
    "bits": 4, "group_size": 128, "damp_percent": 0.05, "desc_act": False, "static_groups": False, "sym": True,
    "lm_head": False, "true_sequential": True, "quant_method": "gptq", "checkpoint_format": "gptq",
    "pack_dtype": "int32", "meta": {"quantizer": ["gptqmodel:4.0"], "mse": 0.0}, "dynamic": {"-:.*shared_expert.*": {}},
}  # fmt: skip
AUTO_ROUND = {
    "quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True, "data_type": "int", "iters": 200,
    "packing_format": "auto_round:auto_gptq", "block_name_to_quantize": "model.language_model.layers",
    "autoround_version": "0.8.0", "extra_config": {".*in_proj_[ab].*": {"bits": 16, "data_type": "float"}},
}  # fmt: skip
AWQ = {
    "quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm",
    "modules_to_not_convert": ["visual", "lm_head"],
}  # fmt: skip
MIXED = {
    "quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "producer": {"name": "modelopt", "version": "0.45"},
    "quantized_layers": {"model.layers.0.mlp.up_proj": {"quant_algo": "W4A16_NVFP4", "group_size": 16}},
    "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"}, "ignore": ["lm_head", "mtp*"],
}  # fmt: skip


def compressed(form: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed", "version": "0.12.2",
        "config_groups": {"group_0": group}, "ignore": ["lm_head", "re:.*mlp.gate$"], "kv_cache_scheme": None,
        "sparsity_config": {}, "transform_config": {}, "global_compression_ratio": None,
    }  # fmt: skip


PUBLISHED: dict[str, tuple[dict[str, Any], list[str], set[str]]] = {
    "gptq": (GPTQ, ["gptq-128-signed"], {"INT4S_128"}),
    "gptq of 64 with zeros": (GPTQ | {"group_size": 64, "sym": False}, ["gptq-64-zeros"], {"INT4_64"}),
    "gptq, second version": (GPTQ | {"checkpoint_format": "gptq_v2", "sym": False}, ["gptq-v2"], {"INT4_128"}),
    "gptq, order by activation that is none": (GPTQ | {"desc_act": True}, ["gptq-128-signed"], {"INT4S_128"}),
    "auto-round": (AUTO_ROUND, ["gptq-128-signed"], {"INT4S_128"}),
    "auto-round, some with zeros": (AUTO_ROUND, ["gptq-128-signed", "gptq-64-zeros"], {"INT4S_128", "INT4_64"}),
    "auto-round as awq": (
        AUTO_ROUND | {"packing_format": "auto_round:auto_awq", "sym": False}, ["awq-128"], {"INT4_128"},
    ),
    "auto-round as compressed-tensors": (
        AUTO_ROUND | {"packing_format": "auto_round:llm_compressor"}, ["packed-128"], {"INT4S_128"},
    ),
    "awq": (AWQ, ["awq-128"], {"INT4_128"}),
    "compressed-tensors": (
        compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=32, symmetric=False),
        ["packed-32-zeros"], {"INT4_32"},
    ),
    "nvfp4 of modelopt, attention fp8": (MIXED, ["nvfp4-modelopt", "fp8-tensor"], {"NVFP4", "F8_E4M3"}),
    "nvfp4 of compressed-tensors": (
        compressed("nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group", group_size=16),
        ["nvfp4-compressed"], {"NVFP4"},
    ),
    "fp8 by row": (
        compressed("float-quantized", num_bits=8, type="float", strategy="channel"), ["fp8-row"], {"F8_E4M3"},
    ),
    "fp8 by block": (
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
        ["fp8-block"], {"F8_E4M3"},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder, model = tmp_path_factory.mktemp("plain"), wide("qwen3", 0)
    return folder, saved(model, folder)


@pytest.mark.parametrize("name", PUBLISHED)
def test_types_are_those_of_the_tensors(name: str, plain: tuple[Path, Any], tmp_path: Path) -> None:
    method, layouts, types = PUBLISHED[name]
    folder = tmp_path / "model"
    shutil.copytree(plain[0], folder)
    quantised(folder, plain[1], layouts, 0)
    # Scales of cached keys and values, as FP8 folders have them.
    scales = {f"model.layers.0.self_attn.{part}_proj.{part}_scale": torch.tensor(1.0) for part in "kv"}
    changed(folder, lambda found: found | scales, lambda found: found | {"quantization_config": method})
    file, _ = read_target(open_folder(folder).settled())
    matrices = [one for one in file.tensors.values() if len(one.shape) == 2]
    assert {one.type for one in matrices} == {"BF16", *types}
    assert {one.name for one in matrices if one.type == "BF16"} == {"token_embd.weight", "output.weight"}


def test_an_order_by_activation_is_refused(plain: tuple[Path, Any], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(plain[0], folder)
    quantised(folder, plain[1], ["gptq-128-signed"], 0)
    order = "model.layers.1.mlp.gate_proj.g_idx"
    changed(
        folder,
        lambda found: found | {order: found[order].flip(0)},
        lambda found: found | {"quantization_config": GPTQ | {"desc_act": True}},
    )
    with pytest.raises(UnsupportedError, match=r"gate_proj.g_idx orders inputs by activation \(desc_act\)"):
        open_folder(folder)


@pytest.mark.parametrize("shards", [False, True])
def test_auto_round_of_a_model_with_mtp(shards: bool, tmp_path: Path) -> None:
    """MTP tensors lie in a file of their own that no index names; the language model's names have a longer prefix."""
    model, last = saved(wide("qwen35", 2), tmp_path, PRE["qwen35"]), f"model.layers.{WIDE.layers - 1}."
    quantised(tmp_path, model, ["gptq-128-signed"], 0)

    def renamed(found: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name.replace(last, "mtp.layers.0."): one for name, one in found.items()}

    def wrapped(found: dict[str, Any]) -> dict[str, Any]:
        kinds = found["layer_types"][:-1]
        text = found | {"num_hidden_layers": WIDE.layers - 1, "layer_types": kinds, "mtp_num_hidden_layers": 1}
        return {"model_type": "qwen3_5", "text_config": text, "quantization_config": AUTO_ROUND}

    changed(tmp_path, renamed, wrapped)
    weights = load_file(tmp_path / "model.safetensors")
    extra = {name: one for name, one in weights.items() if name.startswith("mtp.")}
    norms = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    extra |= {f"mtp.{name}.weight": torch.zeros(WIDE.hidden) for name in norms}
    extra["mtp.fc.weight"] = torch.zeros(WIDE.hidden, 2 * WIDE.hidden)
    trunk = {
        name.replace("model.", "model.language_model.", 1): weights[name] for name in weights.keys() - extra.keys()
    }
    save_file(trunk, tmp_path / "model.safetensors")
    save_file(extra, tmp_path / "model_extra_tensors.safetensors")
    if shards:
        in_shards(tmp_path)
    file, spec = read_target(open_folder(tmp_path))
    assert (spec.nextn_predict_layers, spec.block_count) == (1, WIDE.layers - 1)
    assert f"blk.{WIDE.layers - 1}.nextn.eh_proj.weight" in file.tensors
