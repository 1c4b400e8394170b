"""Folders whose tensors have any shape and type: each opens and can be read, or is refused in one line."""

from __future__ import annotations

import json
import math
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
"""One of each layer kind whose matrices a folder of Qwen3.5 reorders."""
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


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_any_shape_and_type_is_read_or_refused(folders: Folders, data: st.DataObject) -> None:
    folder, header = folders[data.draw(st.sampled_from(sorted(folders)))]
    of_layout = st.sampled_from(sorted(name for name in header if name.startswith(MODULES)))
    odd = data.draw(st.dictionaries(
        of_layout | of_layout | st.sampled_from(sorted(header)),
        st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.sampled_from(SIZES), max_size=5)),
        max_size=3,
    ))  # fmt: skip
    # Mostly one thing is wrong at a time: the type, or a size.
    for name, (kind, shape) in odd.items():
        part = data.draw(st.sampled_from(["type", "size", "both"]))
        if part != "both" and header[name][1]:
            sizes = list(header[name][1])
            sizes[data.draw(st.integers(0, len(sizes) - 1))] = data.draw(st.sampled_from(SIZES))
            odd[name] = (kind, header[name][1]) if part == "type" else (header[name][0], sizes)
    write_zeros(folder / "model.safetensors", header | odd)
    try:
        file = read_target(open_folder(folder).settled())[0]
        assert all(np.isfinite(file.float32(name)).all() for name in file.tensors if name.startswith("blk."))
    except DFlashError as error:
        assert "\n" not in str(error)
