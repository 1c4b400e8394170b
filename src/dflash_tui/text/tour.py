"""The steps of the tour: the part that each points at, and its text. Plain data; the glossary explains figures."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_tui.text.glossary import GLOSSARY


@dataclass(frozen=True, slots=True)
class Step:
    """`part` is the id of the widget that it points at; `panel` is the inspector's panel that is opened for it."""

    title: str
    text: str
    part: str
    panel: str = ""


def _means(*keys: str) -> str:
    return "\n".join(f"{GLOSSARY[key].name}: {GLOSSARY[key].sentence}" for key in keys)


STEPS = (
    Step(
        "The prompt",
        "Type here, Enter sends. @ names a file, / lists the commands. What you send while an answer is written waits "
        "its turn; Esc stops the answer.",
        "prompt-row",
    ),
    Step("The headline", _means("speed", "times", "acceptance"), "strip"),
    Step(
        "Parameters, F2",
        f"{_means('drafting')}\nIn there ← and → move a value, m shows the others. F8 finds the best.",
        "panel-params",
        "params",
    ),
    Step("Figures of a turn, F3", _means("accept_rate", "stages"), "panel-stats", "stats"),
    Step(
        "The tree, F4",
        f"What was drafted in the last step; ✓ is what the target took.\n{_means('own', 'path')}",
        "panel-tree",
        "tree",
    ),
    Step(
        "Model, context, memory",
        f"{_means('ctx', 'memory')}\n? explains any figure, so does a click. F1 lists every key.",
        "title",
    ),
)
