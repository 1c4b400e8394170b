"""What a drafter can do, as plain data. No torch and no numpy here: screens need it before those are imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash_core.drafters.kinds import KINDS

if TYPE_CHECKING:
    from dflash_core.knobs import Knobs

BLOCK_KNOBS = frozenset({"p_min", "tree_temperature", "tree_width", "chain_seed", "draft_window"})
"""The knobs that a block drafter supports."""
DRAFT_KNOBS = BLOCK_KNOBS | {"mtp_depth", "draft", "by_parent", "draft_vocabulary"}
"""The knobs that have an effect only with a drafter."""
ON_DEVICE = frozenset({"draft_vocabulary"})
"""Those that only a drafter inside a device's own step supports."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """`kind`: its name in the registry. `block`: positions of its block, the anchor included, so that it proposes for
    `depths` positions at most. `on_device`: it proposes inside the device's own step; otherwise the host asks it before
    each step, in lock-step. `captured_layers`: target layers whose outputs it reads. `knobs`: those of DRAFT_KNOBS that
    it supports. `parts`: for several drafters loaded together, the capabilities of each.
    """

    kind: str
    block: int
    on_device: bool = False
    captured_layers: tuple[int, ...] = ()
    knobs: frozenset[str] = BLOCK_KNOBS
    parts: tuple[Capabilities, ...] = ()

    @property
    def depths(self) -> int:
        """Positions below the root that it proposes tokens for, at most."""
        return self.block - 1

    @property
    def words(self) -> str:
        """What a message calls the drafter, or several."""
        return "the loaded drafters" if self.parts else f"the {self.kind} drafter"

    def named(self, kind: str) -> Capabilities:
        """Among several drafters, the capabilities of the one of that kind; these if there is none."""
        return next((one for one in self.parts if one.kind == kind), self)

    @property
    def depth_knob(self) -> str:
        """The knob that limits its drafted tokens, for a drafter that runs a pass for each; else ""."""
        return KINDS[self.kind].depth_knob if self.kind in KINDS else ""

    def drafted(self, knobs: Knobs) -> int:
        """Positions that it proposes for with these knobs."""
        return min(self.depths, getattr(knobs, self.depth_knob)) if self.depth_knob else self.depths
