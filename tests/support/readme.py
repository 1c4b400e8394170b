"""The parts of README.md that are made from the code. `make readme` runs this file and writes them anew."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from dflash_core.formats.quants import SUPPORTED_NAMES
from dflash_core.knobs import SPECS, Spec
from dflash_tui.keys import ACTIONS, Action

README = Path(__file__).parents[2] / "README.md"


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


def parts() -> dict[str, str]:
    """What README.md must hold between `<!-- name -->` and `<!-- /name -->`."""
    return {"knobs": knobs_table(SPECS), "keys": keys_table(ACTIONS), "types": SUPPORTED_NAMES + "\n"}


def main() -> None:
    text = README.read_text(encoding="utf-8")
    for name, made in parts().items():
        text = part_pattern(name).sub(lambda match, made=made: match[1] + made + match[3], text)
    README.write_text(text, encoding="utf-8")


def part_pattern(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {name} -->\n)(.*?)(<!-- /{name} -->)", re.DOTALL)


if __name__ == "__main__":
    main()
