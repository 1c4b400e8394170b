"""Drafters for a target: those in its file, those next to it, and the properties that a drafter must match."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from dflash_core.arch.spec import ModelSpec
from dflash_core.drafters.base import TargetHeader
from dflash_core.drafters.kinds import KINDS
from dflash_core.drafters.registry import open_draft, own_kind
from dflash_core.errors import DFlashError
from dflash_core.formats.gguf import GGUFFile

LIKELY = re.compile(r"draft|dflash|dspark|mtp|nextn|assistant", re.IGNORECASE)
MAX_CHECKED = 24  # files and folders that are checked


def drafters(gguf: GGUFFile, target: ModelSpec) -> list[str]:
    """A line for each; drafters next to the file are listed if their headers show that they match."""
    own = own_kind(gguf, target)
    found = [f"{own}: {KINDS[own].summary}"] if own else []
    found += _beside(gguf, target)
    hidden, layers, vocabulary = target.embedding_length, target.block_count, target.vocab_size
    found.append(f"a DFlash drafter made for hidden size {hidden:,}, {layers} layers, a vocabulary of {vocabulary:,}")
    return [*found, *(f"{kind.name}: {kind.summary}" for kind in KINDS.values() if kind.by_name and not kind.inside)]


def _beside(gguf: GGUFFile, target: ModelSpec) -> Iterator[str]:
    for path in islice(_likely(gguf), MAX_CHECKED):
        try:
            draft = open_draft(path, TargetHeader(gguf, target))
            yield f"{path.name}, beside it: {KINDS[draft.capabilities.kind].title}"
        except DFlashError:
            continue  # for another model, or not a drafter


def _likely(gguf: GGUFFile) -> Iterator[Path]:
    try:
        entries = sorted(gguf.path.absolute().parent.iterdir())
    except OSError:
        return
    own = {gguf.path.name, *(shard.name for shard in gguf.shards)}
    for path in entries:
        weights = path.suffix == ".gguf" or (path / "config.json").exists()
        if path.name not in own and LIKELY.search(path.name) and weights:
            yield path
