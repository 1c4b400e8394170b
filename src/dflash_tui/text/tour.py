"""The steps of the tour: the part that each points at, and its text. Plain data; the glossary explains figures."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_core.knobs import SPEC
from dflash_tui.text.glossary import GLOSSARY


@dataclass(frozen=True, slots=True)
class Step:
    """`part` is the id of the widget that it points at; `panel` is the inspector's panel that is opened for it."""

    title: str
    text: str
    part: str
    panel: str = ""


def _means(*names: str) -> str:
    return "\n".join(f"{name}: {GLOSSARY[name]}" for name in names)


STEPS = (
    Step(
        "The prompt",
        "Type here, Enter sends. @ names a file, / lists the commands. What you send while an answer is written waits "
        "its turn; Esc stops the answer.",
        "prompt-row",
    ),
    Step("The headline", _means("tok/s", "x plain", "tok/step"), "strip"),
    Step(
        "Parameters, F2",
        f"{SPEC['drafting'].label}: {SPEC['drafting'].help}\n"
        "In there ← and → move a value, m shows the others. F8 finds the best.",
        "panel-params",
        "params",
    ),
    Step("Figures of a turn, F3", _means("accepted by depth", "time by stage"), "panel-stats", "stats"),
    Step(
        "The tree, F4",
        f"What was drafted in the last step; ✓ is what the target took.\n{_means('own', 'path')}",
        "panel-tree",
        "tree",
    ),
    Step(
        "Model, context, memory",
        f"{_means('ctx', 'mem')}\n? explains the figures of a panel or page. F1 lists every key.",
        "title",
    ),
)
