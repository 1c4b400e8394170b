"""A DFlash drafter's weights on the device, its convolutions (kernels/conv.cu), and its part of a chunk of a prompt."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from dflash_core.arch import draft_heads, kinds
from dflash_core.backends.cuda.activations import Activations, Rounding
from dflash_core.backends.cuda.chunk import HEADROOM, Chunk
from dflash_core.backends.cuda.drafters.base import ChunkDrafter, OnDevice
from dflash_core.backends.cuda.drafters.pairs import DeviceMarkov, DeviceSelector
from dflash_core.backends.cuda.launch import NO_INPUTS, WARP, At, Device, Inputs, Launch, ceil_div
from dflash_core.backends.cuda.layers.attention_weights import AttentionWeights, frequencies
from dflash_core.backends.cuda.layers.base import PassBuffers
from dflash_core.backends.cuda.layers.embedding import Embedding
from dflash_core.backends.cuda.layers.feed_forward import SwiGLU
from dflash_core.backends.cuda.layers.norm import chunk_norm
from dflash_core.backends.cuda.layers.split_attention import HeadShape
from dflash_core.backends.cuda.products import Op, TensorSpec
from dflash_core.backends.cuda.projection import Matrix, Projection
from dflash_core.backends.cuda.repack import GROUP, ROWS
from dflash_core.backends.cuda.state import MAX_DEPTH
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.backends.cuda.upload import Upload
from dflash_core.config import DraftConfig
from dflash_core.drafters.dflash import capabilities
from dflash_core.errors import Code, UnsupportedError

Pair = tuple[Matrix, Matrix]


@dataclass(frozen=True, slots=True)
class Context:
    """The projection that computes the context's keys and values for `count` draft layers from `first` on."""

    first: int
    count: int
    projection: Projection


class DraftLayer:
    """One layer. `window`: positions that a row sees, 0 for all; `causal`: a row sees none after its own."""

    def __init__(
        self, device: Device, upload: Upload, index: int, config: DraftConfig, activations: Activations, pair: Pair
    ) -> None:
        prefix, spec = f"blk.{index}.", config.layers[index]
        assert isinstance(spec.mixer, kinds.Attention), "a DFlash layer must have an attention mixer"
        assert isinstance(spec.ffn, kinds.SwiGLU), "a DFlash layer must have a SwiGLU"
        self.window, self.causal = spec.mixer.window, config.causal[index]
        self.mixer = AttentionWeights(device, upload, prefix, activations, spec.mixer, pair)
        self.ffn = SwiGLU(device, upload, prefix, spec.ffn, activations)
        self.attn_norm = upload.vector(prefix + "attn_norm.weight")
        self.ffn_norm = upload.vector(prefix + spec.ffn_norm)
        conv, rounding = config.heads.conv, activations.inputs
        self.attn_conv = DeviceConvolution(device, upload, prefix + "attn", conv, rounding) if conv else None
        self.ffn_conv = DeviceConvolution(device, upload, prefix + "ffn", conv, rounding) if conv else None


class DeviceDraft(OnDevice):
    """The drafter's weights. Raises UnsupportedError for a block that does not fit one pass."""

    def __init__(self, config: DraftConfig, upload: Upload, target: DeviceTarget, activations: Activations) -> None:
        if config.depths >= MAX_DEPTH:  # one pass adds a path with its root to the caches
            limit = MAX_DEPTH - config.depths + config.block_size - 1
            raise UnsupportedError(
                f"a drafter whose block has {config.block_size} positions, expected at most {limit} on a card; "
                "run it on the CPU",
                code=Code.NOT_ON_THIS_DEVICE,
            )
        self.device, self.config = target.device, config
        self.capabilities, self.width = capabilities(config, on_device=True), config.embedding_length
        device, activations = target.device, activations.drafter
        self.heads = HeadShape(config.key_length, config.head_count, config.head_count_kv, config.key_length)
        prefixes = [f"blk.{index}." for index in range(config.block_count)]
        self.fc = Projection(device, [upload.matrix("fc.weight")], activations.inputs)
        self.enc_output_norm = upload.vector("enc.output_norm.weight")
        norms = [upload.vector(name).view(-1, config.embedding_length) for name in config.tap_norms]
        self.aux_norm = _joined(norms) if norms else None
        self.output_norm = upload.vector("output_norm.weight")
        pairs, whole = _side_by_side(
            [(upload.matrix(prefix + "attn_k.weight"), upload.matrix(prefix + "attn_v.weight")) for prefix in prefixes]
        )
        self.layers = [DraftLayer(device, upload, index, config, activations, pair) for index, pair in enumerate(pairs)]
        self.k_norms = _joined([layer.mixer.k_norm[None] for layer in self.layers])
        # Where every layer norms the context by itself, each has its own input.
        self.contexts = _contexts(device, pairs, None if config.tap_norms else whole, activations)
        (mixer, *_) = (layer.mixer for layer in config.layers)
        assert isinstance(mixer, kinds.Attention), "a DFlash layer must have an attention mixer"
        self.frequencies = frequencies(mixer, device)
        self.embedding = Embedding(upload, self.width) if config.heads.own_embedding else None
        self.head = upload.matrix("output.weight") if config.heads.own_head else None
        self.pairs: DeviceSelector | DeviceMarkov | None = None
        if config.heads.selector:
            self.pairs = DeviceSelector(device, upload, config.heads.selector, activations.inputs)
        elif config.heads.markov:
            self.pairs = DeviceMarkov(upload, config.heads.markov)
        self.vocabulary = DraftVocabulary(upload, config)

    def chunk_projections(self) -> Sequence[Projection]:
        return [self.fc, *(context.projection for context in self.contexts)]

    def chunk_buffers(self, rows: int) -> Sequence[Sequence[TensorSpec]]:
        context = self.contexts[0].count * 2 * self.heads.kv_heads * self.heads.head_dim
        return ((((rows, context), torch.float32),),)

    def chunk_lasting(self, rows: int) -> Sequence[TensorSpec]:
        """Sums over captured layers times HEADROOM, (rows, hidden): each captured layer adds to them."""
        return [((rows, self.width), torch.float16)]

    def projections(self) -> tuple[list[Projection], list[Projection]]:
        inputs = [p for layer in self.layers for p in (layer.mixer.inputs, layer.ffn.inputs)]
        inputs += [context.projection for context in self.contexts]
        inputs += [self.pairs.hidden] if isinstance(self.pairs, DeviceSelector) else []
        inputs += [conv.proj for layer in self.layers for conv in (layer.attn_conv, layer.ffn_conv) if conv]
        return inputs, [*(p for layer in self.layers for p in (layer.mixer.out, layer.ffn.out)), self.fc]


def _side_by_side(pairs: list[Pair]) -> tuple[list[Pair], Matrix | None]:
    """Moves key and value matrices of all layers into one tensor if they have one type: then they need one launch."""
    flat = [matrix for pair in pairs for matrix in pair]
    first, rows = flat[0], sum(matrix.rows for matrix in flat)
    if any(matrix.type != first.type or matrix.rows % ROWS for matrix in flat):
        return pairs, None
    whole = Matrix(first.type, rows, first.columns, _joined([matrix.tiles for matrix in flat]))
    parts = torch.split(whole.tiles, [len(matrix.tiles) for matrix in flat])
    moved = iter([replace(matrix, tiles=part) for matrix, part in zip(flat, parts, strict=True)])
    return [(next(moved), next(moved)) for _ in pairs], whole


def _joined(parts: list[Tensor]) -> Tensor:
    """The parts concatenated: a view if they are already contiguous."""
    first = parts[0]
    if first.is_meta:  # torch.cat of meta tensors would load torch's compiler
        return first.new_empty((sum(map(len, parts)), *first.shape[1:]))
    storage, end = first.untyped_storage().data_ptr(), first.data_ptr()
    for part in parts:
        if part.untyped_storage().data_ptr() != storage or part.data_ptr() != end:
            return torch.cat(parts)
        end += part.nbytes
    return first.as_strided((sum(map(len, parts)), *first.shape[1:]), first.stride())


def _contexts(device: Device, pairs: list[Pair], whole: Matrix | None, activations: Activations) -> list[Context]:
    if whole is not None:
        return [Context(0, len(pairs), Projection(device, [whole], activations.inputs))]
    return [Context(index, 1, Projection(device, pair, activations.inputs)) for index, pair in enumerate(pairs)]


_TYPES = {"I32": ("i32", torch.int32), "I64": ("i64", torch.int64)}


class DraftVocabulary:
    """The mapping from a drafter's tokens to the target's; without a reduced vocabulary they are the same."""

    def __init__(self, upload: Upload, config: DraftConfig) -> None:
        self.vocab_size, self.offsets, self._ids = config.vocab_size or 0, config.has_offsets, None
        if config.heads.draft_vocab:
            self._type, self._ids = upload.raw("d2t")

    @property
    def inputs(self) -> Inputs:
        """More defines and arguments of the kernel `candidates`."""
        if self._ids is None:
            return NO_INPUTS
        return {"TARGETS": _TYPES[self._type][0], **({"OFFSETS": 1} if self.offsets else {})}, [self._ids]

    def spread(self, logits: Tensor) -> Tensor:
        """Logits of the first draft tokens (n, rows) as logits of the target's tokens (n, vocab): -inf for the rest."""
        if self._ids is None:
            return logits
        ids = self._ids.flatten().view(_TYPES[self._type][1]).cpu().long()
        ids = ids + torch.arange(len(ids)) if self.offsets else ids
        full = logits.new_full((len(logits), self.vocab_size), -math.inf)
        full[:, ids[: logits.shape[1]]] = logits
        return full


class ConvolutionRows(NamedTuple):
    """What the convolution before a sub-layer leaves for the one after it, for a block of `rows` rows: the normed input
    (rows, hidden), and its part of the second convolution's coefficients (rows, taps, groups)."""

    normed: Tensor
    later: Tensor

    @staticmethod
    def pieces(spec: draft_heads.Convolution, rows: int, hidden: int) -> Sequence[TensorSpec]:
        return [((rows, hidden), torch.float32), ((rows, spec.kernel, hidden // spec.group), torch.float32)]


class DeviceConvolution:
    """The two convolutions around one sub-layer. `name`: the tensor prefix, such as blk.0.attn."""

    def __init__(
        self, device: Device, upload: Upload, name: str, spec: draft_heads.Convolution, rounding: Rounding
    ) -> None:
        self.spec = spec
        self.base = upload.vector(name + "_conv_base")  # (2, taps, hidden)
        self.proj = Projection(device, [upload.matrix(name + "_conv_proj.weight")], rounding)

    @property
    def hidden(self) -> int:
        return self.base.shape[2]

    def _defines(self, split_k: int) -> dict[str, object]:
        return {"WIDTH": self.hidden, "TAPS": self.spec.kernel, "CHANNELS": self.spec.group, "SPLIT_K": split_k}

    def before(self, buffers: PassBuffers, scratch: ConvolutionRows, reader: Projection, rows: int) -> Iterator[Launch]:
        """Launches from the normed rows, and their activations for `proj`, to the activations of `reader`."""
        yield from self.proj.launches(buffers.acts, buffers.wide, rows)
        yield Launch(
            "conv.cu", "conv_before", {**self._defines(self.proj.split_k), **reader.forms},
            (ceil_div(self.hidden, GROUP), rows), WARP,
            [scratch.normed, buffers.wide, rows, self.proj.width, self.base, scratch.later,
             *reader.act_args(buffers.acts)],
        )  # fmt: skip

    def after(self, buffers: PassBuffers, scratch: ConvolutionRows, output: Projection, rows: int) -> Launch:
        """Add the sub-layer's output, convolved from the partials of `output`, to the residual stream."""
        other: Tensor | At = At(self.base, self.base[0].numel())
        return Launch(
            "conv.cu", "conv_after", self._defines(output.split_k), (ceil_div(self.hidden, GROUP), rows), WARP,
            [buffers.h, buffers.narrow, rows, other, scratch.later],
        )  # fmt: skip


class DFlashChunk(ChunkDrafter):
    """A chunk of a prompt as context: fc is applied in parts, one after each captured layer."""

    def __init__(
        self,
        draft: DeviceDraft,
        layers: Sequence[int],
        chunk: Chunk,
        store: Callable[[Context, Tensor, int], Iterable[Launch]],
    ) -> None:
        """`layers`: of the target, that are captured. `store`: the launches that append the rows of a context's
        projection (rows, width) to the caches."""
        products = chunk.products
        (encoder,) = chunk.lasting
        self.layers, self._chunk, self._encoder = tuple(layers), chunk, encoder
        (self._context,) = chunk.arena.carve(*draft.chunk_buffers(chunk.rows)[0])
        (fc,) = draft.fc.matrices
        width = chunk.h.shape[1]
        self._fc = [products.parts(fc, range(width * i, width * (i + 1))) for i in range(len(self.layers))]
        ops, count, norms, eps = chunk.ops, chunk.count, draft.aux_norm, draft.config.rms_eps
        if norms is None:
            # The rows are scaled by HEADROOM, a power of two: only the epsilon added to their mean square must change.
            self._norms = [chunk_norm(ops, count, encoder, draft.enc_output_norm, eps * HEADROOM**2, chunk.x)]
            self._taps = list[Op]()
        else:
            self._norms = [chunk_norm(ops, count, encoder, draft.enc_output_norm, eps, encoder)]
            self._taps = [chunk_norm(ops, count, chunk.h, norm, eps, chunk.x) for norm in norms]
        # Norms of the context by its layer, if layers norm it by themselves.
        own = [[] if norms is None else [draft.layers[context.first].attn_norm] for context in draft.contexts]
        self._parts = [
            (
                [chunk_norm(ops, count, encoder, norm, eps, chunk.x) for norm in own_norms],
                [products.parts(matrix) for matrix in context.projection.matrices],
                [ops.add(launch) for launch in store(context, self._context, chunk.rows)],
            )
            for context, own_norms in zip(draft.contexts, own, strict=True)
        ]

    def capture(self, layer: int, n: int) -> None:
        if layer not in self.layers:
            return
        rows = self._chunk.x[:n]  # scratch here: the next layer's norm overwrites it
        if self._taps:
            self._taps[self.layers.index(layer)]()
        else:
            torch.mul(self._chunk.h[:n], HEADROOM, out=rows)
        first, parts = layer == min(self.layers), self._fc[self.layers.index(layer)]
        self._chunk.products.multiply(rows, parts, self._encoder[:n], add=not first)

    def update_cache(self, n: int) -> None:
        for norm in self._norms:
            norm()
        for norms, matrices, stores in self._parts:
            for norm in norms:
                norm()
            self._chunk.products.multiply_all(self._chunk.x[:n], matrices, self._context[:n])
            for store in stores:
                store()
