"""A resumed sequence being copied to the card: the layers that a prompt needs first are copied first, and it is read
while the others arrive."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from dflash_core.backends.cuda.drafters.base import DeviceDrafter
from dflash_core.backends.cuda.launch import Copy, Load, Run
from dflash_core.backends.cuda.layers.base import Kept, MixerMemory
from dflash_core.backends.cuda.target_model import DeviceTarget
from dflash_core.snapshots.base import Rows, Snapshot

# Shares of the layers that have arrived with each part: few, so that copies are large, and even, as three passes of 24
# rows take about as long as the copies and should wait for none for long. Nothing hides the last: it is small.
SHARES = (0.17, 0.36, 0.54, 0.71, 0.86, 1.0)


def parts_of(layers: int) -> list[range]:
    """The layers of a target in the parts that they arrive in."""
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
    """What is to be copied: for each part of the target's layers, `drafted`, and what a drafter keeps of positions.

    `kept`: the mixers' tensors, `pages`: what they and the drafter keep of positions.
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
    """`waits`: for each of the `loads`, what makes the card wait for it. `kept`: copies of the
    mixers' tensors, as long as these are still what they were made of. `snapshot` is kept alive, as the card reads it.
    """

    waits: Sequence[Run]
    kept: Sequence[Kept]
    snapshot: Snapshot
    fresh: bool = True

    def part(self, part: int) -> None:
        """What is launched after this finds a part of the layers there."""
        self.waits[part]()

    def states(self) -> None:
        """What is launched after this finds all there but what a drafter keeps of positions."""
        self.waits[-2]()

    def whole(self) -> None:
        """What is launched after this finds everything there."""
        self.waits[-1]()
