"""One target pass over up to 64 nodes of a tree: the launches of the model's forward pass, in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dflash_core.backends.cuda.device_state import DeviceState
from dflash_core.backends.cuda.launch import Launch
from dflash_core.backends.cuda.layers.base import Pass
from dflash_core.backends.cuda.layers.norm import Added, join_launch, norm_launch
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
        taken = captured.at(index - 1)
        for residual in block.residuals:
            given: list[Added] = []
            for branch in residual.branches:
                part = mixer if branch.ffn is None else branch.ffn
                yield norm_launch(
                    buffers.h, branch.norm, eps, rows, buffers.acts, part.inputs, scope.count, node0,
                    added=before, captured=taken, captured_width=captured.width,
                    normed=branch.ffn.normed(buffers) if branch.ffn else None,
                    normed_by=branch.ffn.normed_by if branch.ffn else None,
                )  # fmt: skip
                before = taken = None
                own = replace(scope, buffers=buffers.aside) if given else scope
                yield from part.launches(own)
                bias = mixer.out_bias if branch.ffn is None else None
                given.append(Added(part.out.split_k, own.buffers.narrow, bias, branch.post_norm))
            first, *others = given
            for other in others:
                yield join_launch(first, other, rows, buffers.h.shape[1], eps, scope.count, node0)
                first = Added(1, first.partials)
            before = replace(
                first, norm=first.norm if residual.post_norm is None else residual.post_norm, factor=residual.factor
            )
    yield norm_launch(
        buffers.h, target.output_norm, eps, rows, buffers.acts, head, scope.count, node0,
        added=before, captured=captured.at(len(target.blk) - 1), captured_width=captured.width,
    )  # fmt: skip
