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

FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M",
    30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 24: "IQ1_S", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
}  # fmt: skip


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
    """The functions that read files of one architecture.

    read: settings (under the architecture's prefix) -> model; raises FormatError or UnsupportedError. facts: a model's
    sizes under the names of the settings. check: errors more specific than a missing tensor. notes: what is
    unusual about a file. models: its models, for lists. harmless: names of settings that `read` does not need, in
    addition to those of `formats/metadata.py`; a file with any other that `read` did not ask for is refused.
    """

    name: str
    models: str
    read: Callable[[Settings, Head], ModelSpec]
    facts: Callable[[ModelSpec], dict[str, Any]]
    check: Callable[[GGUFFile, ModelSpec], None] = lambda gguf, spec: None
    notes: Callable[[GGUFFile, ModelSpec], list[str]] = lambda gguf, spec: []
    harmless: frozenset[str] = frozenset()

    def spec(self, gguf: GGUFFile) -> ModelSpec:
        """The model of a file. Raises FormatError, and UnsupportedError for a setting that is not followed here."""
        keys = self.settings(str(gguf.path), gguf.metadata)
        spec = self.read(keys, Head.of(gguf.tensors))
        return replace(spec, notes=check_unread(keys, self.harmless))

    def settings(self, source: str, values: Mapping[str, Any]) -> Settings:
        """Metadata as `read` takes it."""
        return Settings(source, values, self.name + ".")


def file_type(keys: Settings) -> str:
    """The file's own name for its mix of types; empty if it has none."""
    return FILE_TYPES.get(keys.integer("general.file_type", low=0, default=-1), "")


def matrix_types(gguf: GGUFFile) -> Counter[str]:
    """The number of matrices of each type, without those that are never quantised: convolution filters and routers."""
    matrices = (i for i in gguf.tensors.values() if len(i.shape) > 1 and not i.name.endswith(NEVER_QUANTISED))
    return Counter(info.type for info in matrices)
