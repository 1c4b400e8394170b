"""A Gemma assistant on a card: its launches over one sequence, whose keys and values are the target's own.

Every token of a draft stands at the position of the first and sees only the committed ones, so nothing is written. Of
its own it has only the target's hidden state after the newest position.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from dflash_core.arch.assistant import AssistantConfig
from dflash_core.backends.cuda.activations import Activations
from dflash_core.backends.cuda.block_pass import block_launches
from dflash_core.backends.cuda.chunk import Chunk
from dflash_core.backends.cuda.drafters.assistant_weights import DeviceAssistant
from dflash_core.backends.cuda.drafters.base import DraftMemory, Launcher, TargetSequence
from dflash_core.backends.cuda.drafters.caches import DraftCaches, overwritten
from dflash_core.backends.cuda.drafters.chains import BLOCK, ChainDrafter, HiddenRing, join_warps
from dflash_core.backends.cuda.kv import KVCache
from dflash_core.backends.cuda.launch import WARP, At, Launch, ceil_div
from dflash_core.backends.cuda.layers.attention import COMBINE_THREADS, AttentionLayers
from dflash_core.backends.cuda.layers.base import Pass, PassBuffers, PassMixer, Upload
from dflash_core.backends.cuda.layers.cache_memory import slots_of
from dflash_core.backends.cuda.layers.head import Head
from dflash_core.backends.cuda.layers.norm import Added, norm_launch
from dflash_core.backends.cuda.layers.split_attention import PREPARE_WARPS, SplitLaunch
from dflash_core.backends.cuda.layers.splits import Splits
from dflash_core.backends.cuda.products import Arena, TensorSpec
from dflash_core.backends.cuda.projection import AnyProjection, Projection
from dflash_core.backends.cuda.repack import GROUP
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.cache_types import F16, CachePair
from dflash_core.drafters.assistant import NEEDS_KEYS, capabilities
from dflash_core.drafters.capabilities import Capabilities


class AssistantMemory:
    """An assistant's memory for `context` positions, without weights. `hidden`, `tokens`: see `HiddenRing`."""

    def __init__(self, draft: DeviceAssistant, context: int, arena: Arena, own: Arena, kv: CachePair) -> None:
        device, positions = draft.device.torch_device, context + BLOCK
        ring = HiddenRing(draft.config.target_width, positions, device)
        self.hidden, self.tokens = ring.hidden, ring.tokens
        self.caches = DraftCaches([ring.layer], BLOCK, positions)
        self.buffers = PassBuffers(draft.config.embedding_length, *draft.projections(), own, arena)
        orders = draft.split_orders(slots_of(context), kv)
        self.splits = [
            Splits(order, mixer.heads, self.buffers.inside) for order, mixer in zip(orders, draft.mixers, strict=True)
        ]
        self.one = torch.ones(1, dtype=torch.int32, device=device)

    @property
    def nbytes(self) -> Mapping[str, int]:
        return {"drafter KV": self.hidden.nbytes}


@dataclass(frozen=True, slots=True)
class ReadingBranch(PassMixer):
    """Implements `layers.base.PassMixer` for one row of queries, which sees the committed positions in `kv`."""

    layers: AttentionLayers
    kv: KVCache
    place: int
    splits: Splits

    out_bias = None

    @property
    def inputs(self) -> Projection:
        return self.layers.weights[0].inputs

    @property
    def out(self) -> Projection:
        return self.layers.weights[0].out

    def launches(self, scope: Pass) -> Iterator[Launch]:
        layers, splits, buffers, state = self.layers, self.splits, scope.buffers, scope.state
        heads, weights = layers.heads, layers.weights[0]
        split = SplitLaunch.of(heads, splits.order, 1, layers.device.card.shared_bytes)
        defines = {**split.defines, **layers.defines, **self.kv.defines, "SPLIT_K": self.inputs.split_k}
        one, kv_heads, cache = np.int32(1), np.int32(heads.kv_heads), self.kv.layer(self.place)
        yield from self.inputs.launches(buffers.acts, buffers.wide, 1)
        yield Launch(
            "mtp.cu", "mtp_prepare", defines, (ceil_div(heads.heads, PREPARE_WARPS), 1), WARP * PREPARE_WARPS,
            [state.pointer, np.int32(-1), np.int32(0), buffers.wide, one, kv_heads, weights.q_norm, weights.k_norm,
             layers.frequencies, np.float32(layers.spec.eps), layers.query_scale, splits.q, *cache],
        )  # fmt: skip
        # Without its own position, which a window counts too.
        most = max(layers.spec.window - 1, 0)
        yield Launch(
            "mtp.cu", "mtp_split", defines, split.grid, split.block,
            [state.pointer, np.int32(0), np.int32(0), np.int32(most), one, splits.q, *cache, splits.out,
             splits.stats],
            split.shared,
        )  # fmt: skip
        yield Launch(
            "mtp.cu", "mtp_combine", defines, ceil_div(heads.heads * heads.head_dim, GROUP), COMBINE_THREADS,
            [splits.out, splits.stats, np.int32(splits.order.parts), buffers.wide, one, kv_heads,
             *self.out.act_args(buffers.acts)],
        )  # fmt: skip
        yield from self.out.launches(buffers.acts, buffers.narrow, 1)


class Assistant(ChainDrafter):
    """Implements `drafters.base.DeviceDrafter`."""

    needs = NEEDS_KEYS

    def __init__(
        self, draft: DeviceAssistant, target: DeviceTarget, memory: AssistantMemory, sequence: TargetSequence
    ) -> None:
        self.draft, self.target, self.memory = draft, target, memory
        self.captured, self.state, self.caches = sequence.captured, sequence.state, memory.caches
        self.embedding, self._reaches = sequence.embedding, sequence.reaches
        self.branches = [
            ReadingBranch(mixer, *sequence.keys(source), splits)
            for mixer, source, splits in zip(draft.mixers, draft.config.sources, memory.splits, strict=True)
        ]
        self.one_row = At(memory.one, 0)

    @property
    def ring(self) -> AssistantMemory:
        return self.memory

    def update_launches(self, rows: int, row0: int = 0) -> list[Launch]:
        """None: what is committed is in the target's cache, and in the ring."""
        return []

    @contextmanager
    def standing(self, at: int | None, launch: Launcher, **fields: float) -> Iterator[None]:
        """As for other drafters. Raises ContextError if a ring of the target no longer has what a draft there reads."""
        if at is not None and not self._reaches(at, self.length):
            raise overwritten(at)
        with super().standing(at, launch, **fields):
            yield

    def token_launches(self, head: Head, depth: int) -> list[Launch]:
        return list(self._token(head, depth))

    def _token(self, head: Head, depth: int) -> Iterator[Launch]:
        draft, buffers, eps = self.draft, self.memory.buffers, self.draft.config.rms_eps
        pre, post, spec = draft.pre_projection, draft.post_projection, self.target.spec
        state, slots = self.memory.hidden, len(self.memory.hidden)
        if depth:  # the activations of the token before are still there; its logits are no longer needed
            yield from post.launches(buffers.acts, buffers.wide, 1)
            state, slots = buffers.wide, 1
        width, split_k = draft.config.target_width, post.split_k if depth else 0
        yield Launch(
            "assistant_join.cu", "assistant_join",
            {"FORMAT": self.embedding.type, "WIDTH": width, "SCALE": spec.embedding_scale, "SPLIT_K": split_k,
             **pre.forms},
            1, WARP * join_warps(width),
            [self.state.pointer, np.int32(depth), self.embedding.blocks, state, np.int32(slots),
             self.target.output_norm, np.float32(spec.rms_eps), *pre.act_args(buffers.acts)],
        )  # fmt: skip
        yield from pre.launches(buffers.acts, buffers.narrow, 1)
        before = Added(pre.split_k, buffers.narrow, fresh=True)
        scope = Pass(self.state, buffers, 1, 0, self.one_row)
        for block, branch in zip(draft.blk, self.branches, strict=True):
            before = yield from block_launches(block, branch, scope, eps, before)
        readers = sorted((draft.head.reader(head), post), key=lambda one: not one.plan.needs_q8)
        yield norm_launch(
            buffers.h, draft.output_norm, eps, 1, buffers.acts, readers[0], self.one_row, 0,
            added=before, both=True, normed=draft.head.normed(buffers),
        )  # fmt: skip
        yield from draft.head.launches(head, buffers, depth)

    def logits_row(self, head: Head) -> torch.Tensor:
        return self.draft.head.on_host(head)

    def chunk(self, chunk: Chunk) -> AssistantChunk:
        return AssistantChunk(self, chunk)


class AssistantChunk:
    """A chunk of a prompt: the target's last rows."""

    def __init__(self, drafter: Assistant, chunk: Chunk) -> None:
        self._drafter, self._chunk = drafter, chunk

    def capture(self, layer: int, n: int) -> None:
        """Does nothing: `update_cache` reads the last layer's output in chunk.h."""

    def update_cache(self, n: int) -> None:
        """Store the last rows; they are already committed."""
        state = self._drafter.state
        state.push()
        self._drafter.keep(self._chunk.h[:n])
        state.host["draft_length"] = state.host["length"]


class AssistantOnDevice:
    """Implements `drafters.base.OnDevice`: an assistant's weights, and the target whose embedding and norm it uses."""

    def __init__(self, weights: DeviceAssistant, target: DeviceTarget) -> None:
        self.weights, self.target = weights, target

    @property
    def capabilities(self) -> Capabilities:
        return capabilities(self.weights.config, on_device=True)

    def pass_buffers(self, context: int, kv: CachePair = F16) -> Sequence[TensorSpec]:
        weights = self.weights
        orders = weights.split_orders(slots_of(context), kv)
        inside = [Splits.pieces(order, mixer.heads) for order, mixer in zip(orders, weights.mixers, strict=True)]
        inside += [ffn.pass_buffers for block in weights.blk for ffn in block.feed_forwards]
        return [*PassBuffers.partials(*weights.projections()), *max(inside, key=Arena.need)]

    def own_buffers(self) -> Sequence[TensorSpec]:
        return PassBuffers.lasting(self.weights.config.embedding_length, *self.weights.projections())

    def memory(self, context: int, arena: Arena, own: Arena, kv: CachePair = F16) -> AssistantMemory:
        return AssistantMemory(self.weights, context, arena, own, kv)

    def drafter(self, memory: DraftMemory, sequence: TargetSequence) -> Assistant:
        assert isinstance(memory, AssistantMemory), "this memory belongs to a different kind of drafter"
        return Assistant(self.weights, self.target, memory, sequence)

    def projections(self) -> Sequence[AnyProjection]:
        inputs, outputs = self.weights.projections()
        return [*inputs, *outputs]

    def chunk_projections(self) -> Sequence[Projection]:
        return ()

    def chunk_buffers(self, rows: int) -> Sequence[Sequence[TensorSpec]]:
        return ()

    def chunk_lasting(self, rows: int) -> Sequence[TensorSpec]:
        return ()


def on_device(
    config: AssistantConfig, upload: Upload, target: DeviceTarget, activations: Activations
) -> AssistantOnDevice:
    """See `backends.cuda.drafters.kinds`."""
    return AssistantOnDevice(DeviceAssistant(target.device, upload, config, activations), target)
