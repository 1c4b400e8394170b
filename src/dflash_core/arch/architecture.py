"""Reads the files of one architecture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dflash_core.arch.kinds import ROUTER
from dflash_core.arch.spec import ModelSpec
from dflash_core.formats.gguf import GGUFFile
from dflash_core.formats.metadata import Settings, check_unread
from dflash_core.formats.weights import TensorInfo

NEVER_QUANTISED = ("conv1d.weight", ROUTER, ".bias")


@dataclass(frozen=True, slots=True)
class Head:
    """Facts that a file's tensors show and its settings do not. `names`: of all tensors, if known."""

    vocab_size: int
    tied_output: bool
    names: frozenset[str] = frozenset()

    @staticmethod
    def of(tensors: Mapping[str, TensorInfo]) -> Head:
        embedding = tensors.get("token_embd.weight")
        return Head(embedding.shape[0] if embedding else 0, "output.weight" not in tensors, frozenset(tensors))


@dataclass(frozen=True, slots=True)
class Architecture:
    """models: its models, for lists. read: settings (under the architecture's prefix) -> model; raises FormatError or
    UnsupportedError. A file with a setting that it does not ask for is refused, unless `formats/metadata.py` has it as
    harmless. notes: what is unusual about a file, beside its experts."""

    name: str
    models: str
    read: Callable[[Settings, Head], ModelSpec]
    notes: Callable[[GGUFFile, ModelSpec], list[str]] = lambda gguf, spec: []

    def spec(self, gguf: GGUFFile) -> ModelSpec:
        """The model of a file. Raises FormatError, and UnsupportedError for a setting that is not followed here."""
        keys = self.settings(str(gguf.path), gguf.metadata)
        return replace(self.read(keys, Head.of(gguf.tensors)), notes=check_unread(keys))

    def settings(self, source: str, values: Mapping[str, Any]) -> Settings:
        """Metadata as `read` takes it."""
        return Settings(source, values, self.name + ".")


def matrix_types(gguf: GGUFFile) -> Counter[str]:
    """The number of matrices of each type, without those that are never quantised: convolution filters and routers."""
    matrices = (i for i in gguf.tensors.values() if len(i.shape) > 1 and not i.name.endswith(NEVER_QUANTISED))
    return Counter(info.type for info in matrices)
