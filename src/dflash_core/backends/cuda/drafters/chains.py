"""What drafters on a card have in common that draft one token after the other, from the target's hidden state after the
newest position: the ring of those states, and a draft as one chain of passes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from dflash_core.backends.base import Logits
from dflash_core.backends.cuda.drafters.base import DeviceDrafter, DraftCaches, Launcher, TargetSequence, draft_slots
from dflash_core.backends.cuda.kv import Layer
from dflash_core.backends.cuda.launch import Launch, ceil_div
from dflash_core.backends.cuda.layers.head import Head
from dflash_core.backends.cuda.repack import groups_of
from dflash_core.knobs import MAX_MTP_DEPTH, Knobs

BLOCK = 1 + MAX_MTP_DEPTH  # the root and the tokens of the longest draft
HIDDEN_WINDOW = 2  # a draft after `length` positions reads the hidden state of the last one
COPY_THREADS = 256
JOIN_WARPS = 20  # the most warps of a kernel that joins an embedding and a state


def join_warps(width: int) -> int:
    """Warps of mtp_join and assistant_join: as many as the registers allow, with equal numbers of groups."""
    groups = groups_of(2 * width)
    return ceil_div(groups, ceil_div(groups, JOIN_WARPS))


class ChainDrafter(DeviceDrafter):
    """The part of a drafter that these share. `captured`: the target's last layer.

    `hidden` (slots, width): the target's residual stream after the newest positions; `tokens`: the tokens there;
    position p is in slot p % slots.
    """

    block = BLOCK

    def __init__(self, sequence: TargetSequence, width: int, positions: int, cached: Sequence[Layer] = ()) -> None:
        """`width`: of the target's residual stream. `positions`: of the longest sequence, a draft included. `cached`:
        what it stores besides the ring."""
        self.captured, self.state = sequence.captured, sequence.state
        slots, on = draft_slots(HIDDEN_WINDOW, positions), sequence.captured.rows.device
        self.hidden = torch.zeros(slots, width, device=on)
        self.tokens = torch.zeros(slots, dtype=torch.int32, device=on)
        self.caches = DraftCaches([*cached, Layer((self.hidden[None],), HIDDEN_WINDOW)], BLOCK, positions)

    @abstractmethod
    def token_launches(self, head: Head, depth: int) -> Iterator[Launch]:
        """The pass that drafts the token at `depth`, which reads what the pass before has left."""

    def logits_row(self, head: Head) -> Tensor:
        """Logits (1, vocab) of the last pass, on the host."""
        return head.on_host(1)

    def passes(self, knobs: Knobs) -> int:
        return knobs.mtp_depth

    def propose_launches(self, head: Head, passes: int) -> list[Launch]:
        return [launch for depth in range(passes) for launch in self.token_launches(head, depth)]

    def commit_launches(self, width: int) -> list[Launch]:
        """Store the residual stream and the tokens of an accepted path of up to `width` nodes."""
        features, hidden = self.captured, self.hidden
        grid = (ceil_div(ceil_div(features.width, 4), COPY_THREADS), width)
        return [
            Launch("features.cu", "keep_hidden", {}, grid, COPY_THREADS,
                   [self.state.pointer, features.rows, hidden, self.tokens, features.width, len(hidden)])
        ]  # fmt: skip

    # ---- Driven from the host ------------------------------------------------------------------------------------

    def store(self, rows: Tensor) -> None:
        """Store the target's residual stream (n, hidden) after the last n committed positions."""
        slots = len(self.hidden)
        rows = rows[-slots:]
        first = (self.length - len(rows)) % slots
        ahead = min(len(rows), slots - first)
        self.hidden[first : first + ahead] = rows[:ahead]
        self.hidden[: len(rows) - ahead] = rows[ahead:]

    def logits(self, root: int, window: int, at: int | None, head: Head, launch: Launcher) -> Logits:
        return self.chain(root, MAX_MTP_DEPTH, at, head, launch)

    def chain(self, root: int, depths: int, at: int | None, head: Head, launch: Launcher) -> Logits:
        """The same as `logits` for a chain of `depths` tokens."""
        rows = list[Tensor]()
        with self.standing(at, launch, root=root, draft_depth=depths, inv_tree_temperature=1, draft_noise=0):
            for depth in range(depths):  # the next pass overwrites these logits
                launch(("draft", depth, head.vocab), partial(self.token_launches, head, depth))
                rows.append(self.logits_row(head))
        return torch.cat(rows).numpy()
