"""Layer kinds and architectures: tensors are listed once, and only arch/ knows an architecture by name."""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import dflash_core
from dflash_core.arch.registry import ARCHITECTURES
from dflash_core.backends.cuda.activations import DEFAULT
from dflash_core.backends.cuda.drafters.base import on_device
from dflash_core.backends.cuda.meta import MetaDevice
from dflash_core.backends.cuda.plan import Card
from dflash_core.backends.cuda.projection import Matrix as TileMatrix
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.backends.cuda.upload import Upload
from dflash_core.cache_types import F16
from dflash_core.config import target_config
from dflash_core.formats.gguf import open_gguf
from dflash_core.models.dflash import DFlash
from dflash_core.models.matrix import Matrix, Weights
from dflash_core.models.target import TargetModel
from support.golden import draft, other_targets, target

CARD = Card(132, 227 << 10)
# Pre-tokenizers have the same name, and made-up files are of an architecture; these files are about them.
MADE_UP, FAMILIES = "bench/synthetic_models.py", "bench/family_models.py"
NAMED = {
    "qwen35": {"text/pre_tokenizers.py", MADE_UP}, "qwen35moe": {MADE_UP}, "qwen3": {MADE_UP},
    "qwen2": {"text/pre_tokenizers.py", MADE_UP}, "glm4": {"text/pre_tokenizers.py"},
    # Tokenizers have the names of the first models that had them.
    "llama": {"text/pieces.py", "text/tool_calls/forms.py", "text/vocabulary.py", FAMILIES},
    "gemma4": {"text/pieces.py", FAMILIES}, "gpt-oss": {FAMILIES},
    "laguna": {"text/pre_tokenizers.py", "drafters/dflash.py"},  # the name of a format of drafter files
}  # fmt: skip


class AskedWeights(Weights):
    """Records which weights are asked for."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.names: list[str] = []

    def matrix(self, name: str) -> Matrix:
        self.names.append(name)
        return super().matrix(name)

    def stack(self, name: str) -> Sequence[Matrix]:
        self.names.append(name)
        return super().stack(name)

    def vector(self, name: str) -> Tensor:
        self.names.append(name)
        return super().vector(name)


class AskedUpload(Upload):
    """The same for a card."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.names: list[str] = []

    def matrix(self, name: str) -> TileMatrix:
        self.names.append(name)
        return super().matrix(name)

    def vector(self, name: str) -> Tensor:
        self.names.append(name)
        return super().vector(name)

    def raw(self, name: str) -> tuple[str, Tensor]:
        self.names.append(name)
        return super().raw(name)


def agree(names: Sequence[str], listed: dict[str, tuple[int, ...]]) -> None:
    assert len(names) == len(set(names))
    assert set(names) == set(listed)


def test_what_is_loaded_is_what_the_layer_kinds_list() -> None:
    file, spec, drafter = target().file, target().config, draft()
    weights, upload = AskedWeights(file), AskedUpload(file)
    TargetModel(weights, spec)
    on_card = DeviceTarget(MetaDevice(CARD), upload, spec)
    agree(weights.names, spec.tensors())
    agree(upload.names, spec.tensors())
    assert {name: info.shape for name, info in file.tensors.items()} == spec.tensors()
    weights, upload = AskedWeights(drafter.file), AskedUpload(drafter.file)
    DFlash(weights, drafter.config)
    on_device(drafter.config, upload, on_card, DEFAULT)
    agree(weights.names, drafter.config.tensors())
    agree(upload.names, drafter.config.tensors())


@pytest.mark.parametrize("path", other_targets("q3*.gguf"), ids=lambda path: path.stem)
def test_the_same_of_other_architectures(path: Path) -> None:
    file = open_gguf(path)
    spec = target_config(file)
    weights, upload = AskedWeights(file), AskedUpload(file)
    TargetModel(weights, spec)
    DeviceTarget(MetaDevice(CARD), upload, spec)
    agree(weights.names, spec.tensors())
    if spec.tied_output:  # on a card the head's tiles lie beside the embedding's rows
        upload.names.remove("token_embd.weight")
    agree(upload.names, spec.tensors())
    assert {name: file.tensors[name].shape for name in spec.tensors()} == spec.tensors()


@functools.cache
def strings(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_only_arch_knows_an_architecture_by_name(name: str) -> None:
    root = Path(dflash_core.__file__).parent
    sources = [*root.rglob("*.py"), *(root.parent / "dflash_tui").rglob("*.py")]
    assert len(sources) > 100
    outside = [path for path in sources if "arch" not in path.relative_to(root.parent).parts]
    # Only what can hold the name is parsed, which takes a second for all.
    found = {path for path in outside if name[:4] in path.read_text(encoding="utf-8") and name in strings(path)}
    assert {str(path.relative_to(root)) for path in found} == NAMED.get(name, set())


def test_a_layer_keeps_positions_or_a_state() -> None:
    mixers = [layer.mixer for layer in target().config.layers]
    found = {(mixer.position_bytes(F16) > 0, mixer.state_numbers > 0) for mixer in mixers}
    assert found == {(True, False), (False, True)}
