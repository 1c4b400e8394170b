"""Model files on this machine, in the places where programs keep them, and the drafters that belong to them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dflash_core.clean import one_line
from dflash_core.errors import DFlashError
from dflash_core.user_folders import user_folder

DEEP = 5  # folders below a place
MOST = 2_000  # files that are looked at in one place
MAGIC = b"GGUF"


@dataclass(frozen=True, slots=True)
class Found:
    """A target. `where` names the place in words; `drafters` are files and folders whose headers say that they fit."""

    path: Path
    where: str
    architecture: str
    size: int
    drafters: tuple[Path, ...]


def places(environment: Mapping[str, str] = os.environ, home: Path | None = None) -> list[tuple[str, Path]]:
    """Where to look, in words and as a folder; those that are not there are left out."""
    home = home or Path.home()
    cache = Path(environment.get("XDG_CACHE_HOME") or home / ".cache")
    hub = environment.get("HF_HUB_CACHE") or Path(environment.get("HF_HOME") or cache / "huggingface") / "hub"
    named = [
        ("here", Path.cwd()),
        ("dflash-tui get", downloads()),
        ("Hugging Face", Path(hub)),
        ("llama.cpp", Path(environment.get("LLAMA_CACHE") or cache / "llama.cpp")),
        ("LM Studio", home / ".lmstudio" / "models"),
        ("LM Studio", cache / "lm-studio" / "models"),
        ("ollama", Path(environment.get("OLLAMA_MODELS") or home / ".ollama" / "models") / "blobs"),
        ("~/models", home / "models"),
    ]
    return [(name, path) for name, path in named if path.is_dir()]


def downloads() -> Path:
    """Where `get` puts files."""
    return user_folder("data") / "models"


def found(where: list[tuple[str, Path]]) -> Iterator[Found]:
    """Targets, each once, by place. Drafters alone and files of other architectures are left out."""
    from dflash_core.config import read_target
    from dflash_core.formats.gguf import open_gguf
    from dflash_tui.hub.drafters_beside import beside

    seen: set[Path] = set()
    for name, folder in where:
        for path in _candidates(folder):
            real = path.resolve()
            if real in seen:
                continue
            seen.add(real)
            try:
                gguf, spec = read_target(open_gguf(path))
                drafters = tuple(drafter for drafter, _ in beside(gguf, spec))
                size = sum(shard.stat().st_size for shard in _shards(path, len(gguf.shards)))
            except (DFlashError, OSError):
                continue
            yield Found(path, name, one_line(spec.architecture), size, drafters)


def _shards(path: Path, count: int) -> list[Path]:
    """The files of a model."""
    first, of, _ = path.name.partition("-00001-of-")
    return [path] if count == 1 or not of else sorted(path.parent.glob(f"{first}-*-of-{count:05d}.gguf"))


def _candidates(folder: Path) -> Iterator[Path]:
    """Files that may be GGUF: by their ending, or as ollama's blobs by their first bytes."""
    count, waiting = 0, [(folder, 0)]
    while waiting:
        here, depth = waiting.pop(0)
        try:
            entries = sorted(here.iterdir())
        except OSError:
            continue
        for path in entries:
            count += 1
            if count > MOST:
                return
            if path.is_dir():
                if depth < DEEP and not path.is_symlink() and not (depth == 0 and path.name.startswith(".")):
                    waiting.append((path, depth + 1))
            elif path.suffix == ".gguf" or (path.name.startswith("sha256-") and _is_gguf(path)):
                yield path


def _is_gguf(path: Path) -> bool:
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(4) == MAGIC
    except OSError:
        return False
