"""One target pass over up to 64 nodes of a tree: the launches of the model's forward pass, in order."""

from __future__ import annotations

from collections.abc import Iterator

from dflash_core.backends.cuda.device_state import DeviceState
from dflash_core.backends.cuda.launch import Launch
from dflash_core.backends.cuda.layers.base import Pass
from dflash_core.backends.cuda.layers.norm import Added, norm_launch
from dflash_core.backends.cuda.projection import AnyProjection
from dflash_core.backends.cuda.sequence import SequenceMemory
from dflash_core.backends.cuda.target_model import DeviceTarget


def target_pass(
    target: DeviceTarget,
    memory: SequenceMemory,
    state: DeviceState,
    rows: int,
    node0: int,
    head: AnyProjection,
    *,
    windowed: bool,
) -> Iterator[Launch]:
    """A pass of `rows` rows over nodes of the tree in `state`, from node0 on: from the embedding of the tokens to the
    activations of `head`."""
    buffers, captured, eps = memory.buffers, memory.captured, target.spec.rms_eps
    scope = Pass(state, buffers, rows, node0, state.at("n"), memory.window if windowed else None)
    yield target.embedding.launch(
        buffers.h, state.at("token"), scope.count, rows, node0, scale=target.spec.embedding_scale
    )
    before: Added | None = None
    for index, block in enumerate(target.blk):
        mixer, ffn = memory.mixers[block.group].layer(block.place), block.ffn
        # The norm first adds the previous layer's result: the sum is that layer's output, which may be captured.
        yield norm_launch(
            buffers.h, block.attn_norm, eps, rows, buffers.acts, mixer.inputs, scope.count, node0,
            added=before, captured=captured.at(index - 1), captured_width=captured.width,
        )  # fmt: skip
        yield from mixer.launches(scope)
        yield norm_launch(
            buffers.h, block.ffn_norm, eps, rows, buffers.acts, ffn.inputs, scope.count, node0,
            added=Added(mixer.out, buffers.narrow, mixer.out_bias, block.post_attn_norm),
            captured_width=captured.width, normed=ffn.normed(buffers),
        )  # fmt: skip
        yield from ffn.launches(scope)
        before = Added(ffn.out, buffers.narrow, norm=block.post_ffn_norm, factor=block.output_scale)
    yield norm_launch(
        buffers.h, target.output_norm, eps, rows, buffers.acts, head, scope.count, node0,
        added=before, captured=captured.at(len(target.blk) - 1), captured_width=captured.width,
    )  # fmt: skip
