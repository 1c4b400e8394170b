"""One target pass over up to 64 nodes of a tree: the launches of the model's forward pass, in order."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace

from dflash_core.backends.cuda.launch import At, Launch
from dflash_core.backends.cuda.layers.base import Branch, Pass
from dflash_core.backends.cuda.layers.norm import Added, norm_launch
from dflash_core.backends.cuda.projection import AnyProjection
from dflash_core.backends.cuda.sequence import SequenceMemory
from dflash_core.backends.cuda.target_model import Block, DeviceTarget


def target_pass(
    target: DeviceTarget, memory: SequenceMemory, rows: int, node0: int, head: AnyProjection, *, windowed: bool
) -> Iterator[Launch]:
    """A pass of `rows` rows over nodes of the tree in the sequence's state, from node0 on: from the embedding of the
    tokens to the activations of `head`."""
    captured, state, window = memory.captured, memory.state, memory.window if windowed else None
    scope = Pass(state, memory.buffers, rows, node0, state.at("n"), target.spec.rms_eps, window, memory.given)
    scale = target.spec.embedding_scale
    yield target.embedding.launch(memory.buffers.h, state.at("token"), scope.count, rows, node0, scale=scale)
    if target.per_layer is not None:
        yield norm_launch(scope, None, target.per_layer.projection)
        yield from target.per_layer.launches(scope)
    before: Added | None = None
    for index, block in enumerate(target.blk):
        mixer = memory.mixers[block.group].layer(block.place)
        # The first norm adds the previous layer's result: the sum is that layer's output, which may be captured.
        before = yield from block_launches(block, mixer, scope, before, captured.at(index - 1), captured.width)
    last = captured.at(len(target.blk) - 1)
    yield norm_launch(scope, target.output_norm, head, added=before, captured=last, captured_width=captured.width)


def block_launches(
    block: Block, mixer: Branch, scope: Pass, before: Added | None, captured: At | None = None, captured_width: int = 0
) -> Generator[Launch, None, Added]:
    """One layer: its parts and norms in the order of `LayerSpec.residuals`. Its first norm adds `before`, what the
    layer before it has left. Returns what this one leaves.

    `captured`: where the first norm also writes the sum, in rows of `captured_width`.
    """
    buffers = scope.buffers
    for residual in block.residuals:
        given: list[Added] = []
        for branch in residual.branches:
            part = branch.ffn or mixer
            yield norm_launch(
                scope, branch.norm, part.inputs, added=before, captured=captured, captured_width=captured_width,
                normed=part.normed(buffers), normed_by=part.normed_by,
            )  # fmt: skip
            before = captured = None
            own = replace(scope, buffers=buffers.aside) if given else scope
            yield from part.launches(own)
            given.append(Added(part.out.split_k, own.buffers.narrow, part.out_bias, branch.post_norm))
        first, *others = given
        if others:
            (other,) = others
            before = replace(first, norm=residual.post_norm, other=other, first_norm=first.norm, factor=residual.factor)
        else:
            norm = first.norm if residual.post_norm is None else residual.post_norm
            before = replace(first, norm=norm, factor=residual.factor)
    assert before is not None, "a layer without parts"
    return before
