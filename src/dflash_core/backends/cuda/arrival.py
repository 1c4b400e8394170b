"""A resumed sequence that is being copied to the card: the first layers are copied first, so that the prompt can be
processed while the others arrive."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from dflash_core.backends.cuda.drafters.base import DeviceDrafter
from dflash_core.backends.cuda.launch import Copy, Load, Run
from dflash_core.backends.cuda.layers.base import Kept, MixerMemory
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.snapshots.base import Rows, Snapshot

# The share of layers that has arrived after each part. There are few parts, so that copies are large. They are even,
# because three passes of 24 rows take about as long as the copies, and no pass should wait long for a part. The last
# part is small: no pass overlaps with it.
SHARES = (0.17, 0.36, 0.54, 0.71, 0.86, 1.0)


def parts_of(layers: int) -> list[range]:
    """The layers of a target, in the parts in which they arrive."""
    ends = [0, *(int(layers * share) for share in SHARES)]
    return [range(begin, end) for begin, end in itertools.pairwise(ends) if begin < end]


def loads(
    target: DeviceTarget,
    mixers: Sequence[MixerMemory],
    drafter: DeviceDrafter | None,
    kept: Sequence[Kept],
    drafted: Sequence[Copy],
    pages: Sequence[Rows],
) -> list[list[Load]]:
    """The copies to make, in order: one list per part of the target's layers, then `drafted`, then the drafter's
    per-position state.

    `kept`: the mixers' tensors; `pages`: per-position state of the mixers and of the drafter.
    """
    groups: list[list[Copy]] = [list(zip(memory.tensors, held)) for memory, held in zip(mixers, kept, strict=True)]
    positions = list[Copy]()
    for page in pages:
        rows = iter(page.tensors)
        for memory, group in zip(mixers, groups, strict=True):
            group += zip(memory.positions(page.begin, page.end), rows)
        if drafter is not None:
            positions += zip(drafter.positions(page.begin, page.end), rows)
    found = list[list[Load]]()
    for layers in parts_of(len(target.blk)):
        places = [[target.blk[layer].place for layer in layers if target.blk[layer].group == at]
                  for at in range(len(groups))]  # fmt: skip
        found.append([(group, slice(some[0], some[-1] + 1)) for group, some in zip(groups, places) if some])
    return [*found, [(drafted, slice(None))], [(positions, slice(None))]]


@dataclass(slots=True)
class Arrival:
    """`waits`: for each of the `loads`, a function that makes the card wait for it. `kept`: copies of the mixers'
    tensors, valid while `fresh` is true. `snapshot` is kept alive because the card reads from it.
    """

    waits: Sequence[Run]
    kept: Sequence[Kept]
    snapshot: Snapshot
    fresh: bool = True

    def part(self, part: int) -> None:
        """Make later launches wait until this part of the layers has arrived."""
        self.waits[part]()

    def states(self) -> None:
        """Make later launches wait until everything but the drafter's per-position state has arrived."""
        self.waits[-2]()

    def whole(self) -> None:
        """Make later launches wait until everything has arrived."""
        self.waits[-1]()
