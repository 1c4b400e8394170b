"""Experts on a card: the router's choice, the work list that comes of it, and products by the experts' own matrices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from dflash_core.arch import kinds
from dflash_core.backends.cuda.activations import Activations, Rounding
from dflash_core.backends.cuda.chunk import Chunk
from dflash_core.backends.cuda.expert_plan import COLUMNS, ENTRY_BYTES, WARPS, ExpertPlan, ExpertProduct, Slabs
from dflash_core.backends.cuda.launch import NULL, WARP, Argument, Device, Launch, ceil_div, pointer
from dflash_core.backends.cuda.layers.base import ChunkRun, Pass, PassBuffers, Upload
from dflash_core.backends.cuda.plan import Card, Shape
from dflash_core.backends.cuda.products import Wanted
from dflash_core.backends.cuda.projection import Acts, Matrix
from dflash_core.backends.cuda.repack import ROWS
from dflash_core.backends.cuda.state import PASS_ROWS
from dflash_core.errors import Code, UnsupportedError

ROUTER_WARPS = 2  # scores that a block of `router` makes
ROUTER_TURN = 8  # rows that it goes through together
LEAST_ROUTE_THREADS = 256
MOST_USED, MOST_EXPERTS = 32, 1024  # that `route` has lanes and threads for


class ExpertProjection:
    """Implements `projection.AnyProjection`: matrices of routed experts, and of the shared one where there is one.

    Its result has a part for each expert that a row takes, in the order of ranks.
    """

    def __init__(
        self,
        card: Card,
        count: int,
        used: int,
        routed: Sequence[Matrix],
        shared: Sequence[Matrix],
        rounding: Rounding,
    ) -> None:
        self.kinds = (tuple(routed), tuple(shared)) if shared else (tuple(routed),)
        self.product = ExpertProduct(
            Slabs(tuple(Shape(m.type, m.rows // count) for m in routed), routed[0].columns, count),
            used,
            Slabs(tuple(Shape(m.type, m.rows) for m in shared), shared[0].columns) if shared else None,
            rounding,
        )
        self.replan(card)

    def replan(self, card: Card) -> None:
        self.plan = ExpertPlan(self.product, card)

    @property
    def columns(self) -> int:
        return max(kind.columns for kind in self.product.kinds)

    @property
    def split_k(self) -> int:
        return self.product.ranks

    @property
    def width(self) -> int:
        return self.plan.stride

    @property
    def forms(self) -> dict[str, object]:
        return self.plan.forms

    def wanted(self, acts: Acts) -> tuple[Argument, Argument]:
        return (
            pointer(acts.q8 if self.plan.needs_q8 else None),
            pointer(acts.f16 if self.plan.needs_f16 else None),
        )

    def launch(self, name: str, rows: int, args: Sequence[Argument]) -> Launch:
        """Kernel `name` over a pass of `rows` rows; `args`: what follows the launch's struct."""
        plan = self.plan
        table = plan.pack([[matrix.tiles.data_ptr() for matrix in kind] for kind in self.kinds])
        return Launch(
            f"{name}.cu", name, plan.defines(rows), plan.grid, WARPS * WARP, [table, *args], plan.shared_bytes
        )


class Experts:
    """Implements `base.FeedForwardLayer`. Raises UnsupportedError for numbers of experts, and for widths, that the
    kernels are not written for."""

    chunked = False

    def __init__(
        self, device: Device, upload: Upload, prefix: str, spec: kinds.Experts, activations: Activations
    ) -> None:
        _check(spec)
        self.spec = spec
        self.router = upload.vector(prefix + kinds.ROUTER)
        self.gate = upload.vector(prefix + kinds.SHARED_GATE) if spec.shared else None
        self.hidden = self.router.shape[-1]
        inner = [kinds.GATE_UP] if spec.fused else [f"ffn_{part}_exps.weight" for part in ("gate", "up")]
        shared = ["ffn_gate_shexp.weight", "ffn_up_shexp.weight"] if spec.shared else []
        last = ["ffn_down_shexp.weight"] if spec.shared else []

        def projection(routed: list[str], of_all: list[str], rounding: Rounding) -> ExpertProjection:
            first, other = ([upload.matrix(prefix + name) for name in names] for names in (routed, of_all))
            return ExpertProjection(device.card, spec.count, spec.used, first, other, rounding)

        self.inputs = projection(inner, shared, activations.inputs)
        self.out = projection([kinds.DOWN], last, activations.outputs)

    @property
    def ranks(self) -> int:
        """Experts of a row."""
        return self.inputs.product.ranks

    @property
    def scores(self) -> int:
        """Scores of a row, the shared expert's gate among them."""
        return self.spec.count + bool(self.spec.shared)

    @property
    def idle_bytes(self) -> int:
        return self.inputs.product.idle_bytes + self.out.product.idle_bytes

    @property
    def pass_room(self) -> Sequence[Wanted]:
        """Normed rows, scores, the work list, and weights by pair."""
        entries = PASS_ROWS * self.spec.used + ceil_div(PASS_ROWS, COLUMNS)
        return [
            ((PASS_ROWS, self.hidden), torch.float32),
            ((PASS_ROWS, self.scores), torch.float32),
            ((8 + ENTRY_BYTES * entries,), torch.uint8),
            ((self.ranks, PASS_ROWS), torch.float32),
        ]

    def normed(self, buffers: PassBuffers) -> Tensor | None:
        rows, *_ = buffers.inside.carve(*self.pass_room)
        return rows

    def launches(self, scope: Pass) -> Iterator[Launch]:
        buffers, rows, spec = scope.buffers, scope.rows, self.spec
        x, scores, work, weights = buffers.inside.carve(*self.pass_room)
        count: list[Argument] = [np.int32(rows), scope.count, np.int32(scope.node0)]
        yield self._score(x, scores, rows, count)
        defines = {**self._defines, "USED": spec.used, "ALL": int(not spec.normalised)}
        yield Launch(
            "router.cu", "route", defines, 1, max(LEAST_ROUTE_THREADS, WARP * ceil_div(spec.count, WARP)),
            [scores, np.float32(spec.scale), work, weights, *count],
        )  # fmt: skip
        yield self.inputs.launch(
            "experts_in", rows, [work, *self.inputs.wanted(buffers.acts), buffers.wide, np.int32(rows)]
        )
        inner = np.int32(self.inputs.width)
        yield self.out.launch("experts_out", rows, [work, weights, buffers.wide, inner, buffers.narrow, np.int32(rows)])

    @property
    def _defines(self) -> dict[str, object]:
        shared = {"SHARED": 1} if self.spec.shared else {}
        return {"WIDTH": self.hidden, "EXPERTS": self.spec.count, **shared}

    def _score(self, x: Tensor, scores: Tensor, rows: int, count: Sequence[Argument]) -> Launch:
        turn = min(rows, ROUTER_TURN)
        return Launch(
            "router.cu", "router", {**self._defines, "TURN": turn},
            (ceil_div(self.scores, ROUTER_WARPS), ceil_div(rows, turn)), ROUTER_WARPS * WARP,
            [x, self.router, self.gate if self.gate is not None else NULL, scores, *count],
        )  # fmt: skip

    def chunk_rooms(self, rows: int) -> Sequence[Sequence[Wanted]]:
        raise NotImplementedError

    def chunk(self, chunk: Chunk) -> ChunkRun:
        raise NotImplementedError


def _check(spec: kinds.Experts) -> None:
    """Refuse what the kernels have no room for."""
    for what, value, most in (("experts", spec.count, MOST_EXPERTS), ("experts per row", spec.used, MOST_USED)):
        if value > most:
            raise UnsupportedError(
                f"{value:,} {what}, expected {most:,} at most on a card; run it on the CPU",
                code=Code.NOT_ON_THIS_DEVICE,
            )
    for width in (spec.width, spec.shared):
        if width % ROWS:
            raise UnsupportedError(
                f"experts that are {width:,} wide, expected a multiple of {ROWS} on a card; run it on the CPU",
                code=Code.NOT_ON_THIS_DEVICE,
            )
