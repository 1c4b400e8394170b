"""Long prompts: the target layer by layer over thousands of rows, products by the library, chunked recurrence.

Weights are turned to f16 piece by piece, so memory stays bounded; accumulation is in float32, and so is the residual
stream. What is left behind is what passes leave: keys, values, states, the drafter's context, nothing pending.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from dflash_core.backends.base import PrefillCancelled
from dflash_core.backends.cuda.buffers import ChunkBuffers, TargetBuffers
from dflash_core.backends.cuda.device_state import DeviceState
from dflash_core.backends.cuda.draft_pass import DraftPass
from dflash_core.backends.cuda.gdn import DIM, ScanLaunch
from dflash_core.backends.cuda.launch import Argument, Launch, Run
from dflash_core.backends.cuda.model import Attention, Block, DeviceTarget, FeedForward, GatedDeltaNet
from dflash_core.backends.cuda.products import Op, Ops, Part, Products
from dflash_core.backends.cuda.target_pass import (
    EMBED_THREADS,
    PREPARE_WARPS,
    WARP,
    ceil_div,
)

# Shorter prompts go through passes of 64 rows. On an H200 three of them take 42 ms, and four 57; turning all weights to
# f16 and multiplying a few rows by them takes 51.
LEAST_ROWS = 193
ROW_THREADS = 256
# What may pass the range of halves is multiplied by this before it is rounded.
HEADROOM = 1 / 16
# Not cuDNN's attention: it plans anew, for some 50 ms, whenever a prompt has another length.
ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
LAYERS_AHEAD = 2  # layers queued while the host waits for the one before them

Cancelled = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Delta:
    """The launches and weights of a linear layer's mixer."""

    qkv: tuple[Part, ...]
    gate: tuple[Part, ...]
    gates: tuple[Part, ...]
    kernels: tuple[Op, ...]
    out_norm: Op
    out: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Full:
    """The same of a full-attention layer."""

    inputs: tuple[tuple[Part, ...], ...]
    prepare: Op
    out: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of the target. `ffn`: gate, up and down of a range of columns each."""

    block: Block
    norm: Op
    mixer: Delta | Full
    ffn_norm: Op
    ffn: tuple[tuple[Part, Part, tuple[Part, ...]], ...]
    swiglu: Op


@dataclass(frozen=True, slots=True)
class Taps:
    """The drafter's side: a part of fc per tapped layer, and the projections to context keys and values."""

    fc: tuple[tuple[Part, ...], ...]
    norm: Op
    contexts: tuple[tuple[tuple[tuple[Part, ...], ...], Op], ...]


class ChunkPass:
    """Runs up to `chunk.rows` tokens behind the committed state, which nothing may be pending for."""

    def __init__(
        self,
        target: DeviceTarget,
        buffers: TargetBuffers,
        chunk: ChunkBuffers,
        state: DeviceState,
        drafter: DraftPass | None = None,
    ) -> None:
        self.target, self.buffers, self.chunk, self.state = target, buffers, chunk, state
        self.device = target.device
        self.ops = Ops(self.device)
        self.products = Products(self.device, chunk.weights, self.ops)
        self.embed = self._embed()
        self.layers = [self._layer(block) for block in target.blk]
        self.taps = self._taps(drafter) if drafter else None

    def launches(self) -> list[Launch]:
        """Every launch of a chunk, for compiling."""
        return [op.launch for op in self.ops.added]

    def warm_up(self) -> None:
        """Bind what is compiled and have the library set itself up, so that a first prompt does not wait for it."""
        for op in self.ops.added:
            op.bind()
        x, w = self.chunk.x[:64], self.chunk.weights[: 64 * self.chunk.x.shape[1]].view(64, -1)
        self.device.multiply(x, w, self.chunk.ffn_gate[:64, :64])
        self.device.multiply(x, w, self.chunk.h[:64, :64], add=True)

    # ---- What is launched --------------------------------------------------------------------------------------------

    def _embed(self) -> Op:
        target, chunk = self.target, self.chunk
        width = target.config.embedding_length
        return self.ops.add(
            Launch(
                "embed.cu", "embed", {"FORMAT": target.embedding_type, "WIDTH": width},
                (ceil_div(width, EMBED_THREADS), chunk.rows), EMBED_THREADS,
                [chunk.h, target.token_embd, chunk.tokens, np.int32(-1), chunk.count, np.int32(0)],
            )
        )  # fmt: skip

    def _norm(self, h: Tensor, weight: Tensor, eps: float, out: Tensor) -> Op:
        args: list[Argument] = [self.chunk.count, h, weight, np.float32(eps), out]
        return self.ops.add(Launch("rows.cu", "rows_norm", {"WIDTH": h.shape[1]}, len(h), ROW_THREADS, args))

    def _rows(self, name: str, width: int, args: list[Tensor | np.generic]) -> Op:
        grid = (ceil_div(width, 8 * ROW_THREADS), self.chunk.rows)
        return self.ops.add(
            Launch("rows.cu", name, {"WIDTH": width}, grid, ROW_THREADS, [self.chunk.count, *args])
        )  # fmt: skip

    def _layer(self, block: Block) -> Layer:
        chunk, eps = self.chunk, self.target.config.rms_eps
        return Layer(
            block,
            self._norm(chunk.h, block.attn_norm, eps, chunk.x),
            self._delta(block.mixer, block.place)
            if isinstance(block.mixer, GatedDeltaNet)
            else self._full(block.mixer, block.place),
            self._norm(chunk.h, block.post_attention_norm, eps, chunk.x),
            self._feed_forward(block.ffn),
            self._rows("rows_swiglu", chunk.ffn_width, [chunk.ffn_gate, chunk.ffn_up]),
        )

    def _feed_forward(self, ffn: FeedForward) -> tuple[tuple[Part, Part, tuple[Part, ...]], ...]:
        gate, up = ffn.gate_up.matrices
        (down,) = ffn.down.matrices
        step, part, every = self.chunk.ffn_width, self.products.part, range(gate.columns)
        cuts = [range(begin, min(begin + step, ffn.width)) for begin in range(0, ffn.width, step)]
        return tuple((part([gate], cut, every), part([up], cut, every), self.products.parts(down, cut)) for cut in cuts)

    def _delta(self, mixer: GatedDeltaNet, place: int) -> Delta:
        chunk, memory, target = self.chunk, self.buffers.delta, self.target
        launch = ScanLaunch.of(target.delta, self.device.card.shared_bytes)
        assert launch is not None, "chunks on a card without room for them"
        qkv, gate, alpha, beta = mixer.inputs.matrices
        rows = np.int32(chunk.padded)
        (out,) = mixer.ssm_out.matrices
        width = target.delta.value_heads * DIM
        kernels = (
            Launch(
                "gdn_chunks.cu", "gdn_rows", launch.defines, launch.rows_grid(chunk.chunks), 256,
                [chunk.count, chunk.qkv, chunk.gates, mixer.ssm_conv1d, mixer.ssm_a, mixer.ssm_dt,
                 memory.conv[place], chunk.q, chunk.k, chunk.v, chunk.decay, chunk.beta, rows],
            ),
            Launch(
                "gdn_chunks.cu", "gdn_solve", launch.defines, launch.solve_grid(chunk.chunks), 128,
                [chunk.count, chunk.q, chunk.k, chunk.v, chunk.decay, chunk.beta, chunk.w, chunk.p, rows],
                launch.solve_shared,
            ),
            Launch(
                "gdn_chunks.cu", "gdn_scan", launch.defines, launch.scan_grid, 256,
                [chunk.count, chunk.q, chunk.k, chunk.v, chunk.w, chunk.p, chunk.decay, memory.s[place], chunk.out,
                 rows],
                launch.scan_shared,
            ),
        )  # fmt: skip
        return Delta(
            self.products.parts(qkv),
            self.products.parts(gate),
            (self.products.part([alpha, beta], range(alpha.rows), range(alpha.columns)),),
            tuple(self.ops.add(kernel) for kernel in kernels),
            self._rows(
                "rows_gated_norm", width, [chunk.out, chunk.z, mixer.ssm_norm, np.float32(target.config.rms_eps)]
            ),
            self.products.parts(out),
        )

    def _full(self, mixer: Attention, place: int) -> Full:
        chunk, kv, heads = self.chunk, self.buffers.kv, self.target.heads
        (out,) = mixer.attn_output.matrices
        tasks = heads.heads + 2 * heads.kv_heads
        defines = {"HEAD_DIM": heads.head_dim, "ROTARY": heads.rotary, "GROUP": heads.group, "PLANES": 1}
        prepare = Launch(
            "attention_rows.cu", "attn_rows", defines, (ceil_div(tasks, PREPARE_WARPS), chunk.rows),
            WARP * PREPARE_WARPS,
            [chunk.count, chunk.projected, np.int32(chunk.rows), np.int32(heads.kv_heads), mixer.attn_q_norm,
             mixer.attn_k_norm, self.target.frequencies, np.float32(self.target.config.rms_eps), np.float32(1),
             chunk.queries, kv.k[place], kv.v[place], np.int32(kv.slots)],
        )  # fmt: skip
        inputs = tuple(self.products.parts(matrix) for matrix in mixer.inputs.matrices)
        return Full(inputs, self.ops.add(prepare), self.products.parts(out))

    def _taps(self, drafter: DraftPass) -> Taps:
        chunk, draft = self.chunk, drafter.draft
        assert chunk.encoder is not None, "a drafter without room for its encoder"
        (fc,) = draft.fc.matrices
        width = self.target.config.embedding_length
        return Taps(
            tuple(self.products.parts(fc, range(width * i, width * (i + 1))) for i in range(len(self.buffers.taps))),
            self._norm(chunk.encoder, draft.enc_output_norm, draft.config.rms_eps, chunk.encoded),
            tuple(
                (
                    tuple(self.products.parts(matrix) for matrix in context.projection.matrices),
                    self.ops.add(drafter.store(context, chunk.context, chunk.rows, 0, planes=1)),
                )
                for context in draft.contexts
            ),
        )

    # ---- Running -----------------------------------------------------------------------------------------------------

    def run(self, tokens: Sequence[int], cancelled: Cancelled | None = None) -> Tensor:
        """Run and commit `tokens`; the residual (hidden,) behind the last layer at the last of them.

        Raises PrefillCancelled where `cancelled` says so between two layers; all stands as before then.
        """
        n, state, memory = len(tokens), self.state.host, self.buffers.delta
        length = int(state["length"])
        assert not state["pending"], "states that are not up to date"
        assert length + n <= self.buffers.slots, "positions behind the end of the sequence's memory"
        self.chunk.begin(tokens, length)
        if cancelled is not None:
            memory.keep_states()
        self.embed()
        marks: deque[Run] = deque()
        for index, layer in enumerate(self.layers):
            if cancelled is not None:
                marks.append(self.device.mark())
                if len(marks) > LAYERS_AHEAD:
                    marks.popleft()()
                if cancelled():
                    memory.return_states()
                    raise PrefillCancelled
            self._run_layer(layer, n, length)
            self._tap(index, n)
        state["length"] = length + n
        if self.taps is not None:
            self._absorb(self.taps, n)
        return self.chunk.h[n - 1]

    @staticmethod
    def possible(target: DeviceTarget) -> bool:
        """Whether the card has the shared memory that the chunked recurrence takes."""
        return ScanLaunch.of(target.delta, target.device.card.shared_bytes) is not None

    def _run_layer(self, layer: Layer, n: int, length: int) -> None:
        chunk, products = self.chunk, self.products
        h, x = chunk.h[:n], chunk.x[:n]
        layer.norm()
        if isinstance(layer.mixer, Delta):
            self._run_delta(layer.mixer, layer.block.place, n)
        else:
            self._run_full(layer.mixer, layer.block.place, n, length)
        layer.ffn_norm()
        for gate, up, down in layer.ffn:
            width = len(gate.weights)
            products.multiply(x, [gate], chunk.ffn_gate[:n, :width])
            products.multiply(x, [up], chunk.ffn_up[:n, :width], scale=HEADROOM)
            layer.swiglu()
            products.multiply(chunk.ffn_gate[:n, :width], down, h, scale=1 / HEADROOM, add=True)

    def _run_delta(self, mixer: Delta, place: int, n: int) -> None:
        chunk, products, x = self.chunk, self.products, self.chunk.x[:n]
        products.multiply(x, mixer.qkv, chunk.qkv[:n])
        products.multiply(x, mixer.gate, chunk.z[:n])
        products.multiply(x, mixer.gates, chunk.gates[:n])
        rows, solve, scan = mixer.kernels
        rows()
        conv = self.buffers.delta.conv[place]
        kept = min(n, len(conv))
        conv[: len(conv) - kept] = conv[kept:].clone()
        conv[len(conv) - kept :] = chunk.qkv[n - kept : n]
        solve()  # from here on chunk.qkv is no more: W, P and O lie there
        scan()
        mixer.out_norm()
        products.multiply(chunk.z[:n], mixer.out, chunk.h[:n], add=True)

    def _run_full(self, mixer: Full, place: int, n: int, length: int) -> None:
        chunk, products, heads, kv = self.chunk, self.products, self.target.heads, self.buffers.kv
        begin = 0
        for parts in mixer.inputs:
            width = sum(len(part.weights) for part in parts)
            products.multiply(chunk.x[:n], parts, chunk.projected[:n, begin : begin + width])
            begin += width
        mixer.prepare()
        queries = chunk.queries.view(heads.kv_heads, chunk.rows, heads.group, heads.head_dim)[:, :n].transpose(1, 2)
        k, v = (cache[place, :, None, : length + n].expand(-1, heads.group, -1, -1) for cache in (kv.k, kv.v))
        with sdpa_kernel(ATTENTION):
            mixed = scaled_dot_product_attention(queries, k, v, attn_mask=causal_lower_right(n, length + n))
        gate = chunk.projected[:n, : 2 * heads.heads * heads.head_dim].view(n, heads.heads, 2, heads.head_dim)[:, :, 1]
        gate = gate.sigmoid_().view(n, heads.kv_heads, heads.group, heads.head_dim).permute(1, 2, 0, 3)
        # The queries are done with; rows of all heads side by side take their place.
        rows = chunk.queries.view(-1)[: mixed.numel()].view(n, heads.kv_heads, heads.group, heads.head_dim)
        torch.mul(mixed, gate, out=rows.permute(1, 2, 0, 3))
        products.multiply(rows.view(n, -1), mixer.out, chunk.h[:n], add=True)

    def _tap(self, index: int, n: int) -> None:
        if self.taps is None or index not in self.buffers.taps:
            return
        tapped, encoder = self.chunk.tapped[:n], self.chunk.encoder
        assert encoder is not None, "a drafter without room for its encoder"
        torch.mul(self.chunk.h[:n], HEADROOM, out=tapped)
        first = index == min(self.buffers.taps)
        parts = self.taps.fc[self.buffers.taps.index(index)]
        self.products.multiply(tapped, parts, encoder[:n], scale=1 / HEADROOM, add=not first)

    def _absorb(self, taps: Taps, n: int) -> None:
        """The rows' features as context of every draft layer."""
        chunk = self.chunk
        self.state.push()
        taps.norm()
        for matrices, store in taps.contexts:
            begin = 0
            for parts in matrices:
                width = sum(len(part.weights) for part in parts)
                self.products.multiply(chunk.encoded[:n], parts, chunk.context[:n, begin : begin + width])
                begin += width
            store()
        self.state.host["absorbed"] = self.state.host["length"]
