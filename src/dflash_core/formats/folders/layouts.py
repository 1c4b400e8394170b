"""Which tensors a matrix of a folder consists of. The names that are there decide, matrix by matrix: what a config says
of them is often wrong."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from dflash_core.errors import UnsupportedError
from dflash_core.formats.folders.floats8 import fp8, nvfp4
from dflash_core.formats.folders.int4 import Awq, Gptq, Packed
from dflash_core.formats.folders.parts import Part, plain
from dflash_core.formats.quants import FLOATS
from dflash_core.formats.safetensors import SafetensorsFile
from dflash_core.formats.weights import listed, shown

WEIGHT, BIAS = "weight", "bias"
_UNREAD = (
    "input_scale", "input_global_scale", "weight_shape", "k_scale", "v_scale", "q_scale", "kv_scale", "prob_scale",
    "output_scale", "activation_scale", "input_scale_ub",
)  # fmt: skip
"""Scales of activations and of cached keys and values, which are rounded here by what they are, and shapes."""
LEAVES = frozenset({
    WEIGHT, BIAS, "qweight", "qzeros", "scales", "g_idx", "weight_packed", "weight_scale", "weight_scale_2",
    "weight_scale_inv", "weight_global_scale", "weight_zero_point", "weight_g_idx", *_UNREAD,
})  # fmt: skip
"""How names of tensors end that belong to a matrix."""


@dataclass(frozen=True, slots=True)
class Modules:
    """The tensors of a folder by module: the name without one of LEAVES, or the whole name where it has none.

    zeros_plus_one: whether zeros of GPTQ are stored minus one. symmetric: whether the folder says that all are 8.
    """

    file: SafetensorsFile
    modules: Mapping[str, frozenset[str]]
    zeros_plus_one: bool = True
    symmetric: bool = True

    @classmethod
    def of(cls, file: SafetensorsFile, zeros_plus_one: bool = True, symmetric: bool = True) -> Modules:
        found = dict[str, set[str]]()
        for name in file.tensors:
            module, _, leaf = name.rpartition(".")
            if leaf in LEAVES:
                found.setdefault(module, set()).add(leaf)
            else:
                found.setdefault(name, set())
        read = {name: frozenset(leaves) for name, leaves in found.items() if not leaves or leaves.difference(_UNREAD)}
        return cls(file, read, zeros_plus_one, symmetric)

    def part(self, module: str) -> Part:
        """The matrix of a module, or the tensor that is called so. Raises FormatError or UnsupportedError."""
        leaves = self.modules[module].difference(_UNREAD, (BIAS,))
        if not leaves:
            return self.floats(module)
        for needed, optional, make in LAYOUTS:
            if leaves.issuperset(needed):
                if odd := leaves.difference(needed, optional):
                    raise self._unknown(module, odd)
                return make(self, module)
        raise self._unknown(module, leaves)

    def floats(self, name: str) -> Part:
        """A tensor of floats. Raises UnsupportedError for another one."""
        if (kind := self.file.tensors[name].type) not in FLOATS:
            found = f"is stored as {kind} without the scales of a known layout"
            raise self.file.unread(name, found, "BF16, FP8, INT4 or NVFP4")
        return plain(self.file, name)

    def _unknown(self, module: str, leaves: Collection[str]) -> UnsupportedError:
        expected = "tensors of BF16, FP8, GPTQ, AWQ, INT4 of compressed-tensors or NVFP4"
        return self.file.unread(module, f"is stored as {listed(sorted(leaves))}", expected)

    def check_type(self, name: str, *kinds: str) -> None:
        """Raises UnsupportedError for a tensor of another type."""
        if (kind := self.file.tensors[name].type) not in kinds:
            raise self.file.unread(name, f"is stored as {kind}", " or ".join(kinds))

    def check_matrix(self, name: str, kind: str) -> None:
        """Raises UnsupportedError for a tensor of another type, FormatError for one that is no matrix."""
        self.check_type(name, kind)
        info = self.file.tensors[name]
        if len(info.shape) != 2:
            raise self.file.damaged(name, f"is {info.type} {list(info.shape)}", f"a matrix of {kind}")


def _of_words(modules: Modules, module: str) -> Part:
    """GPTQ packs eight inputs in a word, AWQ eight outputs: the shape of the scales says which."""
    file, codes, scales = modules.file, f"{module}.qweight", f"{module}.scales"
    modules.check_matrix(codes, "I32")
    modules.check_matrix(scales, file.tensors[scales].type)
    columns = file.tensors[codes].shape[1]
    outputs = file.tensors[scales].shape[1]
    if outputs not in (columns, 8 * columns):
        found = f"has {outputs:,} outputs and {shown(codes)} {columns:,}"
        raise file.damaged(scales, found, "as many or eight times as many")
    if outputs != columns:
        return Awq(file, module).part()
    return Gptq(file, module, modules.zeros_plus_one, modules.symmetric).part()


def _of_packed(modules: Modules, module: str) -> Part:
    modules.check_matrix(f"{module}.weight_packed", "I32")
    modules.check_matrix(scales := f"{module}.weight_scale", modules.file.tensors[scales].type)
    return Packed(modules.file, module).part()


def _modelopt(modules: Modules, module: str) -> Part:
    modules.check_matrix(codes := f"{module}.weight", "U8")
    modules.check_type(f"{module}.weight_scale_2", *FLOATS)
    return nvfp4(modules.file, module, codes, f"{module}.weight_scale", f"{module}.weight_scale_2", divides=False)


def _compressed(modules: Modules, module: str) -> Part:
    modules.check_matrix(codes := f"{module}.weight_packed", "U8")
    modules.check_type(f"{module}.weight_global_scale", *FLOATS)
    return nvfp4(modules.file, module, codes, f"{module}.weight_scale", f"{module}.weight_global_scale", divides=True)


def _fp8(scale: str) -> Callable[[Modules, str], Part]:
    def made(modules: Modules, module: str) -> Part:
        if (kind := modules.file.tensors[f"{module}.weight"].type) in FLOATS:
            raise modules.file.damaged(module, f"has a {scale} and weights of {kind}", "F8_E4M3")
        modules.check_matrix(f"{module}.weight", "F8_E4M3")
        modules.check_type(f"{module}.{scale}", *FLOATS)
        return fp8(modules.file, module, f"{module}.{scale}")

    return made


LAYOUTS: tuple[tuple[tuple[str, ...], tuple[str, ...], Callable[[Modules, str], Part]], ...] = (
    (("qweight", "scales"), ("qzeros", "g_idx"), _of_words),
    (("weight", "weight_scale", "weight_scale_2"), (), _modelopt),
    (("weight_packed", "weight_scale", "weight_global_scale"), (), _compressed),
    (("weight_packed", "weight_scale"), ("weight_zero_point",), _of_packed),
    (("weight", "weight_scale"), (), _fp8("weight_scale")),
    (("weight", "weight_scale_inv"), (), _fp8("weight_scale_inv")),
    (("weight",), (), lambda modules, module: modules.floats(f"{module}.weight")),
)
"""Tensors that a layout has and those that it may have, the more specific layouts first."""
