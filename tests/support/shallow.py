"""The golden pair with fewer layers: passes spend most of their time in layers, emulated ones and those on the CPU.

Two are left, one of each kind; they hold tensors of all types that the file has. Tests of what several layers of one
kind do to each other take the whole pair.
"""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import tempfile
from pathlib import Path

import gguf

from dflash_core import load_target
from dflash_core.backends.base import Target
from support.gguf_copy import Stored, stored, write_copy
from support.golden import golden
from support.mtp_files import HEAD

LEFT_OUT = 2


@functools.cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="shallow-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def shallow(file: str) -> Path:
    """The last DeltaNet layer and the attention layer of a golden target."""
    reader = gguf.GGUFReader(golden(file))
    tensors = []
    for one in stored(reader):
        _, _, name = one.name.partition("blk.")
        layer, _, rest = name.partition(".")
        if not name or int(layer) >= LEFT_OUT:
            tensors.append(Stored(f"blk.{int(layer) - LEFT_OUT}.{rest}" if name else one.name, one.data, one.type))
    changed = {"qwen35.block_count": 2, "qwen35.full_attention_interval": 2}
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
    tensors = [Stored(one.name.replace("blk.4.", "blk.2."), one.data, one.type) for one in stored(reader)]
    return write_copy(_folder() / HEAD.name, reader, tensors, {"qwen35.block_count": 3})
