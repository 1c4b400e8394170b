"""One setting against another: the two arms as a user types them."""

from __future__ import annotations

from dflash_core.errors import KnobError
from dflash_core.knobs import Knobs, described, parse_settings
from dflash_core.lab.grid import Arm, check
from dflash_core.limits import Limits

TREE_OR_CHAIN = "drafting=chain | drafting=tree"
"""The preset: the tree against the chain."""


def parse_pair(text: str, base: Knobs, limits: Limits) -> tuple[Arm, Arm]:
    """Two settings from `name=value ... | name=value ...`; without a bar, `base` against the given one.

    For an empty text, the preset. Both draw with the same seed where it is to be random. Raises KnobError: unknown or
    impossible settings, or two that are the same.
    """
    base = base.fixed()
    left, bar, right = (text.strip() or TREE_OR_CHAIN).partition("|")
    if not bar:
        left, right = "", left
    a, b = (_setting(side.split(), base, limits) for side in (left, right))
    if not bar:
        names = [word.partition("=")[0] for word in right.split()]
        a = Arm(", ".join(described(base, names)) + " (now)", base)
    if a.knobs == b.knobs:
        raise KnobError(f"both settings are the same ({a.label}); give two that differ, for example {TREE_OR_CHAIN}")
    return a, b


def _setting(words: list[str], base: Knobs, limits: Limits) -> Arm:
    changes: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise KnobError(f"{word}: expected NAME=VALUE, for example {TREE_OR_CHAIN}")
        changes[name] = value
    arm = Arm(" ".join(words) or "now", base.replace(**parse_settings(changes)))
    check(arm, frozenset(changes), limits)
    return arm
