"""One target pass over up to 64 nodes of a tree: the launches of the model's forward pass, in order."""

from __future__ import annotations

from collections.abc import Iterator

from dflash_core.backends.cuda.block_pass import block_launches
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
    scope = Pass(state, buffers, rows, node0, state.at("n"), memory.window if windowed else None, memory.given)
    yield target.embedding.launch(
        buffers.h, state.at("token"), scope.count, rows, node0, scale=target.spec.embedding_scale
    )
    if target.per_layer is not None:
        reader = target.per_layer.projection
        yield norm_launch(buffers.h, None, eps, rows, buffers.acts, reader, scope.count, node0)
        yield from target.per_layer.launches(scope)
    before: Added | None = None
    for index, block in enumerate(target.blk):
        mixer = memory.mixers[block.group].layer(block.place)
        # The first norm adds the previous layer's result: the sum is that layer's output, which may be captured.
        before = yield from block_launches(block, mixer, scope, eps, before, captured.at(index - 1), captured.width)
    yield norm_launch(
        buffers.h, target.output_norm, eps, rows, buffers.acts, head, scope.count, node0,
        added=before, captured=captured.at(len(target.blk) - 1), captured_width=captured.width,
    )  # fmt: skip
