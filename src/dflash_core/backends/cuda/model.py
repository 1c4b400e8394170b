"""A pair's weights on the device. Attributes carry the GGUF tensor names; matrices that share an input are one
projection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from dflash_core.arch import kinds
from dflash_core.arch.spec import ModelSpec
from dflash_core.backends.cuda.attention import HeadShape
from dflash_core.backends.cuda.gdn import DeltaShape
from dflash_core.backends.cuda.launch import Device
from dflash_core.backends.cuda.projection import Matrix, Projection
from dflash_core.backends.cuda.repack import ROWS
from dflash_core.backends.cuda.state import MAX_DEPTH
from dflash_core.config import DraftConfig
from dflash_core.errors import UnsupportedError
from dflash_core.models.norm import Rotary


class Upload(Protocol):
    """Tensors of a weight file, brought to the device."""

    def matrix(self, name: str) -> Matrix:
        """As super-tiles. Raises UnsupportedError for a type without a kernel."""

    def vector(self, name: str) -> Tensor:
        """As f32, in torch order."""

    def raw(self, name: str) -> tuple[str, Tensor]:
        """Type and blocks as they lie in the file, (rows, bytes per row)."""


class FeedForward:
    """SwiGLU; rows of gate come before rows of up."""

    def __init__(self, device: Device, upload: Upload, prefix: str, half: bool) -> None:
        gate, up = upload.matrix(prefix + "ffn_gate.weight"), upload.matrix(prefix + "ffn_up.weight")
        self.gate_up = Projection(device, [gate, up], half=half)
        self.down = Projection(device, [upload.matrix(prefix + "ffn_down.weight")], half=half)
        self.width = gate.rows


class GatedDeltaNet:
    """A linear-attention layer."""

    def __init__(self, device: Device, upload: Upload, prefix: str, half: bool) -> None:
        names = ("attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta")
        self.inputs = Projection(device, [upload.matrix(f"{prefix}{name}.weight") for name in names], half=half)
        self.ssm_out = Projection(device, [upload.matrix(prefix + "ssm_out.weight")], half=half)
        self.ssm_conv1d = upload.vector(prefix + "ssm_conv1d.weight")
        self.ssm_a = upload.vector(prefix + "ssm_a")
        self.ssm_dt = upload.vector(prefix + "ssm_dt.bias")
        self.ssm_norm = upload.vector(prefix + "ssm_norm.weight")


class Attention:
    """A full-attention layer of the target, or a layer of the drafter: query, key and value in one projection."""

    def __init__(
        self, device: Device, upload: Upload, prefix: str, half: bool, pair: tuple[Matrix, Matrix] | None = None
    ) -> None:
        key_value = pair or (upload.matrix(prefix + "attn_k.weight"), upload.matrix(prefix + "attn_v.weight"))
        self.inputs = Projection(device, [upload.matrix(prefix + "attn_q.weight"), *key_value], half=half)
        self.attn_output = Projection(device, [upload.matrix(prefix + "attn_output.weight")], half=half)
        self.attn_q_norm = upload.vector(prefix + "attn_q_norm.weight")
        self.attn_k_norm = upload.vector(prefix + "attn_k_norm.weight")


class Block:
    """One layer of the target. `place` counts the layers of its kind before it: where its state lies."""

    def __init__(self, device: Device, upload: Upload, index: int, config: ModelSpec, half: bool) -> None:
        prefix = f"blk.{index}."
        layer = config.layers[index]
        full = isinstance(layer.mixer, kinds.Attention)
        self.place = config.mixers[layer.mixer].index(index)
        self.attn_norm = upload.vector(prefix + "attn_norm.weight")
        self.post_attention_norm = upload.vector(prefix + "post_attention_norm.weight")
        self.mixer: GatedDeltaNet | Attention = (Attention if full else GatedDeltaNet)(device, upload, prefix, half)
        self.ffn = FeedForward(device, upload, prefix, half)


class DeviceTarget:
    """The target's weights. `half`: f16 activations for every type, the exact path beside the int8 one."""

    def __init__(
        self,
        device: Device,
        upload: Upload,
        config: ModelSpec,
        half: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.device, self.config, self.half = device, config, half
        (d,), (a,) = config.of(kinds.DeltaNet)[:1], config.of(kinds.Attention)[:1]
        self.delta = DeltaShape.of(d.key_heads, d.value_heads, d.key_dim, d.value_dim, d.conv_kernel)
        self.heads = HeadShape(a.head_dim, a.heads, a.kv_heads, a.rotary)
        self.embedding_type, self.token_embd = upload.raw("token_embd.weight")
        self.blk: list[Block] = []
        for index in range(config.block_count):
            self.blk.append(Block(device, upload, index, config, half))
            if progress:
                progress(index + 1, config.block_count)
        self.output_norm = upload.vector("output_norm.weight")
        self.output: Matrix = upload.matrix("token_embd.weight" if config.tied_output else "output.weight")
        rotary = Rotary(a.rotary, a.rope_base, torch.float32)
        self.frequencies = rotary.frequencies.to(device.torch_device)


Pairs = list[tuple[Matrix, Matrix]]


@dataclass(frozen=True, slots=True)
class Context:
    """The projection that makes context keys and values of `count` draft layers from `first` on."""

    first: int
    count: int
    projection: Projection


class DeviceDraft:
    """The drafter's weights. Raises UnsupportedError for a block that is longer than one pass."""

    def __init__(self, device: Device, upload: Upload, config: DraftConfig, half: bool = False) -> None:
        if config.block_size > MAX_DEPTH:
            raise UnsupportedError(
                f"a drafter whose block has {config.block_size} positions, expected {MAX_DEPTH} at most on a card; "
                "use --device cpu"
            )
        self.device, self.config = device, config
        self.heads = HeadShape(config.key_length, config.head_count, config.head_count_kv, config.key_length)
        prefixes = [f"blk.{index}." for index in range(config.block_count)]
        self.fc = Projection(device, [upload.matrix("fc.weight")], half=half)
        self.enc_output_norm = upload.vector("enc.output_norm.weight")
        self.output_norm = upload.vector("output_norm.weight")
        pairs, whole = _side_by_side(
            [(upload.matrix(prefix + "attn_k.weight"), upload.matrix(prefix + "attn_v.weight")) for prefix in prefixes]
        )
        self.layers = [Attention(device, upload, p, half, pair) for p, pair in zip(prefixes, pairs)]
        self.ffn = [FeedForward(device, upload, prefix, half) for prefix in prefixes]
        self.attn_norm = [upload.vector(prefix + "attn_norm.weight") for prefix in prefixes]
        self.ffn_norm = [upload.vector(prefix + "ffn_norm.weight") for prefix in prefixes]
        self.k_norms = torch.stack([layer.attn_k_norm for layer in self.layers])
        self.contexts = _contexts(device, pairs, whole, half)
        self.frequencies = Rotary(config.key_length, config.rope_freq_base, torch.float32).frequencies.to(
            device.torch_device
        )


def _side_by_side(pairs: Pairs) -> tuple[Pairs, Matrix | None]:
    """Keys and values of all layers in one piece of memory, where they have one type: one launch makes them all."""
    flat = [matrix for pair in pairs for matrix in pair]
    first, rows = flat[0], sum(matrix.rows for matrix in flat)
    if any(matrix.type != first.type or matrix.rows % ROWS for matrix in flat):
        return pairs, None
    whole = Matrix(first.type, rows, first.columns, _joined([matrix.tiles for matrix in flat]))
    parts = torch.split(whole.tiles, [len(matrix.tiles) for matrix in flat])
    moved = iter([replace(matrix, tiles=part) for matrix, part in zip(flat, parts, strict=True)])
    return [(next(moved), next(moved)) for _ in pairs], whole


def _joined(parts: list[Tensor]) -> Tensor:
    """Parts one after the other: as they lie, where they were loaded one after the other."""
    first = parts[0]
    storage, end = first.untyped_storage().data_ptr(), first.data_ptr()
    for part in parts:
        if not storage or part.untyped_storage().data_ptr() != storage or part.data_ptr() != end:
            return torch.cat(parts)
        end += part.nbytes
    return first.as_strided((sum(map(len, parts)), *first.shape[1:]), first.stride())


def _contexts(device: Device, pairs: Pairs, whole: Matrix | None, half: bool) -> list[Context]:
    if whole is not None:
        return [Context(0, len(pairs), Projection(device, [whole], half=half))]
    return [Context(index, 1, Projection(device, pair, half=half)) for index, pair in enumerate(pairs)]
