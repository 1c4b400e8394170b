"""Measures the accuracy that rounded activations cost: logits with rounded matmul inputs, compared with exact ones.

    python -m tools.train_demo.numerics [TARGET ...] [--ids FILE.npz] [--documents 24]

Weights are those of the file, arithmetic is float32 on the CPU, and only the inputs of matrices of integer types are
rounded: the difference comes from the activations' format alone. Figures over all positions of the text:

    KL = sum_v p(v) * (log p(v) - log q(v))    p exact, q rounded; mean and 99th percentile, nats
    top-1                                       share of positions where both have the same best token

Formats: what `--activations` chooses between (backends/cuda/activations.py), as kernels/acts.cuh stores it: int8 with
one scale per 256; that with two planes into ssm_out and ffn_down, whose bits follow from the weights' type, and a scale
per 128 into the head; halves with a power of two per 256. Beside them: int8 per 128, 64 and 32; two planes everywhere;
llama.cpp's q8_1 (per 32, the scale a half), which its CUDA kernels use, and Q8_K (per 256, the largest magnitude
becomes 127 as here), which its CPU kernels use for types with blocks of 256, beside Q8_0 (per 32, the scale a half) for
types with blocks of 32.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dflash_core.backends.cpu.target import CpuTarget
from dflash_core.backends.cuda.activations import HEADS, OUTPUTS
from dflash_core.backends.cuda.repack import tile_type
from dflash_core.backends.opened import Target
from dflash_core.config import read_target
from dflash_core.demo import demo_target_path
from dflash_core.formats.gguf import open_gguf
from dflash_core.formats.quants import BY_NAME, FLOATS
from dflash_core.formats.weights import WeightFile
from dflash_core.loading import load_target
from dflash_core.models.matrix import Matrix, Weights
from dflash_core.models.target import TargetModel
from dflash_core.progress import silent

from .bench_prompts import held_questions

# Rounds inputs (n, k), given the ggml type of the weights that they are multiplied with.
Rounding = Callable[[Tensor, str], Tensor]
Float32 = npt.NDArray[np.float32]


def _in_groups(x: Tensor, size: int) -> Tensor:
    """(n, k) to (n, groups, size), padded with zeros."""
    padded = torch.nn.functional.pad(x, (0, -x.shape[1] % size))
    return padded.view(len(x), -1, size)


def int8(size: int, half_scale: bool = False) -> Rounding:
    """The largest magnitude of each `size` inputs becomes 127. `half_scale`: the scale is kept as a half."""

    def rounded(x: Tensor, _: str) -> Tensor:
        return _integers(x, size, 127, half_scale)

    return rounded


def planes(x: Tensor, kind: str) -> Tensor:
    """Two planes: one scale per 256, and as many further bits as the weights' type leaves room for."""
    return _integers(x, 256, 127 << tile_type(kind).plane_bits)


def _integers(x: Tensor, size: int, most: int, half_scale: bool = False) -> Tensor:
    """The largest magnitude of each `size` inputs becomes `most`."""
    groups = _in_groups(x, size)
    scale = groups.abs().amax(-1, keepdim=True) / most
    codes = torch.where(scale > 0, groups / scale, 0).round()
    return (codes * (scale.half().float() if half_scale else scale)).flatten(1)[:, : x.shape[1]]


def of_weights(per_32: Rounding, per_256: Rounding) -> Rounding:
    """Which of two roundings depends on the block length of the weights."""
    return lambda x, kind: (per_32 if BY_NAME[kind].block == 32 else per_256)(x, kind)


def halves(x: Tensor, _: str) -> Tensor:
    """Eleven bits, the largest magnitude of each 256 in [512, 1024)."""
    groups = _in_groups(x, 256)
    exponent = torch.frexp(groups.abs().amax(-1, keepdim=True)).exponent
    scale = torch.ldexp(torch.ones_like(exponent, dtype=x.dtype), exponent - 10)
    return ((groups / scale).half().float() * scale).flatten(1)[:, : x.shape[1]]


def exact(x: Tensor, _: str) -> Tensor:
    """No rounding."""
    return x


@dataclass(frozen=True, slots=True)
class Scheme:
    """How inputs are rounded: those of ssm_out and ffn_down by `outputs`, those of the head by `head`. All others, and
    those for which one of these is None, by `rounding`."""

    rounding: Rounding
    outputs: Rounding | None = None
    head: Rounding | None = None

    def of(self, name: str) -> Rounding:
        """The rounding for the inputs of the tensor `name`."""
        role = name.split(".")[-2]
        special = self.outputs if role in OUTPUTS else self.head if role in HEADS else None
        return special or self.rounding


FORMATS: dict[str, Scheme] = {
    "mixed (ours)": Scheme(int8(256), planes, int8(128)),
    "int8 (ours), per 256": Scheme(int8(256)),
    "f16 (ours)": Scheme(halves),
    "int8, two planes into ssm_out, ffn_down": Scheme(int8(256), planes),
    "int8, two planes there and into the head": Scheme(int8(256), planes, planes),
    "two planes everywhere": Scheme(planes),
    "int8 per 128": Scheme(int8(128)),
    "int8 per 64": Scheme(int8(64)),
    "int8 per 32": Scheme(int8(32)),
    "q8_1, per 32 (llama.cpp CUDA)": Scheme(int8(32, half_scale=True)),
    "Q8_K or Q8_0 by type (llama.cpp CPU)": Scheme(of_weights(int8(32, half_scale=True), int8(256))),
}


class RoundedMatrix:
    """A matrix whose input is rounded first."""

    def __init__(self, matrix: Matrix, rounding: Rounding, kind: str) -> None:
        self.matrix, self.rounding, self.kind, self.shape = matrix, rounding, kind, matrix.shape

    def __call__(self, x: Tensor) -> Tensor:
        return self.matrix(self.rounding(x, self.kind))

    def rows(self, ids: Sequence[int]) -> Tensor:
        return self.matrix.rows(ids)


class RoundedWeights(Weights):
    """Matrices of integer types round their inputs."""

    def __init__(self, file: WeightFile, scheme: Scheme) -> None:
        super().__init__(file)
        self.scheme = scheme

    def matrix(self, name: str) -> Matrix:
        kind = self.file.tensors[name].type
        plain = super().matrix(name)
        if kind in FLOATS:
            return plain
        return RoundedMatrix(plain, self.scheme.of(name), kind)


@dataclass(frozen=True, slots=True)
class Difference:
    """How rounded logits differ from exact ones over `positions` positions: mean and 99th percentile of the KL
    divergence in nats, and the share of positions with the same best token."""

    positions: int
    mean_kl: float
    high_kl: float
    top1: float


def difference(exact_logits: Float32, rounded_logits: Float32) -> Difference:
    """Both logits are (positions, vocab)."""
    p = torch.log_softmax(torch.from_numpy(exact_logits).double(), -1)
    q = torch.log_softmax(torch.from_numpy(rounded_logits).double(), -1)
    kl = (p.exp() * (p - q)).sum(-1).numpy()
    same = exact_logits.argmax(-1) == rounded_logits.argmax(-1)
    return Difference(len(kl), float(kl.mean()), float(np.quantile(kl, 0.99)), float(same.mean()))


def measure(
    path: Path, texts: Sequence[Sequence[int]], formats: Mapping[str, Scheme] = FORMATS
) -> dict[str, Difference]:
    """Every format compared with exact activations, on independent token sequences."""
    target = CpuTarget(path)
    target.load(packed=False, progress=silent)
    file, config = read_target(open_gguf(path))

    def logits(scheme: Scheme) -> Float32:
        target.model = TargetModel(RoundedWeights(file, scheme), config)
        return np.concatenate([target.logits(ids) for ids in texts])

    reference = logits(Scheme(exact))
    return {name: difference(reference, logits(scheme)) for name, scheme in formats.items()}


def held_out(target: Target, documents: int) -> list[list[int]]:
    """Questions that the demo target was not trained on, with their answers, as its template writes them."""
    found = []
    for question in held_questions()[: documents * 7 : 7]:
        assert question.expected is not None
        text = f"<|im_start|>user\n{question.text}<|im_end|>\n<|im_start|>assistant\n{question.expected.answer}"
        found.append(list(target.tokenizer.encode(text)))
    return found


def main() -> None:
    """Print a table per target."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", nargs="*", type=Path, default=[demo_target_path()], help="GGUF files (default: demo)")
    parser.add_argument("--ids", type=Path, help="an .npz file with the text's token ids in `ids`")
    parser.add_argument("--documents", type=int, default=24, help="held-out documents of the demo's corpus")
    options = parser.parse_args()
    for path in options.target:
        if options.ids:
            texts = [[int(i) for i in np.load(options.ids)["ids"]]]
        else:
            texts = held_out(load_target(path, packed=True), options.documents)
        print(f"{path.name}, {sum(map(len, texts))} positions")  # noqa: T201
        print(f"  {'activations':42} {'mean KL':>9} {'99 %':>9} {'top-1':>7}")  # noqa: T201
        for name, found in measure(path, texts).items():
            print(f"  {name:42} {found.mean_kl:9.2e} {found.high_kl:9.2e} {found.top1:7.2%}")  # noqa: T201


if __name__ == "__main__":
    main()
