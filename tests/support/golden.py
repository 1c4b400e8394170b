"""Where the golden files are: a small set is committed; the whole set is used too if it lies beside the checkout."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from dflash_core import load_draft, load_target
from dflash_core.backends.opened import Target
from dflash_core.drafters.draft import Draft
from dflash_core.formats.gguf import GGUFFile
from support.packed import unpacked

TESTS = Path(__file__).parents[1]
COMMITTED = unpacked(TESTS / "golden" / "data", TESTS / "golden" / "unpacked")
BESIDE = Path(__file__).parents[3] / "shared" / "data" / "golden"


def golden(name: str) -> Path:
    """A golden file of the committed set."""
    return COMMITTED / name


def goldens(pattern: str) -> list[Path]:
    """Every golden file at hand that matches, each name once. Files that hold only a head lie one folder deeper, in
    `heads`: no pattern for targets finds them.
    """
    found = {path.name: path for folder in (BESIDE, COMMITTED) for path in sorted(folder.glob(pattern))}
    return [found[name] for name in sorted(found)]


def other_targets(pattern: str) -> list[Path]:
    """As `goldens`, of the golden files of other architectures than qwen35; they lie in a folder of their own."""
    folders = (BESIDE.parent / "targets", BESIDE.parent / "families", COMMITTED / "targets")
    found = {path.name: path for folder in folders for path in sorted(folder.glob(pattern))}
    return [found[name] for name in sorted(found)]


def other_models() -> list[Path]:
    """The golden targets of all architectures but qwen35."""
    return [path for path in other_targets("*.gguf") if "assistant" not in path.name]


def reference(path: Path) -> Any:
    """The reference outputs that belong to a golden target; the MTP file shares those of its trunk."""
    name = path.name.replace("tiny-mtp", "tiny")
    return np.load(path.with_name(name).with_suffix(".npz"))


def as_architecture(file: GGUFFile, name: str, **keys: Any) -> GGUFFile:
    """The open file with its settings under the name of another architecture, and further ones of these `keys`."""
    own = str(file.metadata["general.architecture"])
    values = {key.replace(f"{own}.", f"{name}.", 1): value for key, value in file.metadata.items()}
    values |= {f"{name}.{key.replace('__', '.')}": value for key, value in keys.items()}
    return replace(file, metadata=values | {"general.architecture": name})


@cache
def target(name: str = "tiny-F16.gguf") -> Target:
    return load_target(target_path(name))


def target_path(name: str) -> Path:
    """The golden target of this file name, of whatever architecture."""
    return (goldens(name) or other_targets(name))[0]


@cache
def draft(name: str = "tiny-dflash") -> Draft:
    return load_draft(goldens(name)[0], target())
