"""One layer of a pass: the launches of its parts and norms, in the order of `LayerSpec.residuals`."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

from dflash_core.backends.cuda.block import Block
from dflash_core.backends.cuda.launch import At, Launch
from dflash_core.backends.cuda.layers.base import Pass, PassMixer
from dflash_core.backends.cuda.layers.norm import Added, join_launch, norm_launch


def block_launches(
    block: Block,
    mixer: PassMixer,
    scope: Pass,
    eps: float,
    before: Added | None,
    captured: At | None = None,
    captured_width: int = 0,
) -> Generator[Launch, None, Added]:
    """The layer, whose first norm adds `before`: what the layer before it has left. Returns what this one leaves.

    `captured`: where the first norm also writes the sum, in rows of `captured_width`.
    """
    buffers, rows = scope.buffers, scope.rows
    for residual in block.residuals:
        given: list[Added] = []
        for branch in residual.branches:
            part = mixer if branch.ffn is None else branch.ffn
            yield norm_launch(
                buffers.h, branch.norm, eps, rows, buffers.acts, part.inputs, scope.count, scope.node0,
                added=before, captured=captured, captured_width=captured_width,
                normed=branch.ffn.normed(buffers) if branch.ffn else None,
                normed_by=branch.ffn.normed_by if branch.ffn else None,
            )  # fmt: skip
            before = captured = None
            own = replace(scope, buffers=buffers.aside) if given else scope
            yield from part.launches(own)
            bias = mixer.out_bias if branch.ffn is None else None
            given.append(Added(part.out.split_k, own.buffers.narrow, bias, branch.post_norm))
        first, *others = given
        for other in others:
            yield join_launch(first, other, rows, buffers.h.shape[1], eps, scope.count, scope.node0)
            first = Added(1, first.partials)
        before = replace(
            first, norm=first.norm if residual.post_norm is None else residual.post_norm, factor=residual.factor
        )
    assert before is not None, "a layer without parts"
    return before
