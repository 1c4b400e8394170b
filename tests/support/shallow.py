"""Golden models with fewer and narrower layers: passes spend most of their time in them, emulated and on the CPU.

Of the golden pair two are left, one of each kind; they hold tensors of all types that the file has. Their feed-forward
networks have half the width. Tests of what several layers of one kind do to each other take the whole pair.
"""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from dflash_core import load_target
from dflash_core.backends.opened import Target
from support.gguf_copy import Stored, stored, write_copy
from support.golden import golden
from support.mtp_files import HEAD

LEFT_OUT, WIDTH = 2, 256  # layers; of the feed-forward network, 512 in the file
# Layers of other golden targets that have each kind of attention, with and without a window, and two in a row.
LAYERS: dict[str, range] = {
    "gemma3-Q8_0": range(4, 7), "gptoss-MXFP4": range(2), "laguna-Q8_0": range(2), "q3-F16": range(2),
}  # fmt: skip
PATTERNS = {"gemma3-Q8_0": {"gemma3.attention.sliding_window_pattern": 2}}  # where the layers left have another


@functools.cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="shallow-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def narrow(tensor: Stored) -> Stored:
    """With the first half of a feed-forward network: rows of its first matrices, columns of the last."""
    if tensor.name.endswith(("ffn_gate.weight", "ffn_up.weight")):
        return tensor._replace(data=tensor.data[:WIDTH])
    if tensor.name.endswith("ffn_down.weight"):  # columns in the blocks of its type
        return tensor._replace(data=np.ascontiguousarray(tensor.data[:, : tensor.data.shape[1] // 2]))
    return tensor


@functools.cache
def shallow(file: str) -> Path:
    """The last DeltaNet layer and the attention layer of a golden target."""
    reader = gguf.GGUFReader(golden(file))
    tensors = []
    for one in stored(reader):
        _, _, name = one.name.partition("blk.")
        layer, _, rest = name.partition(".")
        if not name or int(layer) >= LEFT_OUT:
            tensors.append(narrow(one._replace(name=f"blk.{int(layer) - LEFT_OUT}.{rest}" if name else one.name)))
    changed = {"qwen35.block_count": 2, "qwen35.full_attention_interval": 2, "qwen35.feed_forward_length": WIDTH}
    return write_copy(_folder() / file, reader, tensors, changed)


@functools.cache
def shallow_target() -> Target:
    """The float golden target in that form, on the CPU."""
    return load_target(shallow("tiny-F16.gguf"))


@functools.cache
def shallow_draft() -> Path:
    """The golden drafter, which reads both layers of such a target."""
    folder = shutil.copytree(golden("tiny-dflash"), _folder() / "tiny-dflash")
    config = json.loads((folder / "config.json").read_text())
    config["num_target_layers"], config["dflash_config"]["target_layer_ids"] = 2, [0, 1]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@functools.cache
def shallow_head() -> Path:
    """The golden MTP head, for such a target."""
    reader = gguf.GGUFReader(HEAD)
    tensors = [narrow(one._replace(name=one.name.replace("blk.4.", "blk.2."))) for one in stored(reader)]
    changed = {"qwen35.block_count": 3, "qwen35.feed_forward_length": WIDTH}
    return write_copy(_folder() / HEAD.name, reader, tensors, changed)


@functools.cache
def some_layers(name: str) -> Path:
    """The layers LAYERS of a golden file of `targets`."""
    left, reader = LAYERS[name], gguf.GGUFReader(golden(f"targets/{name}.gguf"))
    prefix = reader.fields["general.architecture"].contents()
    changed: dict[str, Any] = {f"{prefix}.block_count": len(left), **PATTERNS.get(name, {})}
    count = reader.fields[f"{prefix}.block_count"].contents()
    for key, field in reader.fields.items():  # what is said of each layer
        value = field.contents()
        if key.startswith(prefix) and isinstance(value, list) and len(value) == count:
            changed[key] = [value[layer] for layer in left]
    tensors = []
    for one in stored(reader):
        block, _, rest = one.name.removeprefix("blk.").partition(".")
        if not one.name.startswith("blk."):
            tensors.append(one)
        elif int(block) in left:
            tensors.append(one._replace(name=f"blk.{int(block) - left.start}.{rest}"))
    return write_copy(_folder() / f"{name}.gguf", reader, tensors, changed)
