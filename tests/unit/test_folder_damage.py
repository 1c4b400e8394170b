"""Folders that cannot run: each is refused in one line that says what was found, what was expected, what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dflash_core import load_target
from dflash_core.arch.folders.opening import open_folder
from dflash_core.arch.folders.quantisation import OTHERS, Zeros, zeros_of
from dflash_core.arch.recommended import recommended
from dflash_core.config import read_target
from dflash_core.errors import DFlashError
from dflash_core.formats.folders.int4 import FIRST_INPUTS
from dflash_core.formats.weights import Shard
from dflash_core.text.tokenizer import Tokenizer
from dflash_tui.cli.command_line import main
from support.folders import PRE, changed, in_shards, quantised, saved, wide
from support.grids import full
from support.quantised import in_layout

INDEX = "model.safetensors.index.json"
MLP = "model.layers.0.mlp.up_proj"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for name in ("qwen3", "qwen35", "qwen35moe", "phi3"):
        found[name] = tmp_path_factory.mktemp(name)
        saved(wide(name, 0), found[name], PRE.get(name, "qwen2"))
    found["gptq"] = tmp_path_factory.mktemp("gptq")
    quantised(found["gptq"], saved(wide("qwen3", 0), found["gptq"]), ["gptq-128-signed"], 0)
    return found


def refusal(folder: Path) -> str:
    with pytest.raises(DFlashError) as found:
        read_target(open_folder(folder))
    message = str(found.value)
    assert "\n" not in message
    assert str(folder) in message or folder.name in message
    return message


def config(**values: Any) -> Callable[[Path], object]:
    return lambda folder: changed(folder, config=lambda found: found | values)


def tensors(change: Callable[[dict[str, Tensor]], object]) -> Callable[[Path], object]:
    """`change` alters the tensors in place."""

    def made(found: dict[str, Tensor]) -> dict[str, Tensor]:
        change(found)
        return found

    return lambda folder: changed(folder, made)


def put(**values: Tensor) -> Callable[[Path], object]:
    return tensors(lambda found: found.update({name.replace("__", "."): one for name, one in values.items()}))


def in_new_layout(layout: str) -> Callable[[dict[str, Tensor]], object]:
    def change(found: dict[str, Tensor]) -> None:
        weight = found.pop(MLP + ".weight").float().numpy()
        found.update(in_layout(np.random.default_rng(0), MLP, layout, weight)[0])

    return change


def one(name: str, value: Callable[[Tensor], Tensor]) -> Callable[[Path], object]:
    return tensors(lambda found: found.update({name: value(found[name])}))


def without(name: str) -> Callable[[Path], object]:
    return tensors(lambda found: found.pop(name))


def in_file(name: str, data: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(data)


def missing_shard(folder: Path) -> None:
    (in_shards(folder) / "model-00002-of-00003.safetensors").unlink()


def absent_file(folder: Path) -> None:
    index = json.loads((in_shards(folder) / INDEX).read_text())
    index["weight_map"]["lm_head.weight"] = "model-00007-of-00003.safetensors"
    (folder / INDEX).write_text(json.dumps(index))


def truncated(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-1000])


def damaged_header(folder: Path) -> None:
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[8:12] = b"[[[["
    (folder / "model.safetensors").write_bytes(bytes(data))


CASES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "no-config": ("qwen3", lambda folder: (folder / "config.json").unlink(), "has no config.json, expected the folder"),
    "json": ("qwen3", in_file("config.json", b"{"), "is not valid JSON"),
    "architecture": ("qwen3", config(model_type="mamba"), "has the model_type mamba, expected qwen3_5,"),
    "no architecture": ("qwen3", config(model_type=None, architectures=None), "has no model_type, expected one of"),
    "output of phi": ("phi3", without("model.layers.0.self_attn.o_proj.weight"), "missing: blk.0.attn_output.weight"),
    "no head": (
        "qwen3",
        lambda folder: (config(tie_word_embeddings=False)(folder), without("lm_head.weight")(folder)),
        "has no lm_head, expected it: tie_word_embeddings is false",
    ),
    "drafter": ("qwen3", config(architectures=["DFlashDraftModel"]), "is a DFlash drafter, expected a target"),
    "method": (
        "qwen3", config(quantization_config={"quant_method": "hqq"}), "quantised as HQQ, expected gptq",
    ),
    "bits": ("qwen3", config(quantization_config={"quant_method": "gptq", "bits": 3}), "gptq with bits 3, expected 4"),
    "setting": ("qwen3", config(parallel_residual=True), "parallel_residual is True, expected a file without it"),
    "window": ("qwen3", config(use_sliding_window=True, sliding_window=64), "use_sliding_window is True"),
    "activation": ("qwen3", config(hidden_act="relu2"), "hidden_act is relu2, expected silu or swish"),
    "heads": ("qwen3", config(num_attention_heads="two"), "num_attention_heads is 'two', expected a whole number"),
    "layers": ("qwen3", config(num_hidden_layers=9), "tensors are missing: blk.3."),
    "kinds": ("qwen35", config(layer_types=["mamba"] * 3), "layer_types is ['mamba', 'mamba', 'mamba'], expected 3 of"),
    "delta-heads": ("qwen35", config(linear_num_value_heads=4), "A_log has 6 numbers, expected 4 from the config"),
    "rope": ("qwen3", config(rope_parameters={"rope_type": "longrope", "rope_theta": 1e4}), "by longrope"),
    "no-shard": ("qwen3", missing_shard, "model-00002-of-00003.safetensors of 3 shards is not there"),
    "index": ("qwen3", absent_file, "model-00007-of-00003.safetensors of 4 shards is not there"),
    "no-weights": ("qwen3", lambda folder: (folder / "model.safetensors").unlink(), "has 0 .safetensors files"),
    "pickled": (
        "qwen3", lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model-00001-of-00002.bin"),
        "has its weights in pytorch_model-00001-of-00002.bin, expected .safetensors",
    ),
    "truncated": ("qwen3", truncated, "is truncated: tensor"),
    "header": ("qwen3", damaged_header, "is not valid JSON"),
    "no-tokenizer": ("qwen3", lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer.json"),
    "tokenizer": ("qwen3", in_file("tokenizer.json", b"[]"), "is JSON of type list, expected an object"),
    "missing": ("qwen3", without(MLP + ".weight"), "1 of 36 tensors are missing: blk.0.ffn_up.weight"),
    "unknown": ("qwen3", put(model__layers__0__odd__weight=torch.zeros(2, 2)), "no meaning here: blk.0.odd.weight"),
    "shape": ("qwen3", one(MLP + ".weight", lambda w: w[:100]), "has shape [100, 256], expected [512, 256]"),
    "type": ("qwen3", one(MLP + ".weight", lambda w: w.to(torch.int8)), "is stored as I8 without the scales"),
    "half-a-layout": (
        "qwen3", tensors(lambda found: (in_new_layout("gptq-128-signed")(found), found.pop(MLP + ".scales"))),
        "is stored as g_idx, qweight, qzeros, expected tensors of",
    ),
    "two-layouts": (
        "qwen3", tensors(lambda found: found.update({f"{MLP}.{one}": torch.zeros(1) for one in ("qweight", "scales")})),
        "is stored as weight, expected",
    ),
    "group": (
        "gptq", tensors(lambda found: found.update({
            MLP + ".scales": found[MLP + ".scales"][:1], MLP + ".qzeros": found[MLP + ".qzeros"][:1],
        })),
        "has groups of 256 over 256 inputs, expected groups of 32, 64, 128",
    ),
    "order": (
        "gptq", one(MLP + ".g_idx", lambda index: index.flip(0)), "orders inputs by activation (desc_act)",
    ),
    "scales": ("gptq", one(MLP + ".scales", lambda scales: scales.float()), "is stored as F32, expected F16 or BF16"),
    "zeros": ("gptq", one(MLP + ".qzeros", lambda zeros: zeros[:, :3]), "is I32 [2, 3], expected I32 [2, 64]"),
    "codes": ("gptq", one(MLP + ".qweight", lambda codes: codes[:, :5]), "has 512 outputs and"),
    "fp8-scales": (
        "qwen3", tensors(lambda found: found.update({
            MLP + ".weight": found[MLP + ".weight"].to(torch.float8_e4m3fn), MLP + ".weight_scale": torch.zeros(3),
        })),
        "has shape [3], expected one scale, one for each of 512 rows or one per block",
    ),
    "fp8-scale-type": (
        "qwen3", tensors(lambda found: found.update({
            MLP + ".weight": found[MLP + ".weight"].to(torch.float8_e4m3fn),
            MLP + ".weight_scale": torch.ones(1, dtype=torch.float64),
        })),
        "weight_scale is stored as F64, expected F32 or F16 or BF16",
    ),
    "nvfp4-scale-type": (
        "qwen3", tensors(lambda found: (in_new_layout("nvfp4-compressed")(found),
                                        found.update({MLP + ".weight_global_scale": torch.tensor(3)}))),
        "weight_global_scale is stored as I64, expected F32 or F16 or BF16",
    ),
    "fp8-floats": ("qwen3", put(model__layers__0__mlp__up_proj__weight_scale=torch.ones(1)), "weights of BF16"),
    "nvfp4": (
        "qwen3", tensors(lambda found: (in_new_layout("nvfp4-modelopt")(found),
                                        found.update({MLP + ".weight_scale_2": torch.tensor(0.0)}))),
        "weight_scale_2 is 0.0, expected a number other than 0",
    ),
    "experts": (
        "qwen35moe", without("model.layers.0.mlp.experts.3.up_proj.weight"),
        "has 4 experts with numbers up to 4, expected each number once",
    ),
}  # fmt: skip


def method(name: str | None = None, **more: Any) -> dict[str, Any]:
    return {"quantization_config": ({"quant_method": name} if name else {}) | more}


INTEGERS = {"weights": {"type": "int", "num_bits": 8}}
FORMS: dict[str, tuple[dict[str, Any], str]] = {
    **{name: (method(name), f"quantised as {words}") for name, words in OTHERS.items() if name != "mlx"},
    "unheard": (method("zip9"), "quantised as quant_method zip9, expected gptq"),
    "no-object": ({"quantization_config": "gptq"}, "quantised as quant_method gptq"),
    "mlx": ({"quantization": {"group_size": 64, "bits": 4}}, "quantised as MLX"),
    "bitsandbytes-without-a-name": (method(load_in_8bit=True, load_in_4bit=False), "quantised as bitsandbytes"),
    "auto-round-mixed": (
        method("auto-round", bits=4, extra_config={"lm_head": {"bits": 8}, "a": {"bits": 16}}),
        "auto-round with extra_config of bits 8, expected 4 or 16",
    ),
    "gptq-mixed": (method("gptq", bits=4, dynamic={"-:.*a.*": {}, "+:.*b.*": {"bits": 8}}), "dynamic of bits 8"),
    "awq-gemv": (method("awq", bits=4, version="GEMV"), "awq with version gemv, expected gemm"),
    "gptq-marlin": (method("gptq", bits=4, checkpoint_format="marlin"), "checkpoint_format marlin, expected gptq or"),
    "auto-round-8": (method("auto-round", bits=8), "auto-round with bits 8, expected 4"),
    "modelopt-awq": (method("modelopt", quant_algo="W4A16_AWQ"), "quant_algo W4A16_AWQ, expected FP8 or"),
    "integers-8": (method("compressed-tensors", config_groups={"a": INTEGERS}), "integers of bits 8, expected 4"),
    "transforms": (method("compressed-tensors", transform_config={"R1": {}}), "compressed-tensors with transforms"),
}


@pytest.mark.parametrize("form", FORMS)
def test_methods_are_refused_before_the_weights_are_opened(form: str, tmp_path: Path) -> None:
    """The folder has nothing but a config: whatever is wrong with the rest is not looked at."""
    values, message = FORMS[form]
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"} | values))
    found = refusal(tmp_path)
    assert message in found
    assert found.endswith("use a GGUF file of the same model")


BESIDE: dict[str, tuple[dict[str, Any], str]] = {
    "quantize_config.json": ({"bits": 8, "group_size": 128}, "gptq with bits 8, expected 4"),
    "quant_config.json": ({"w_bit": 3, "q_group_size": 128}, "awq with bits 3, expected 4"),
    "quantization_config.json": ({"bits": 2}, "auto-round with bits 2, expected 4"),
    "hf_quant_config.json": ({"quantization": {"quant_algo": "W4A8_AWQ"}}, "modelopt with quant_algo W4A8_AWQ"),
}


@pytest.mark.parametrize("name", BESIDE)
def test_a_file_beside_the_config_says_how_it_is_quantised(name: str, tmp_path: Path) -> None:
    values, message = BESIDE[name]
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    (tmp_path / name).write_text(json.dumps(values))
    found = refusal(tmp_path)
    assert message in found
    assert name in found


def test_zeros_are_as_a_file_beside_the_config_says(models: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "quantize_config.json").write_text(
        json.dumps({"bits": 4, "checkpoint_format": "gptq_v2", "sym": False})
    )
    assert zeros_of(tmp_path, {}) == Zeros(plus_one=False, symmetric=False)
    assert zeros_of(tmp_path, method("gptq", bits=4, sym=True)) == Zeros()


def test_lists_of_modules_that_are_not_quantised_are_not_needed(models: dict[str, Path], tmp_path: Path) -> None:
    """The tensors say which are: regular expressions of all kinds, none of which is read."""
    folder = tmp_path / "model"
    shutil.copytree(models["gptq"], folder)
    lists = {"ignore": ["re:.*("], "modules_to_not_convert": ["lm_head"], "dynamic": {"-:.*(": {}}}
    changed(folder, config=lambda found: found | method("gptq", bits=4, **lists))
    assert "INT4S_128" in {info.type for info in open_folder(folder).tensors.values()}


def test_a_folder_of_links(models: dict[str, Path], tmp_path: Path) -> None:
    """As the hub's cache has it: snapshots of links to files by their checksums."""
    blobs, folder = tmp_path / "blobs", tmp_path / "snapshots" / "0123"
    blobs.mkdir()
    folder.mkdir(parents=True)
    for number, file in enumerate(sorted(models["qwen3"].iterdir())):
        shutil.copy(file, blobs / str(number))
        (folder / file.name).symlink_to(Path("../../blobs") / str(number))
    read_target(open_folder(folder))
    next(folder.glob("*.safetensors")).resolve().unlink()
    assert "does not exist" in refusal(folder)


@pytest.mark.parametrize("command", ["inspect", "plan"])
def test_zeros_and_orders_are_read_by_a_load_only(
    command: str, models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`inspect` and `plan` read headers, and the first numbers of each order."""
    read, whole = list[tuple[str, int]](), Shard.read

    def counted(shard: Shard, offset: int, count: int, out: Any = None) -> Any:
        if shard.name.endswith(".safetensors"):
            read.append((shard.name, count))
        return whole(shard, offset, count, out)

    monkeypatch.setattr(Shard, "read", counted)
    file = models["gptq"] / "model.safetensors"
    header = 8 + int.from_bytes(file.read_bytes()[:8], "little")
    more = ["--device", "cpu", "--draft", "ngram", "--target"] if command == "plan" else []
    assert main([command, *more, str(models["gptq"])]) == 0
    orders = sum(name.endswith(".g_idx") for name in load_file(file))
    assert orders > 10
    # A command may open the folder twice. Zeros alone are 4 KB a matrix.
    assert 0 < sum(count for _, count in read) <= 2 * (header + orders * 4 * FIRST_INPUTS)
    read.clear()
    load_target(models["gptq"])
    assert sum(count for _, count in read) > file.stat().st_size - header - 1


def test_an_order_that_begins_as_usual_is_refused_by_a_load(models: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(models["gptq"], folder)

    def turned(found: dict[str, Tensor]) -> None:
        found[MLP + ".g_idx"][FIRST_INPUTS:] = found[MLP + ".g_idx"][FIRST_INPUTS:].flip(0)

    tensors(turned)(folder)
    with pytest.raises(DFlashError, match=r"up_proj.g_idx orders inputs by activation \(desc_act\)"):
        load_target(folder)


@pytest.mark.parametrize("case", CASES)
def test_each_is_refused_in_one_line(case: str, models: dict[str, Path], tmp_path: Path) -> None:
    name, change, message = CASES[case]
    folder = tmp_path / "model"
    shutil.copytree(models[name], folder)
    change(folder)
    assert message in refusal(folder)


def test_codes_that_are_no_numbers_are_refused_when_read(models: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(models["qwen3"], folder)
    found = load_file(folder / "model.safetensors")
    weight = found[MLP + ".weight"].to(torch.float8_e4m3fn)
    weight.view(torch.uint8)[3, 5] = 0xFF
    save_file(found | {MLP + ".weight": weight, MLP + ".weight_scale": torch.ones(1)}, folder / "model.safetensors")
    with pytest.raises(DFlashError, match=r"up_proj.weight holds values that are no numbers; download it again"):
        load_target(folder)


ODD: tuple[Any, ...] = (
    None, -1, 0, 7, 0.5, 1 << 70, float("inf"), "x", True, [], ["x"], [1, None], {}, {"x": {}}, {"type": "x"},
)  # fmt: skip


def replaced(value: Any, path: tuple[Any, ...], odd: Any) -> Any:
    """A copy of `value` with `odd` at a path of keys and places."""
    if not path:
        return odd
    copy = value.copy()
    copy[path[0]] = replaced(value[path[0]], path[1:], odd)
    return copy


def paths(value: Any, most: int, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to all values inside; of a long list or object only to the first ones."""
    found = [path]
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for place, (key, one) in enumerate(inside):
        if place < most:
            found += paths(one, most, (*path, key))
    return found


# How tensors are stored changes nothing in what is read of the other files.
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("qwen35moe", "config.json"), ("qwen35moe", "tokenizer.json"), ("qwen35moe", "tokenizer_config.json"),
        ("qwen35moe", "generation_config.json"), ("gptq", "config.json"), full("gptq", "tokenizer.json"),
        full("gptq", "tokenizer_config.json"), full("gptq", "generation_config.json"),
    ],
)  # fmt: skip
def test_odd_values_are_refused_or_read(file: str, name: str, models: dict[str, Path], tmp_path: Path) -> None:
    """Whatever a value of a JSON file is replaced by, the folder opens or is refused by name."""
    folder = tmp_path / "model"
    shutil.copytree(models[name], folder)
    values = json.loads((folder / file).read_text()) if (folder / file).exists() else {"eos_token_id": [1], "top_k": 2}
    if name == "gptq" and file == "config.json":
        values["quantization_config"] = {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq"}
    read, refusals = 0, list[str]()
    for path in paths(values, 40 if file == "config.json" else 4):
        for odd in ODD:
            (folder / file).write_text(json.dumps(replaced(values, path, odd)))
            try:
                opened, _ = read_target(open_folder(folder))
                Tokenizer.from_metadata(opened.metadata)
                recommended(opened.metadata)
                read += 1
            except DFlashError as error:
                refusals.append(str(error))
    assert read
    assert refusals or file == "generation_config.json"
    assert not any("\n" in refusal for refusal in refusals)
