"""Folders whose tensors have any shape and type: each opens and can be read, or is refused in one line."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from dflash_core.arch.folders.opening import open_folder
from dflash_core.config import read_target
from dflash_core.errors import DFlashError
from dflash_core.formats.safetensors import DTYPES
from support.folders import changed, saved, wide
from support.quantised import LAYOUTS, in_layout

MODULES = ("model.layers.0.mlp.down_proj", "model.layers.2.self_attn.o_proj")
"""Of folders of Qwen3.5."""
EXPERTS = "model.layers.0.mlp.experts."
"""Of folders of GPT-OSS."""
GPT_OSS = {
    "model_type": "gpt_oss", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "head_dim": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
    "rope_theta": 1e4, "sliding_window": 16, "num_local_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip
Header = dict[str, tuple[str, tuple[int, ...]]]
SIZES = (0, 1, 2, 3, 8, 16, 32, 64, 128, 256, 512)


class Folders(dict[str, tuple[Path, Header]]):
    """By layout, with the header of the weights."""

    def __repr__(self) -> str:  # hypothesis prints its arguments
        return "folders"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    found, model = Folders(), wide("qwen35", 0)
    for layout in LAYOUTS:
        folder = tmp_path_factory.mktemp(layout)
        saved(model, folder, "qwen35")

        def made(tensors: dict[str, object], layout: str = layout) -> dict[str, object]:
            for module in MODULES:
                weight = tensors.pop(f"{module}.weight").float().numpy()
                tensors |= in_layout(np.random.default_rng(0), module, layout, weight)[0]
            return tensors

        changed(folder, made)
        with safe_open(folder / "model.safetensors", "pt") as file:
            parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            found[layout] = folder, {name: (one.get_dtype(), tuple(one.get_shape())) for name, one in parts.items()}
    for packed in (False, True):
        at = tmp_path_factory.mktemp("gpt-oss") / str(packed)
        found[f"gpt-oss {packed}"] = at, gpt_oss(at, folder / "tokenizer.json", packed)
    return found


def gpt_oss(folder: Path, tokenizer: Path, packed: bool) -> Header:
    """A folder without weights, and the header of those it should have."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(GPT_OSS))
    shutil.copy(tokenizer, folder)
    of_layer = {
        "input_layernorm.weight": (64,), "post_attention_layernorm.weight": (64,), "self_attn.sinks": (4,),
        "self_attn.q_proj.weight": (256, 64), "self_attn.k_proj.weight": (128, 64),
        "self_attn.v_proj.weight": (128, 64),
        "self_attn.o_proj.weight": (64, 256), "mlp.router.weight": (4, 64), "mlp.router.bias": (4,),
        "self_attn.q_proj.bias": (256,), "self_attn.k_proj.bias": (128,), "self_attn.v_proj.bias": (128,),
        "self_attn.o_proj.bias": (64,),
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {f"model.layers.0.{name}": shape for name, shape in of_layer.items()}
    shapes |= {"model.embed_tokens.weight": (320, 64), "model.norm.weight": (64,), "lm_head.weight": (320, 64)}
    found: Header = {name: ("BF16", shape) for name, shape in shapes.items()}
    for name, rows in (("gate_up_proj", 128), ("down_proj", 64)):
        found[f"{EXPERTS}{name}_bias"] = ("BF16", (4, rows))
        if packed:
            found[f"{EXPERTS}{name}_blocks"] = ("U8", (4, rows, 2, 16))
            found[f"{EXPERTS}{name}_scales"] = ("U8", (4, rows, 2))
        else:
            found[f"{EXPERTS}{name}"] = ("BF16", (4, 64, rows))
    return found


def write_zeros(path: Path, header: Header) -> None:
    """A file of zeros."""
    entries, at = {}, 0
    for name, (kind, shape) in header.items():
        size = math.prod(shape) * DTYPES[kind]
        entries[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(entries).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)


@pytest.mark.parametrize("packed", [False, True])
def test_an_unchanged_folder_is_read(packed: bool, folders: Folders) -> None:
    folder, header = folders[f"gpt-oss {packed}"]
    write_zeros(folder / "model.safetensors", header)
    file, _ = read_target(open_folder(folder).settled())
    assert {file.tensors[f"blk.0.ffn_{part}_exps.weight"].shape for part in ("gate", "up", "down")} == {(4, 64, 64)}


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_any_shape_and_type_is_read_or_refused(folders: Folders, data: st.DataObject) -> None:
    folder, header = folders[data.draw(st.sampled_from(sorted(folders)))]
    of_layout = st.sampled_from(sorted(name for name in header if name.startswith((*MODULES, EXPERTS))))
    odd = data.draw(st.dictionaries(
        of_layout | of_layout | st.sampled_from(sorted(header)),
        st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.sampled_from(SIZES), max_size=5)),
        max_size=3,
    ))  # fmt: skip
    # Mostly one thing is wrong at a time: the type, or a size.
    for name, (kind, _) in odd.items():
        part = data.draw(st.sampled_from(["type", "size", "both"]))
        if part != "both" and header[name][1]:
            sizes = list(header[name][1])
            sizes[data.draw(st.integers(0, len(sizes) - 1))] = data.draw(st.sampled_from(SIZES))
            odd[name] = (kind, header[name][1]) if part == "type" else (header[name][0], sizes)
    write_zeros(folder / "model.safetensors", header | odd)
    with contextlib.suppress(DFlashError):  # whose message is one line
        file = read_target(open_folder(folder).settled())[0]
        assert all(np.isfinite(file.float32(name)).all() for name in file.tensors if name.startswith("blk."))
