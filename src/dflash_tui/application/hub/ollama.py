"""ollama's store: files are named by checksum, and manifests map model names to files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from dflash_core.damaged import DAMAGED
from dflash_core.errors import InputError
from dflash_core.files import read_input

MAX_MANIFESTS = 2_000  # manifests, and blobs
MAX_BYTES = 1 << 20
MODEL = "application/vnd.ollama.image.model"
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
_OURS = ("registry.ollama.ai", "library")  # default parts of a name, usually omitted


def stored(folder: Path) -> Iterator[tuple[str, Path]]:
    """Models of a store: name and file. A file without a manifest is listed under its checksum."""
    named: set[str] = set()
    for manifest in islice(sorted((folder / "manifests").glob("*/*/*/*")), MAX_MANIFESTS):
        for kind, digest in _layers(manifest):
            named.add(digest)
            path = folder / "blobs" / f"sha256-{digest}"
            if kind == MODEL and path.is_file():
                yield _name(manifest.relative_to(folder / "manifests").parts), path
    for path in islice(sorted((folder / "blobs").glob("sha256-*")), MAX_MANIFESTS):
        match = _DIGEST.fullmatch(path.name)
        if match is not None and match[1] not in named and _is_gguf(path):
            yield f"sha256-{match[1][:12]}", path


def _layers(manifest: Path) -> Iterator[tuple[str, str]]:
    """Kind and checksum of each layer; nothing for an unreadable manifest."""
    try:
        found: Any = msgspec.json.decode(read_input(manifest, MAX_BYTES))
    except (OSError, InputError, *DAMAGED):
        return
    layers = found.get("layers") if isinstance(found, dict) else None
    for layer in layers if isinstance(layers, list) else ():
        if isinstance(layer, dict) and (match := _DIGEST.fullmatch(str(layer.get("digest")))):
            yield str(layer.get("mediaType")), match[1]


def _name(parts: tuple[str, ...]) -> str:
    """registry.ollama.ai/library/qwen3/8b is called qwen3:8b."""
    *where, model, tag = parts
    names = [part for part, ours in zip(where, _OURS) if part != ours]
    return f"{'/'.join([*names, model])}:{tag}"


def _is_gguf(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError:
        return False
