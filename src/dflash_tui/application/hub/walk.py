"""Where models may be on this machine, and the files and folders there that may be one. No header is read here."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import msgspec

from dflash_core.damaged import DAMAGED
from dflash_core.demo import smollm2_draft_path
from dflash_core.errors import InputError
from dflash_core.files import folder_name, read_input
from dflash_core.formats.splits import SPLIT_NAME
from dflash_core.user_folders import user_folder
from dflash_tui.application import smollm2
from dflash_tui.application.new_file import here

Keeps = Literal["files", "hub", "ollama", "itself"]
DEEP = 6  # levels of folders below a place
NEAR = 2  # below the present folder, which may be anybody's home


@dataclass(frozen=True, slots=True)
class Place:
    """A folder to search. `keeps`: the layout of its files, "itself" for one file; `deep`: levels of folders in it."""

    name: str
    folder: Path
    keeps: Keeps = "files"
    deep: int = DEEP


def places(
    more: Iterable[Path] = (), environment: Mapping[str, str] = os.environ, home: Path | None = None
) -> list[Place]:
    """All that exist, each folder once. `more`: the user's own, from the setting `model_folders`."""
    home = home or Path.home()
    cache = Path(environment.get("XDG_CACHE_HOME") or home / ".cache")
    faces = Path(environment.get("HF_HOME") or cache / "huggingface")
    hub = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE") or faces / "hub"
    named = [
        Place("here", here(), deep=NEAR),
        Place("dflash-tui get", downloads()),
        *(Place(str(folder), folder) for folder in more),
        Place("Hugging Face", Path(hub), "hub"),
        Place("llama.cpp", Path(environment.get("LLAMA_CACHE") or cache / "llama.cpp")),
        Place("llama.cpp", home / "Library" / "Caches" / "llama.cpp"),
        Place("LM Studio", home / ".lmstudio" / "models"),
        Place("LM Studio", cache / "lm-studio" / "models"),
        Place("ollama", Path(environment.get("OLLAMA_MODELS") or home / ".ollama" / "models"), "ollama"),
        Place("ollama", Path("/usr/share/ollama/.ollama/models"), "ollama"),  # used by its service on Linux
        Place("~/models", home / "models"),
        *(Place("a Python package", folder) for folder in (smollm2.folder(),) if folder is not None),
        Place("dflash-tui", smollm2_draft_path(), "itself"),
    ]
    found: dict[Path, Place] = {}
    for one in named:
        if one.keeps == "itself" or os.path.isdir(one.folder):  # no error for a folder of another user
            found.setdefault(one.folder.resolve(), one)
    return list(found.values())


def downloads() -> Path:
    """Where `get` puts files."""
    return user_folder("data") / "models"


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


MAX_ENTRIES = 20_000  # entries that are checked in one place
NOT_OF_MODELS = ("datasets--", "spaces--")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A GGUF file (the first one of a split model) or a folder with a drafter. `name`: its usual name."""

    path: Path
    name: str
    place: Place
    folder: bool = False


def walk(place: Place, stopping: Callable[[], bool] = lambda: False) -> Iterator[Candidate | None]:
    """Possible models and drafters, the nearest first. Unreadable folders are skipped. None: too many entries."""
    if place.keeps == "ollama":
        yield from (Candidate(path, name, place) for name, path in stored(place.folder))
        return
    if place.keeps == "itself":
        yield Candidate(place.folder, place.folder.name, place)
        return
    count, waiting, seen = 0, [(place.folder, 0)], set[tuple[int, int]]()
    while waiting and not stopping():
        here, depth = waiting.pop(0)
        try:
            about = here.stat()
            with os.scandir(here) as listed:
                entries = sorted(listed, key=lambda one: one.name)
        except OSError:
            continue
        if (about.st_dev, about.st_ino) in seen:  # circular links
            continue
        seen.add((about.st_dev, about.st_ino))
        names = {entry.name for entry in entries}
        if "config.json" in names and any(name.endswith(".safetensors") for name in names):
            yield Candidate(here, folder_name(here), place, folder=True)
        for entry in entries:
            count += 1
            if count > MAX_ENTRIES:
                yield None
                return
            try:
                inside = entry.is_dir()
            except OSError:
                continue
            if inside and depth < place.deep and _enters(place, entry.name, depth):
                waiting.append((Path(entry.path), depth + 1))
            elif not inside and entry.name.lower().endswith(".gguf") and not _is_later_part(entry.name, names):
                yield Candidate(Path(entry.path), entry.name, place)


def of_name(name: str, where: Iterable[Place]) -> Path | None:
    """A file or folder with that name, found without reading headers."""
    found = (one for place in where for one in walk(place) if one is not None)
    return next((one.path for one in found if name in (one.path.name, one.name)), None)


def _enters(place: Place, name: str, depth: int) -> bool:
    outside = place.keeps == "hub" and ((depth == 1 and name in ("blobs", "refs")) or name.startswith(NOT_OF_MODELS))
    return not outside and not name.startswith(".")


def _is_later_part(name: str, beside: set[str]) -> bool:
    """Whether a file is a later part of a split model whose first part, or an earlier part, is listed."""
    match = SPLIT_NAME.fullmatch(name)
    if match is None or int(match[2]) <= 1:
        return False
    return any(f"{match[1]}-{part:05d}-of-{match[3]}.gguf" in beside for part in range(1, min(int(match[2]), 1000)))
