"""The parts of pages in docs/ that are made from the code, and those of docs/benchmarks.md, made from measurements.

`make readme` runs this file and writes them again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dflash_core.backends.cuda.repack import TILE_TYPES
from dflash_core.formats.quants import SUPPORTED_NAMES
from dflash_core.knobs import SPECS, Spec
from dflash_tui.server.recipes import RECIPES
from dflash_tui.settings.keys import ACTIONS, Action
from dflash_tui.text.glossary import GLOSSARY
from support import fits_page, models_table, schemas_page
from support.step_tables import bars_table, memory_table, steps_table

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BENCHMARKS, FITS, STEPS = DOCS / "benchmarks.md", DOCS / "fits.md", DOCS / "bench" / "h200-steps.json"


def knobs_table(specs: Sequence[Spec]) -> str:
    """The table of parameters, in the order of the app."""
    lines = ["| name | default | allowed | what it does |", "|---|---|---|---|"]
    for spec in specs:
        default = f"{spec.default:g}" if spec.kind == "float" else spec.show(spec.default)
        lines.append(f"| `{spec.name}` | {default} | {spec.allowed} | {spec.help} |")
    return "\n".join(lines) + "\n"


def keys_table(actions: Sequence[Action]) -> str:
    """The table of keys; actions without one are in the palette only."""
    lines = ["| key | does |", "|---|---|"]
    for action in actions:
        help = "these keys, in the app" if action.id == "app.help" else action.help
        if action.shown and action.scope == "chat":  # other screens list theirs with F1
            lines.append(f"| {action.shown.replace('  ', ', ')} | {help} |")
    return "\n".join(lines) + "\n"


def glossary_table(figures: Mapping[str, str]) -> str:
    """The table of figures, in the order of the glossary."""
    lines = [
        "| figure | what it is |",
        "|---|---|",
        *(f"| {name} | {sentence} |" for name, sentence in figures.items()),
    ]
    return "\n".join(lines) + "\n"


def types() -> dict[str, str]:
    """Tables of the page of models: sizes, and the types of tensors."""
    on_card = " ".join(name for name in SUPPORTED_NAMES.split() if name in (*TILE_TYPES, "BF16"))
    return {**models_table.parts(), "types": SUPPORTED_NAMES + "\n", "card-types": on_card + "\n"}


def recipes() -> dict[str, str]:
    """What to set in other programs, with the places of values in capitals."""
    parts = []
    for name, recipe in RECIPES.items():
        goes = f" goes into `{recipe.where}`" if recipe.where else ""
        note = f" {recipe.note}" if recipe.note else ""
        parts.append(f"## {recipe.title}\n\n`dflash-tui connect {name}`{goes}.{note}\n\n```\n{recipe.lines}```\n")
    return {"recipes": re.sub("<([A-Z]+)>", r"\1", "\n".join(parts))}


# What a page must hold between `<!-- name -->` and `<!-- /name -->`.
FROM_CODE: dict[Path, Callable[[], dict[str, str]]] = {
    DOCS / "keys.md": lambda: {"keys": keys_table(ACTIONS)},
    DOCS / "knobs.md": lambda: {"knobs": knobs_table(SPECS)},
    DOCS / "glossary.md": lambda: {"glossary": glossary_table(GLOSSARY)},
    DOCS / "models.md": types,
    DOCS / "schemas.md": schemas_page.parts,
    DOCS / "agents.md": recipes,
}


def result_parts() -> dict[str, str]:
    """The same of docs/benchmarks.md, from what `python -m tools.bench.steps --synthetic 27b --out` wrote on a card."""
    found = json.loads(STEPS.read_text(encoding="utf-8"))
    return {"bars": bars_table(found), "steps": steps_table(found), "memory": memory_table(found)}


def main() -> None:
    pages = {**FROM_CODE, BENCHMARKS: result_parts, FITS: fits_page.parts}
    for path, parts in pages.items():
        text = path.read_text(encoding="utf-8")
        for name, made in parts().items():
            text = part_pattern(name).sub(lambda match, made=made: match[1] + made + match[3], text)
        path.write_text(text, encoding="utf-8")


def part_pattern(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {name} -->\n)(.*?)(<!-- /{name} -->)", re.DOTALL)


if __name__ == "__main__":
    main()
