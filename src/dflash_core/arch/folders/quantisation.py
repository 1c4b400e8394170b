"""How a folder says that it is quantised, and what of it cannot be read: refused before anything else is opened."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dflash_core.errors import UnsupportedError
from dflash_core.formats.safetensors import read_json
from dflash_core.formats.weights import shown

CONFIG = "config.json"
ENTRIES = ("quantization_config", "compression_config", "quantization")
"""Where config.json has it; the last one is MLX's."""
FILES: Mapping[str, str] = {
    "quantize_config.json": "gptq",
    "quantization_config.json": "auto-round",
    "quant_config.json": "awq",
    "hf_quant_config.json": "modelopt",
}
"""Files that have it where config.json does not, with the method of those that name none."""
READ = ("gptq", "auto-round", "awq", "fp8", "fbgemm_fp8", "modelopt", "mxfp4", "compressed-tensors")
"""Methods whose layouts are known; the tensors then say which of them each matrix has."""
ALIKE: Mapping[str, str] = {
    "auto_round": "auto-round", "intel/auto-round": "auto-round", "autoround": "auto-round", "gptqmodel": "gptq",
    "modelopt_fp4": "modelopt", "modelopt_mixed": "modelopt", "compressed_tensors": "compressed-tensors",
    "finegrained_fp8": "fp8",
}  # fmt: skip
"""Other names of these."""
OTHERS: Mapping[str, str] = {
    "aqlm": "AQLM: sums of codebooks",
    "bitblas": "weights in the order of BitBLAS's kernels",
    "bitnet": "BitNet: ternary weights with activations of 8 bits",
    "bitsandbytes": "bitsandbytes: NF4, FP4 or INT8 with its own scales",
    "eetq": "EETQ: INT8 in the order of its kernels",
    "exl2": "EXL2",
    "exl3": "EXL3",
    "fp_quant": "FP-Quant: FP4 after Hadamard rotations",
    "higgs": "HIGGS: grids after Hadamard rotations",
    "hqq": "HQQ",
    "marlin": "weights in the order of Marlin's kernels",
    "mlx": "MLX: groups with scales and biases",
    "quanto": "Quanto",
    "quark": "Quark",
    "quip": "QuIP#: codebooks after Hadamard rotations",
    "sinq": "SINQ: scales of rows and columns",
    "spqr": "SpQR: groups and outliers apart",
    "squeezellm": "SqueezeLLM: a codebook per row",
    "torchao": "torchao",
    "vptq": "VPTQ: codebooks of vectors",
}
"""Known methods that are not read, in words."""
MODELOPT = (
    "FP8", "FP8_PB_WO", "FP8_PER_CHANNEL_PER_TOKEN", "NVFP4", "W4A16_NVFP4", "W4A4_NVFP4", "MIXED_PRECISION",
)  # fmt: skip
"""Values of ModelOpt's quant_algo whose tensors are known."""
PACKED_BITS = 4


class Zeros(NamedTuple):
    """plus_one: whether zeros of GPTQ are stored minus one. symmetric: whether the folder says that all are 8."""

    plus_one: bool = True
    symmetric: bool = True


def zeros_of(folder: Path, values: Mapping[str, Any]) -> Zeros:
    """What a folder says of its zeros. `values`: of config.json. Raises UnsupportedError for a method, or a form of
    one, that is not read."""
    source, found, usual = _stated(folder, values)
    if found is None:
        return Zeros()
    name = str(found.get("quant_method", usual) if isinstance(found, Mapping) else found)
    if not isinstance(found, Mapping) or (method := ALIKE.get(name, name)) not in READ:
        words = OTHERS.get(name, f"quant_method {shown(name)}")
        raise UnsupportedError(f"{source}: quantised as {words}, expected {', '.join(READ)}; {_INSTEAD}")
    for name, value, expected in _forms(method, found):
        if value not in expected:
            raise UnsupportedError(
                f"{source}: {method} with {name} {shown(str(value))}, expected"
                f" {' or '.join(str(one) for one in expected if one is not None)}; {_INSTEAD}"
            )
    return Zeros(found.get("checkpoint_format") != "gptq_v2", found.get("sym") is not False)


_INSTEAD = "use a GGUF file of the same model"


def _stated(folder: Path, values: Mapping[str, Any]) -> tuple[Path, Any, str]:
    """The file that says how the folder is quantised, what it says, and the method if it names none."""
    for entry in ENTRIES:
        if values.get(entry) is not None:
            # Only MLX's converter and early users of bitsandbytes leave the method out.
            flags = values[entry] if isinstance(values[entry], Mapping) else {}
            return folder / CONFIG, values[entry], "bitsandbytes" if "load_in_8bit" in flags else "mlx"
    for name, usual in FILES.items():
        if (folder / name).exists():
            found = read_json(folder / name)
            inner = found.get("quantization")  # ModelOpt's file has it one level down
            return folder / name, inner if isinstance(inner, Mapping) else found, usual
    return folder / CONFIG, None, ""


def _forms(method: str, found: Mapping[str, Any]) -> list[tuple[str, Any, tuple[Any, ...]]]:
    """What a folder states of a method's form, and the values that are read."""
    match method:
        case "gptq" | "auto-round" | "awq":
            forms: list[tuple[str, Any, tuple[Any, ...]]] = [
                ("bits", found.get("bits", found.get("w_bit")), (PACKED_BITS, None)),
                ("checkpoint_format", found.get("checkpoint_format"), ("gptq", "gptq_v2", None)),
            ]
            for name in ("extra_config", "dynamic"):  # modules apart: those of 16 bits are no integers
                each = found.get(name)
                for one in each.values() if isinstance(each, Mapping) else ():
                    if isinstance(one, Mapping):
                        forms.append((f"{name} of bits", one.get("bits"), (PACKED_BITS, 16, 32, None)))
            version = str(found.get("version", "gemm")).lower()
            return [*forms, ("version", version, ("gemm", "exllama", "ipex"))] if method == "awq" else forms
        case "modelopt":
            return [("quant_algo", found.get("quant_algo"), (*MODELOPT, None))]
        case "compressed-tensors":
            forms = [("transforms of", bool(found.get("transform_config")) or None, ("none", None))]
            groups = found.get("config_groups")
            for group in groups.values() if isinstance(groups, Mapping) else ():
                weights = group.get("weights") if isinstance(group, Mapping) else None
                if isinstance(weights, Mapping) and weights.get("type", "int") == "int":
                    forms.append(("integers of bits", weights.get("num_bits"), (PACKED_BITS, None)))
            return forms
    return []
