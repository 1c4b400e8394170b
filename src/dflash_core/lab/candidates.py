"""The settings worth trying for a loaded pair: drafting x p_min, then neighbours of the best of them."""

from __future__ import annotations

from dflash_core.errors import KnobError
from dflash_core.knobs import SPEC, Knobs, Value
from dflash_core.lab.grid import Arm, Role, show
from dflash_core.limits import Limits

BUDGETS = (4, 8, 15, 22, 32, 48)
P_MINS = (0.0, 0.1, 0.25)
TREE_TEMPERATURES = (0.7, 1.0, 1.4)
WINDOWS = (0, 512, 2048)


def arms(now: Knobs, limits: Limits) -> list[Arm]:
    """The present setting, `auto`, plain decoding, chains, and trees of several budgets and cuts, without duplicates.
    With several drafters, each has chains and trees of its own.

    Without a drafter that is the present setting and plain decoding. Settings that the pair cannot run are left out.
    """
    found = {now: Arm(label(now), now, "now")}
    several = limits.drafter.parts if limits.drafter is not None else ()
    choice: dict[str, Value] = {"draft": "auto"} if several else {}
    _put(found, now, limits, {"drafting": "auto", **choice}, "auto")
    _put(found, now, limits, {"drafting": "plain"}, "plain")
    for one in several or ([limits.drafter] if limits.drafter is not None else []):
        named: dict[str, Value] = {"draft": one.kind} if several else {}
        for depth in sorted({one.depths, max(one.depths // 2, 1)}):
            for p_min in P_MINS[:2]:
                _put(found, now, limits, {"drafting": f"chain {depth}", "p_min": p_min, **named})
        for budget in BUDGETS:
            for p_min in P_MINS[:2] if several else P_MINS:
                _put(found, now, limits, {"drafting": f"tree {budget}", "p_min": p_min, **named})
    return list(found.values())


def around(best: Knobs, limits: Limits, positions: int) -> list[Arm]:
    """Neighbours of the leading setting: nearby budgets and cuts, and the other knobs of the drafter. `auto` finds
    budgets and cuts itself.

    `positions`: how long the measured prompts are; a window that holds all of them changes nothing.
    """
    found: dict[Knobs, Arm] = {}
    if limits.drafter is None or best.mode == "plain":
        return []
    if best.mode == "tree":
        for budget in (round(best.budget * 0.75), round(best.budget * 1.25)):
            _put(found, best, limits, {"drafting": f"tree {max(budget, 1)}"})
    for step in (-0.05, 0.05) if best.mode != "auto" else ():
        if 0 <= (p_min := round(best.p_min + step, 2)) <= 1:
            _put(found, best, limits, {"p_min": p_min})
    if best.mode != "chain":
        for temperature in (one for one in TREE_TEMPERATURES if one != best.tree_temperature):
            _put(found, best, limits, {"tree_temperature": temperature})
    for window in WINDOWS:
        if window < positions and window != best.draft_window:
            _put(found, best, limits, {"draft_window": window})
    return [arm for arm in found.values() if arm.knobs != best]


def label(knobs: Knobs) -> str:
    """The label of a setting: what distinguishes it from others, such as `tree 22, p_min 0.1`."""
    by = f"{knobs.draft} " if knobs.draft != "auto" and knobs.mode in ("tree", "chain") else ""
    parts = [f"{by}{knobs.drafting}"]
    if knobs.mode == "plain":
        return parts[0]
    if knobs.p_min and knobs.mode != "auto":
        parts.append(f"p_min {show(SPEC['p_min'], knobs.p_min)}")
    for name, short in (("tree_temperature", "tree T"), ("draft_window", "window")):
        value = getattr(knobs, name)
        if value != SPEC[name].default:
            parts.append(f"{short} {show(SPEC[name], value)}")
    return ", ".join(parts)


def _put(found: dict[Knobs, Arm], base: Knobs, limits: Limits, changes: dict[str, Value], role: Role = "") -> None:
    if limits.drafter is not None:
        changes = {name: value for name, value in changes.items() if name in {"drafting", *limits.drafter.knobs}}
    elif changes.get("drafting") not in ("plain", "auto"):
        return
    try:
        knobs = base.replace(**changes)
        limits.check_possible(knobs, frozenset(changes))
    except KnobError:
        return
    found.setdefault(knobs, Arm(label(knobs), knobs, role))
