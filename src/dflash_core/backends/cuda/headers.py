"""Structs and constants that kernels and host share, read from the kernels' headers, their only source."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from dflash_core import resources

_SCALARS: Mapping[str, type] = {"u64": np.uint64, "int": np.int32, "float": np.float32, "double": np.float64}
_CONSTANTS = re.compile(r"constexpr int ([^;()]+);")
_ENUM = re.compile(r"enum \w+ \{([^}]+)\}")
_NUMBER = re.compile(r"(\w+) = (\d+)")
_STRUCT = re.compile(r"struct(?: alignas\(\d+\))? (\w+) \{(.*?)\n\};", re.DOTALL)
_FIELD = re.compile(r"(u64|int|float|double) ([^;()]+);")


class Headers:
    """The `constants` and `structs` of header files, by name. Structs are aligned records of numbers and arrays.

    Raises DFlashError where an installation lacks the headers.
    """

    def __init__(self, *names: str) -> None:
        folder = resources.kernels_dir()
        text = re.sub(r"//.*", "", "".join((folder / name).read_text(encoding="utf-8") for name in names))
        numbers = (*_CONSTANTS.findall(text), *_ENUM.findall(text))
        self.constants = {name: int(value) for part in numbers for name, value in _NUMBER.findall(part)}
        self.structs = {
            name: np.dtype([self._field(kind, one) for kind, many in _FIELD.findall(body) for one in many.split(",")],
                           align=True)
            for name, body in _STRUCT.findall(text)
        }  # fmt: skip

    def _field(self, kind: str, declared: str) -> tuple[str, type, tuple[int, ...]]:
        """A field of a struct, such as `candidate[MAX_DEPTH][MAX_WIDTH]`."""
        sizes = re.findall(r"\[(\w+)\]", declared)
        shape = tuple(int(size) if size.isdigit() else self.constants[size] for size in sizes)
        return declared.partition("[")[0].strip(), _SCALARS[kind], shape
