"""Where model files may be on this machine: folders of other programs, and the user's own folders."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dflash_core.demo import smollm2_draft_path
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
