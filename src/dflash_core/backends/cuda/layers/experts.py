"""Experts on a card: the router's choice, the work list made from it, and products with the experts' matrices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from dflash_core.arch import kinds
from dflash_core.backends.cuda.activations import Activations, Rounding
from dflash_core.backends.cuda.chunk import HEADROOM, Chunk
from dflash_core.backends.cuda.expert_plan import COLUMNS, ENTRY_BYTES, ExpertPlan, ExpertProduct, Slabs
from dflash_core.backends.cuda.launch import (
    NO_INPUTS,
    NULL,
    WARP,
    Argument,
    At,
    Device,
    Inputs,
    Launch,
    ceil_div,
    optional,
    pointer,
)
from dflash_core.backends.cuda.layers.base import ChunkRun, FeedForward, Pass, PassBuffers
from dflash_core.backends.cuda.layers.feed_forward import ACTIVATIONS
from dflash_core.backends.cuda.plan import Card, Shape
from dflash_core.backends.cuda.products import Arena, TensorSpec
from dflash_core.backends.cuda.projection import AnyProjection, Matrix
from dflash_core.backends.cuda.repack import GROUP, ROWS
from dflash_core.backends.cuda.state import PASS_ROWS
from dflash_core.backends.cuda.upload import Upload, aligned
from dflash_core.errors import cpu_only

ROUTER_WARPS, CHUNK_ROUTER_WARPS = 2, 4  # scores per block of `router`: for a pass, for a chunk
ROUTER_TURN = 4  # rows that a block of `router` processes together
ROUTE_THREADS = 1024
MAX_USED, MAX_EXPERTS = 32, 1024  # `route` has a lane per used expert, a thread per expert

# Constants of kernels/experts_rows.cu and experts_sort.cu.
CHUNK_COLUMNS, CHUNK_ENTRY_BYTES, CHUNK_THREADS = 64, 12, 256
CHUNK_SHARED = 2 * CHUNK_COLUMNS * (2 * GROUP + 32)
SORT_THREADS, COMBINE_THREADS, CHOOSE_WARPS = 1024, 256, 8
OUT_PART = 512  # columns of the residual stream that are stored at a time for a chunk's pairs


class ExpertProjection(AnyProjection):
    """Matrices of routed experts, and of the shared expert if there is one.

    Its result has one part for each expert that a row uses, in the order of ranks.
    """

    plan: ExpertPlan

    def __init__(
        self,
        kernel: str,
        card: Card,
        count: int,
        used: int,
        routed: Sequence[Matrix],
        shared: Sequence[Matrix],
        rounding: Rounding,
    ) -> None:
        """`kernel`: experts_in or experts_out."""
        self.kernel = kernel
        self.routed = tuple(routed)
        self.kinds = (self.routed, tuple(shared)) if shared else (self.routed,)
        self.bias: Tensor | None = None  # (experts, width)
        self.places: Sequence[At] = ()  # of each routed matrix, int64 (experts): the experts' addresses, if they change
        self.used: Tensor | None = None  # int32 (experts): rows that have taken each expert
        self.product = ExpertProduct(
            Slabs(tuple(Shape(m.type, m.rows // count) for m in routed), routed[0].columns, count),
            used,
            Slabs(tuple(Shape(m.type, m.rows) for m in shared), shared[0].columns) if shared else None,
            rounding,
        )
        super().__init__(ExpertPlan(self.product, card), self.product.columns, self.product.ranks)

    def launch(self, rows: int, args: Sequence[Argument], more: Inputs = NO_INPUTS) -> Launch:
        """The launch for a pass of `rows` rows. `args`: arguments after the launch's struct; `more`: more defines, and
        the last arguments."""
        plan, name, (biased, bias) = self.plan, self.kernel, optional(BIASED=self.bias)
        defines, args = {**plan.defines(rows), **biased, **more[0]}, [self._table, *args, *bias, *more[1]]
        return Launch(f"{name}.cu", name, defines, plan.grid, plan.warps * WARP, args, plan.shared_bytes)

    def chunk_launch(
        self,
        work: Tensor,
        x: Tensor,
        order: Tensor | None,
        out: Tensor,
        blocks: range,
        scale: float = 1.0,
        factor: float = 1.0,
    ) -> Launch:
        """Rows of a chunk of a prompt, sorted by expert, times `blocks` (of 16 rows) of each expert's matrices.

        x: f16 rows; order: the row of x at each place, or None; out: f16 (places, rows of an expert). The upper half
        of `out` is multiplied by `scale`. factor: what x was multiplied by.
        """
        biased, bias = optional(BIASED=self.bias)
        return Launch(
            "experts_rows.cu", "experts_rows", {**self.plan.formats, **biased},
            self.plan.multiprocessors, CHUNK_THREADS,
            [self._table, work, x, x.shape[1], pointer(order), out, out.shape[1], blocks.start, len(blocks),
             np.float32(scale), *([*bias, np.float32(factor)] if bias else [])],
            CHUNK_SHARED,
        )  # fmt: skip

    @property
    def _table(self) -> bytes:
        used = 0 if self.used is None else self.used.data_ptr()
        addresses = [[matrix.address for matrix in kind] for kind in self.kinds]
        return self.plan.pack(addresses, [place.address for place in self.places], used)


class Experts(FeedForward):
    """Raises UnsupportedError for expert counts and widths that the kernels do not support."""

    inputs: ExpertProjection
    out: ExpertProjection

    def __init__(
        self, device: Device, upload: Upload, prefix: str, spec: kinds.Experts, activations: Activations
    ) -> None:
        _check(spec)
        self.spec, self.device = spec, device
        self.router = upload.vector(prefix + kinds.ROUTER)
        self.gate = upload.vector(prefix + kinds.SHARED_GATE) if spec.shared and spec.shared_gate else None
        self.bias = upload.vector(prefix + kinds.ROUTER_BIAS) if spec.router_bias else None
        self.choice_bias = upload.vector(prefix + kinds.CHOICE_BIAS) if spec.choice_bias else None
        self.expert_scales = upload.vector(prefix + kinds.EXPERT_SCALES) if spec.expert_scales else None
        self.activation = ACTIVATIONS[spec.activation]
        self.hidden = self.router.shape[-1]
        self.slots = 0  # experts that the card caches, where the others are in main memory
        if spec.router_scale:
            self.normed_by = upload.vector(prefix + kinds.ROUTER_SCALE) / math.sqrt(self.hidden)
        inner = [kinds.GATE_UP] if spec.fused else [f"ffn_{part}_exps.weight" for part in ("gate", "up")]
        shared = ["ffn_gate_shexp.weight", "ffn_up_shexp.weight"] if spec.shared else []
        last = ["ffn_down_shexp.weight"] if spec.shared else []

        def projection(kernel: str, routed: list[str], of_all: list[str], rounding: Rounding) -> ExpertProjection:
            first, second = ([upload.matrix(prefix + name) for name in names] for names in (routed, of_all))
            return ExpertProjection(kernel, device.card, spec.count, spec.used, first, second, rounding)

        self.inputs = projection("experts_in", inner, shared, activations.inputs)
        self.out = projection("experts_out", [kinds.DOWN], last, activations.outputs)
        if spec.biases:
            self.inputs.bias = _biases(upload, [prefix + name for name in inner], self.inputs)
            self.out.bias = _biases(upload, [prefix + kinds.DOWN], self.out)

    @property
    def ranks(self) -> int:
        """Experts of a row."""
        return self.inputs.product.ranks

    @property
    def scores(self) -> int:
        """Scores per row, including the shared expert's gate."""
        return self.spec.count + (self.gate is not None)

    @property
    def on_host(self) -> bool:
        """Whether kernels read the routed experts from main memory."""
        return self.out.routed[0].pinned is not None

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """Of the routed experts."""
        return (*self.inputs.routed, *self.out.routed)

    @property
    def routed_bytes(self) -> int:
        """Bytes of the routed experts where they are stored."""
        return sum(aligned(matrix.nbytes) for matrix in self.matrices)

    def slot_buffers(self, slots: int) -> Sequence[TensorSpec]:
        """For so many experts in a cache: of each matrix, (slots, bytes of an expert)."""
        return [((slots, matrix.nbytes // self.spec.count), torch.uint8) for matrix in self.matrices]

    def cached_bytes(self, slots: int) -> int:
        """Bytes of these."""
        return Arena.need(self.slot_buffers(slots))

    def use_places(self, places: Sequence[At], used: Tensor) -> None:
        """From now on find each expert of each of `matrices` by a table of addresses, and count rows in `used`."""
        split = len(self.inputs.routed)
        self.inputs.places, self.out.places = places[:split], places[split:]
        self.inputs.used = used  # both products take the same experts

    def _unused(self, rows: int) -> float:
        return self.inputs.product.idle_bytes(rows) + self.out.product.idle_bytes(rows)

    def idle_bytes(self, rows: int) -> float:
        """Bytes of weights on the card that a pass of `rows` rows does not read, on average, if rows choose experts at
        random."""
        return self._unused(rows) * (self.slots / self.spec.count if self.on_host else 1)

    def bus_bytes(self, rows: int) -> float:
        """Bytes of weights in main memory that such a pass reads."""
        if not self.on_host:
            return 0.0
        return (self.routed_bytes - self._unused(rows)) * (1 - self.slots / self.spec.count)

    @property
    def pass_buffers(self) -> Sequence[TensorSpec]:
        """Normed rows, scores, the work list, and weights per pair."""
        entries = PASS_ROWS * self.spec.used + ceil_div(PASS_ROWS, COLUMNS)
        return [
            ((PASS_ROWS, self.hidden), torch.float32),
            ((PASS_ROWS, self.scores), torch.float32),
            ((8 + ENTRY_BYTES * entries,), torch.uint8),
            ((self.ranks, PASS_ROWS), torch.float32),
        ]

    def normed(self, buffers: PassBuffers) -> Tensor | None:
        rows, *_ = buffers.inside.carve(*self.pass_buffers)
        return rows

    def launches(self, scope: Pass) -> Iterator[Launch]:
        buffers, rows, spec = scope.buffers, scope.rows, self.spec
        x, scores, work, weights = buffers.inside.carve(*self.pass_buffers)
        count: list[Argument] = [rows, scope.count, scope.node0]
        yield self._score(x, scores, rows, count, ROUTER_WARPS)
        scale, inner = np.float32(spec.scale), self.inputs.width
        choice, chosen_by = self._choice
        into: list[Argument] = [*self.inputs.act_args(buffers.acts), buffers.wide, rows]
        down: list[Argument] = [buffers.wide, inner, buffers.narrow, rows]
        if rows == 1:  # both products route a single row themselves
            own: list[Argument] = [scores, scale, *count[1:]]
            chooses = {"CHOOSES": 1, **choice}
            yield self.inputs.launch(rows, [*into, *own], (chooses, chosen_by))
            yield self.out.launch(rows, [*down, *own], ({**self.activation, **chooses}, chosen_by))
        else:
            route: list[Argument] = [scores, scale, work, weights, *count, *chosen_by]
            yield Launch("router.cu", "route", {"WIDTH": self.hidden, **choice}, 1, ROUTE_THREADS, route)
            yield self.inputs.launch(rows, [work, *into])
            yield self.out.launch(rows, [work, weights, *down], (self.activation, ()))

    @property
    def _experts(self) -> dict[str, object]:
        found: dict[str, object] = {"EXPERTS": self.spec.count}
        if self.spec.shared:
            found |= {"SHARED": 1} if self.gate is not None else {"SHARED": 1, "UNGATED": 1}
        return found

    @property
    def _choice(self) -> Inputs:
        """Of kernels that choose experts: see Choosing in kernels/experts.cuh."""
        defines = {**self._experts, "USED": self.spec.used, "ALL": int(not self.spec.normalised)}
        if self.spec.router == "sigmoid":
            defines["SIGMOID"] = 1
        options, args = optional(CHOICE_BIAS=self.choice_bias, EXPERT_SCALES=self.expert_scales)
        return defines | options, args

    def _score(self, x: Tensor, scores: Tensor, rows: int, count: Sequence[Argument], warps: int) -> Launch:
        turn = min(rows, ROUTER_TURN)
        biased, bias = optional(BIASED=self.bias)
        return Launch(
            "router.cu", "router", {"WIDTH": self.hidden, **self._experts, "TURN": turn, **biased},
            (ceil_div(self.scores, warps), ceil_div(rows, turn)), warps * WARP,
            [x, self.router, self.gate if self.gate is not None else NULL, scores, *count, *bias],
        )  # fmt: skip

    # ---- Prompts: rows sorted by expert ------------------------------------------------------------------------------

    @property
    def chunked(self) -> bool:
        """Whether the card can process prompts in chunks through this layer."""
        return self.device.card.shared_bytes >= CHUNK_SHARED

    def chunk_buffers(self, rows: int) -> Sequence[Sequence[TensorSpec]]:
        """Scores, choices, weights, the work list, the row of each place, the place of each pair; then gate and up;
        then the normed rows, which the output of `down` overwrites, one part of its columns at a time."""
        pairs, part = rows * self.ranks, min(OUT_PART, self.hidden)
        entries = self.spec.count + ceil_div(rows * self.spec.used, CHUNK_COLUMNS) + ceil_div(rows, CHUNK_COLUMNS)
        small: list[TensorSpec] = [
            ((rows, self.scores), torch.float32),
            ((rows, self.spec.used), torch.int16),
            ((rows, self.ranks), torch.float32),
            ((8 + CHUNK_ENTRY_BYTES * entries,), torch.uint8),
            ((pairs,), torch.int32),
            ((pairs,), torch.int32),
            ((pairs, self.inputs.width), torch.float16),
        ]
        return [*small, ((pairs, part), torch.float16)], [*small, ((rows, self.hidden), torch.float32)]

    def chunk_normed(self, chunk: Chunk) -> Tensor | None:
        *_, normed = chunk.arena.carve(*self.chunk_buffers(chunk.rows)[1])
        return normed

    def chunk(self, chunk: Chunk) -> ChunkRun:
        spec, rows, ops, count = self.spec, chunk.rows, chunk.ops, chunk.count
        *small, y = chunk.arena.carve(*self.chunk_buffers(rows)[0])
        scores, chosen, weights, work, order, places, inner = small
        normed = self.chunk_normed(chunk)
        assert normed is not None
        choice, chosen_by = self._choice
        defines = {"WIDTH": self.hidden, **choice}
        score = self._score(normed, scores, rows, [rows, count, 0], CHUNK_ROUTER_WARPS)
        choose = Launch(
            "experts_sort.cu", "choose", defines, ceil_div(rows, CHOOSE_WARPS), CHOOSE_WARPS * WARP,
            [count, scores, np.float32(spec.scale), chosen, weights, *chosen_by],
        )  # fmt: skip
        sort = Launch("experts_sort.cu", "sort", defines, 1, SORT_THREADS, [count, chosen, work, order, places])
        everything = range(1 << 20)
        product = self.inputs.chunk_launch(work, chunk.x, order, inner, everything, HEADROOM)
        swiglu = Launch(
            "experts_rows.cu", "pairs_swiglu", {**product.defines, **self.activation},
            (ceil_div(self.inputs.width // 2, 8 * CHUNK_THREADS), rows * self.ranks), CHUNK_THREADS,
            [count, inner, self.inputs.width, spec.used, self.ranks, spec.width, spec.shared],
        )  # fmt: skip
        launches = [score, choose, sort, product, swiglu]
        for begin in range(0, self.hidden, OUT_PART):
            part = min(OUT_PART, self.hidden - begin)
            own = y.view(-1)[: rows * self.ranks * part].view(-1, part)
            blocks = range(begin // ROWS, ceil_div(begin + part, ROWS))
            launches.append(self.out.chunk_launch(work, inner, None, own, blocks, factor=HEADROOM))
            launches.append(
                Launch(
                    "experts_sort.cu", "combine", defines, (ceil_div(part, 8 * COMBINE_THREADS), rows), COMBINE_THREADS,
                    [count, own, places, weights, np.float32(1 / HEADROOM), chunk.out, begin, part],
                )
            )  # fmt: skip
        bound = [ops.add(launch) for launch in launches]

        def run(n: int, length: int) -> None:
            for op in bound:
                op()

        return run


def _biases(upload: Upload, names: Sequence[str], projection: ExpertProjection) -> Tensor:
    """The biases (experts, width) of matrices whose rows are next to each other in the projection's output."""
    parts = [upload.vector(name.removesuffix(".weight") + ".bias") for name in names]
    joined = torch.cat(parts, dim=1)
    return torch.nn.functional.pad(joined, (0, projection.width - joined.shape[1])).contiguous()


def _check(spec: kinds.Experts) -> None:
    """Raise UnsupportedError for counts and widths that the kernels do not support."""
    for what, value, limit in (("experts", spec.count, MAX_EXPERTS), ("experts per row", spec.used, MAX_USED)):
        if value > limit:
            raise cpu_only(f"{value:,} {what}, expected at most {limit:,} on a card")
    for width in (spec.width, spec.shared):
        if width % ROWS:
            raise cpu_only(f"experts of width {width:,}, expected a multiple of {ROWS} on a card")
