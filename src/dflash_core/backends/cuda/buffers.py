"""The memory that passes work in. All of it is allocated once: graphs hold its addresses.

What a sequence owns (keys, values, recurrent states, the rows a commit needs) is told apart from scratch, which means
nothing from one pass to the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dflash_core.arch import kinds
from dflash_core.backends.cuda.acts import F16_BLOCK, Q8_BLOCK
from dflash_core.backends.cuda.acts import ROWS as ACT_ROWS
from dflash_core.backends.cuda.attention import SplitOrder
from dflash_core.backends.cuda.gdn import DIM, DeltaShape
from dflash_core.backends.cuda.launch import At
from dflash_core.backends.cuda.model import Attention, DeviceDraft, DeviceTarget, GatedDeltaNet
from dflash_core.backends.cuda.products import WEIGHT_BYTES, Arena, Wanted
from dflash_core.backends.cuda.projection import Acts, Projection
from dflash_core.backends.cuda.repack import GROUP, ROWS, blocks_of, groups_of
from dflash_core.backends.cuda.state import MAX_NODES

PASS_ROWS = 64  # rows of one pass: the widest graph
PREFILL_ROWS = 2048  # rows of one chunk of a prompt
# What torch gives cuBLAS to work in, on cards of the data centre from Hopper on and on others.
LIBRARY_BYTES, OLDER_LIBRARY_BYTES = 32 << 20, (8 << 20) + (128 << 10)
WAITING_ROWS = 256 + PASS_ROWS  # features that may wait for the drafter


def acts_for(columns: int, device: torch.device) -> Acts:
    """Activations of PASS_ROWS rows of up to `columns` k; zeros, so that padding rows are numbers."""
    blocks = groups_of(columns) * (ACT_ROWS // 8)
    return Acts(*(torch.zeros(blocks * size, dtype=torch.uint8, device=device) for size in (Q8_BLOCK, F16_BLOCK)))


def planes_for(projections: list[Projection], rows: int, device: torch.device) -> Tensor:
    """Room for the output of the largest of `projections`."""
    return torch.zeros(max(p.slices * p.width for p in projections) * rows, device=device)


def _out(mixer: GatedDeltaNet | Attention) -> Projection:
    return mixer.ssm_out if isinstance(mixer, GatedDeltaNet) else mixer.attn_output


@dataclass(slots=True)
class KeyValues:
    """f16 (layers, kv heads, slots, head size) each."""

    k: Tensor
    v: Tensor

    @staticmethod
    def empty(layers: int, kv_heads: int, slots: int, head_dim: int, device: torch.device) -> KeyValues:
        shape = (layers, kv_heads, slots, head_dim)
        return KeyValues(*(torch.zeros(shape, dtype=torch.float16, device=device) for _ in range(2)))

    @property
    def slots(self) -> int:
        return self.k.shape[2]

    @property
    def nbytes(self) -> int:
        return self.k.nbytes + self.v.nbytes

    def streams(self) -> Tensor:
        """Addresses of every [slot][head size] array, for kv_commit: (arrays,) int64."""
        rows = [
            tensor[layer, head]
            for tensor in (self.k, self.v)
            for layer in range(len(tensor))
            for head in range(tensor.shape[1])
        ]
        return torch.tensor([row.data_ptr() for row in rows], dtype=torch.int64, device=self.k.device)


class DeltaMemory:
    """States of all linear layers, and the rows of a pass that their commit needs, layer by layer.

    `states`: those of a memory that this one follows.
    """

    def __init__(
        self,
        shape: DeltaShape,
        layers: int,
        capacity: int,
        device: torch.device,
        states: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        def zeros(sizes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros((layers, *sizes), dtype=dtype, device=device)

        sizes = shape.layer_shapes(capacity)
        self.capacity = capacity
        self.s, self.conv = states or (zeros(sizes["s"]), zeros(sizes["conv"]))
        shapes = [(layers, *sizes[name]) for name in ("inputs", "k", "u")]
        self._rows = torch.zeros(sum(math.prod(shape) for shape in shapes), device=device)
        parts = torch.split(self._rows, [math.prod(shape) for shape in shapes])
        self.inputs, self.k, self.u = (part.view(shape) for part, shape in zip(parts, shapes))
        self.decay = zeros(sizes["decay"], torch.float64)
        scratch = {name: torch.zeros(size, device=device) for name, size in shape.pass_shapes().items()}
        self.q, self.v, self.beta, self.out = (scratch[name] for name in ("q", "v", "beta", "out"))

    def keep_states(self) -> None:
        """Copy all states to where the last pass's rows lie. Nothing may be pending: those rows are lost."""
        for state, kept in self._kept():
            kept.copy_(state)

    def return_states(self) -> None:
        """Undo what happened to the states since `keep_states`; no pass came in between."""
        for state, kept in self._kept():
            state.copy_(kept)

    def _kept(self) -> Iterator[tuple[Tensor, Tensor]]:
        # It fits: 64 rows, the least there are, of inputs and updates are no fewer numbers than the states.
        at = 0
        for state in (self.s, self.conv):
            yield state, self._rows[at : at + state.numel()].view(state.shape)
            at += state.numel()

    @property
    def state_bytes(self) -> int:
        return self.s.nbytes + self.conv.nbytes

    @property
    def row_bytes(self) -> int:
        rows = (self.inputs, self.k, self.u, self.decay, self.q, self.v, self.beta, self.out)
        return sum(tensor.nbytes for tensor in rows)


class Splits:
    """Partial results of split attention for the widest pass."""

    def __init__(self, order: SplitOrder, kv_heads: int, packed_rows: int, head_dim: int, device: torch.device) -> None:
        self.order = order
        count = order.splits * kv_heads * packed_rows
        self.out = torch.zeros(count * head_dim, device=device)
        self.stats = torch.zeros(count * 2, device=device)
        self.q = torch.zeros(kv_heads * packed_rows * head_dim, dtype=torch.float16, device=device)

    @property
    def nbytes(self) -> int:
        return self.out.nbytes + self.stats.nbytes + self.q.nbytes


class TargetBuffers:
    """What target passes need for a context of `context` positions and trees of up to `capacity` nodes."""

    def __init__(self, target: DeviceTarget, context: int, capacity: int, taps: tuple[int, ...]) -> None:
        device, config = target.device.torch_device, target.config
        linear = [block.mixer for block in target.blk]
        inputs = [mixer.inputs for mixer in linear] + [block.ffn.gate_up for block in target.blk]
        outputs = [_out(mixer) for mixer in linear]
        outputs += [block.ffn.down for block in target.blk]
        self.capacity = capacity
        self.slots = context + MAX_NODES
        self.kv = KeyValues.empty(
            len(config.of(kinds.Attention)), target.heads.kv_heads, self.slots, target.heads.head_dim, device
        )
        self.delta = DeltaMemory(target.delta, len(config.of(kinds.DeltaNet)), capacity, device)
        card = target.device.card
        order = SplitOrder.of(target.heads, self.slots, card.multiprocessors, card.shared_bytes)
        self.splits = Splits(
            order, target.heads.kv_heads, target.heads.packed_rows(PASS_ROWS), target.heads.head_dim, device
        )
        self.h = torch.zeros(PASS_ROWS, config.embedding_length, device=device)
        self.acts = acts_for(max(p.columns for p in (*inputs, *outputs)), device)
        self.wide = planes_for(inputs, PASS_ROWS, device)
        self.narrow = planes_for(outputs, PASS_ROWS, device)
        self.taps = taps
        self.tap_width = len(taps) * config.embedding_length
        self.features = torch.zeros(capacity, max(self.tap_width, 1), device=device)
        self.one = torch.ones(1, dtype=torch.int32, device=device)  # the count of a single row

    def grow(self, target: DeviceTarget, capacity: int) -> None:
        """Room for larger trees; committed states stay, rows of the last pass do not."""
        old, device = self.delta, target.device.torch_device
        # All of it before anything changes: where the card is full, trees of the size there was still go.
        delta = DeltaMemory(target.delta, len(target.config.of(kinds.DeltaNet)), capacity, device, (old.s, old.conv))
        features = torch.zeros(capacity, max(self.tap_width, 1), device=device)
        self.delta, self.features, self.capacity = delta, features, capacity

    @property
    def scratch_bytes(self) -> int:
        tensors = (self.h, self.acts.q8, self.acts.f16, self.wide, self.narrow, self.features)
        return sum(tensor.nbytes for tensor in tensors) + self.splits.nbytes


class ChunkBuffers:
    """What prompts are read in: `rows` at a time at most. Mixer, FFN and drafter take turns in one arena."""

    def __init__(self, target: DeviceTarget, rows: int, draft: DeviceDraft | None) -> None:
        device, config, shape, heads = target.device.torch_device, target.config, target.delta, target.heads
        half, full = torch.float16, torch.float32
        width = config.embedding_length
        self.rows = rows
        self._library_bytes = LIBRARY_BYTES if target.device.card.shared_bytes > 200 << 10 else OLDER_LIBRARY_BYTES
        self.chunks = -(-rows // PASS_ROWS)
        self.padded = padded = self.chunks * PASS_ROWS
        # A range of the FFN's columns whose three weights fit one after the other: whole groups, as even as can be.
        groups = groups_of(target.blk[0].ffn.width)
        most = WEIGHT_BYTES // (2 * max(width, GROUP) * GROUP)
        self.ffn_width = min(-(-groups // -(-groups // most)) * GROUP, target.blk[0].ffn.width)

        self.counts = torch.zeros(2, dtype=torch.int32, device=device)
        self.encoder: Tensor | None = None
        self.tokens = torch.zeros(rows, dtype=torch.int32, device=device)
        self.h = torch.zeros(rows, width, device=device)
        self.x = torch.zeros(rows, width, dtype=half, device=device)
        self.weights = torch.zeros(self._largest(target, draft), dtype=half, device=device)

        values = shape.value_heads * DIM
        first = max(4 * shape.channels, 2 * (2 * values + shape.value_heads * PASS_ROWS))  # bytes of a row
        delta = (
            ((padded, first), torch.uint8),
            ((rows, values), half),
            ((rows, 2 * shape.value_heads), full),
            ((shape.key_heads, padded, DIM), half),
            ((shape.key_heads, padded, DIM), half),
            ((shape.value_heads, padded, DIM), half),
            ((shape.value_heads, padded), full),
            ((shape.value_heads, padded), full),
        )
        products = (
            ((shape.value_heads, padded, DIM), half),
            ((shape.value_heads, padded, PASS_ROWS), half),
            ((padded, values), half),
        )
        attention = (
            ((rows, 2 * (heads.heads + heads.kv_heads) * heads.head_dim), full),
            ((heads.kv_heads, rows * heads.group, heads.head_dim), half),
        )
        ffn = (((rows, self.ffn_width), half), ((rows, self.ffn_width), half))
        drafting: tuple[Wanted, ...] = ()
        if draft is not None:
            context = draft.contexts[0].count * 2 * draft.heads.kv_heads * draft.heads.head_dim
            encoded = draft.config.embedding_length
            drafting = (((rows, width), half), ((rows, encoded), half), ((rows, context), full))
            self.encoder = torch.zeros(rows, encoded, device=device)
        self.arena = Arena(max(map(Arena.need, (delta, products, attention, ffn, drafting))), device)
        mixed, self.z, self.gates, self.q, self.k, self.v, self.decay, self.beta = self.arena.carve(*delta)
        self.qkv = mixed.view(-1)[: 4 * rows * shape.channels].view(full).view(rows, shape.channels)
        self.w, self.p, self.out = self.arena.carve(*products)
        self.projected, self.queries = self.arena.carve(*attention)
        self.ffn_gate, self.ffn_up = self.arena.carve(*ffn)
        if draft is not None:
            self.tapped, self.encoded, self.context = self.arena.carve(*drafting)

    @staticmethod
    def _largest(target: DeviceTarget, draft: DeviceDraft | None) -> int:
        """Elements of the largest matrix, or what a part of one may take."""
        every = [
            p
            for block in target.blk
            for p in (block.mixer.inputs, _out(block.mixer), block.ffn.gate_up, block.ffn.down)
        ]
        every += [draft.fc, *(context.projection for context in draft.contexts)] if draft else []
        sizes = (blocks_of(m.rows) * ROWS * groups_of(m.columns) * GROUP for p in every for m in p.matrices)
        return min(max(sizes), WEIGHT_BYTES // 2)

    @property
    def count(self) -> At:
        """Rows of the chunk and its first position, as kernels read them."""
        return At(self.counts, 0)

    def begin(self, tokens: Sequence[int], first: int) -> None:
        """Note the rows to come."""
        self.counts[:] = torch.tensor([len(tokens), first], dtype=torch.int32)
        self.tokens[: len(tokens)] = torch.tensor(tokens, dtype=torch.int32)

    @property
    def nbytes(self) -> int:
        tensors = [self.counts, self.tokens, self.h, self.x, self.weights, self.arena.bytes]
        own = sum(tensor.nbytes for tensor in tensors) + (0 if self.encoder is None else self.encoder.nbytes)
        return own + self._library_bytes


class DraftBuffers:
    """What the drafter needs beside a target's buffers: its own cache, block and waiting features."""

    def __init__(self, draft: DeviceDraft, context: int) -> None:
        device, config = draft.device.torch_device, draft.config
        inputs = [layer.inputs for layer in draft.layers] + [ffn.gate_up for ffn in draft.ffn]
        inputs += [part.projection for part in draft.contexts]
        outputs = [layer.attn_output for layer in draft.layers] + [ffn.down for ffn in draft.ffn] + [draft.fc]
        self.block = config.block_size
        self.slots = context + self.block
        self.kv = KeyValues.empty(config.block_count, config.head_count_kv, self.slots, config.key_length, device)
        card = draft.device.card
        order = SplitOrder.of(draft.heads, self.slots, card.multiprocessors, card.shared_bytes)
        self.splits = Splits(order, config.head_count_kv, draft.heads.packed_rows(PASS_ROWS), config.key_length, device)
        self.h = torch.zeros(PASS_ROWS, config.embedding_length, device=device)
        self.acts = acts_for(max(p.columns for p in (*inputs, *outputs)), device)
        self.wide = planes_for(inputs, PASS_ROWS, device)
        self.narrow = planes_for(outputs, PASS_ROWS, device)
        self.waiting = torch.zeros(WAITING_ROWS, draft.fc.columns, device=device)
        self.counts = torch.tensor([self.block, PASS_ROWS], dtype=torch.int32, device=device)

    @property
    def scratch_bytes(self) -> int:
        tensors = (self.h, self.acts.q8, self.acts.f16, self.wide, self.narrow, self.waiting, self.counts)
        return sum(tensor.nbytes for tensor in tensors) + self.splits.nbytes
