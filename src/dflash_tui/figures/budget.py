"""The budget of a turn, as the strip and the line under an answer show it."""

from __future__ import annotations

from dflash_core.knobs import Knobs


def shown_budget(knobs: Knobs) -> str:
    """The budget; "auto" where the program picks the tree, with its limit if the user has set one."""
    if knobs.mode != "auto" or knobs.policy == "fixed":
        return str(knobs.budget)
    return "auto" if knobs.cap is None else f"auto≤{knobs.cap}"
