"""The kind of a file by its header: a supported model, a drafter, something else, or damaged. Imports numpy.

The disk caches it: a file that has not changed is not opened again.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Literal

import msgspec

from dflash_core.arch.folders.opening import ASSISTANTS, FORMS, is_drafter, open_folder
from dflash_core.arch.registry import ARCHITECTURES
from dflash_core.clean import one_line
from dflash_core.config import DRAFT_ARCHITECTURES, other_kind, target_config
from dflash_core.drafters.dflash import open_drafter
from dflash_core.drafters.mtp import has_head
from dflash_core.errors import DFlashError, UnsupportedError
from dflash_core.formats.gguf import GGUFFile, open_gguf
from dflash_core.formats.safetensors import read_json
from dflash_core.formats.splits import SPLIT_NAME
from dflash_core.user_folders import user_folder
from dflash_tui.application.json_store import JsonFile

Kind = Literal["target", "draft", "other", "broken"]
VERSION = 3  # of the cached fields, and of what is refused in a header; a file of another version is not used
MAX_ENTRIES = 4_000  # of the cache; the oldest are dropped first


class ModelHeader(msgspec.Struct, frozen=True):
    """`why`: for `other`, its kind, a noun; for `broken`, the error, one line. Sizes are 0 if not known.

    `types`: the tensor type of most bytes. `own_head`: it has an MTP head. `hidden`: size of the hidden state.
    """

    kind: Kind
    why: str = ""
    title: str = ""
    architecture: str = ""
    parameters: int = 0
    types: str = ""
    context: int = 0
    hidden: int = 0
    own_head: bool = False


def key_and_size(path: Path, *, folder: bool = False) -> tuple[str, int]:
    """The cache key of a header, which changes with the file, and the bytes of all its files. Raises OSError."""
    files = [path / "config.json", *sorted(path.glob("*.safetensors"))] if folder else parts(path)
    stats = [one.stat() for one in files]
    sizes = ",".join(f"{about.st_size}:{about.st_mtime_ns}" for about in stats)
    name = os.fsencode(path.resolve()).decode(errors="backslashreplace")  # it may not be valid UTF-8
    return f"{name}|{sizes}", sum(about.st_size for about in stats)


def parts(path: Path) -> list[Path]:
    """The files of a model: several if it is split and the first part is given."""
    match = SPLIT_NAME.fullmatch(path.name)
    if match is None:
        return [path]
    named = [path.with_name(f"{match[1]}-{part:05d}-of-{match[3]}.gguf") for part in range(1, int(match[3]) + 1)]
    return [one for one in named if one.exists()] or [path]


def read_header(path: Path, *, folder: bool = False) -> ModelHeader | None:
    """Read a header. None for a folder with neither a known model nor a drafter."""
    try:
        return _of_folder(path) if folder else _of_target(open_gguf(path), path)
    except DFlashError as error:
        return ModelHeader("broken", str(error))
    except OSError as error:
        return ModelHeader("broken", f"{path} cannot be read: {error.strerror}")


def _of_target(gguf: GGUFFile, path: Path) -> ModelHeader:
    architecture = str(gguf.metadata.get("general.architecture", ""))
    title = str(gguf.metadata.get("general.name") or path.stem)
    # An assistant has another width than the target it is made for.
    made_for = gguf.metadata.get(f"{architecture}.embedding_length_out")
    hidden = made_for or gguf.metadata.get(f"{architecture}.embedding_length")
    hidden = hidden if isinstance(hidden, int) else 0
    if other := other_kind(gguf):
        return ModelHeader("other", other, title, architecture)
    nextn = gguf.metadata.get(f"{architecture}.nextn_predict_layers")  # a file of nothing but MTP blocks has no others
    head = isinstance(nextn, int) and nextn > 0 and "blk.0.attn_norm.weight" not in gguf.tensors
    if architecture in DRAFT_ARCHITECTURES or head:
        return ModelHeader("draft", "", title, architecture, hidden=hidden)
    if architecture not in ARCHITECTURES:
        return ModelHeader("other", f"{one_line(architecture) or 'unknown'} model", title, architecture)
    try:
        spec = target_config(gguf)
    except UnsupportedError as error:
        return ModelHeader("broken", str(error), title, architecture)
    count, sizes = sum(one.n_elements for one in gguf.tensors.values()), Counter[str]()
    for one in gguf.tensors.values():
        sizes[one.type] += one.n_bytes
    [(most, _)] = sizes.most_common(1)
    return ModelHeader(
        "target", "", title, architecture, count, most, spec.context_length, hidden, has_head(gguf, spec)
    )


def _of_folder(folder: Path) -> ModelHeader | None:
    settings = read_json(folder / "config.json")
    if not is_drafter(settings):
        return _of_target(open_folder(folder), folder) if settings.get("model_type") in {*FORMS, *ASSISTANTS} else None
    config, _ = open_drafter(folder)
    return ModelHeader("draft", "", config.name, config.flavour, hidden=config.embedding_length)


class _Cache(msgspec.Struct):
    version: int
    headers: dict[str, ModelHeader]
    pairs: dict[str, str]


class HeaderCache:
    """The cache. `headers` by key of the file; `pairs` by both keys: why they are not compatible, "" if they are."""

    def __init__(self, path: Path | None = None) -> None:
        self._file = JsonFile(path or user_folder("cache") / "models.json", _Cache)
        found = self._file.read()
        cache = found if found is not None and found.version == VERSION else _Cache(VERSION, {}, {})
        self.headers, self.pairs = cache.headers, cache.pairs
        self._written = len(self.headers), len(self.pairs)

    def save(self) -> None:
        """Write new entries."""
        if (sizes := (len(self.headers), len(self.pairs))) != self._written:
            headers, pairs = (dict([*one.items()][-MAX_ENTRIES:]) for one in (self.headers, self.pairs))
            self._file.write(_Cache(VERSION, headers, pairs))
            self._written = sizes
