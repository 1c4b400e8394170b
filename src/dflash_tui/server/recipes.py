"""How other programs are pointed at the server: what to set, a recipe each."""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dflash_core.clean import one_line

DEFAULT_URL = "http://127.0.0.1:8080"
NO_KEY = "none"
"""What stands for a key where the server asks for none; most programs want one set."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """`where`: the file that `lines` go into, or "" for a shell. `note`: what else to know."""

    title: str
    lines: str
    where: str = ""
    note: str = ""


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
RECIPES: Mapping[str, Recipe] = {name: Recipe(**table) for name, table in _TABLES.items()}


def written(recipe: Recipe, *, url: str, key: str, model: str, context: int) -> str:
    """A recipe as text, with the values in their places; `context` in tokens. Only the lines may be pasted, all else
    are comments where they go into a shell. A model's name comes from the server, so values are quoted as the file or
    the shell needs it."""
    values = {"URL": url, "KEY": key, "MODEL": model, "CONTEXT": str(context), "OUTPUT": str(min(context // 4, 32_000))}
    lines, note = recipe.lines, recipe.note
    for name, value in values.items():
        value = one_line(value)
        inside = json.dumps(value)[1:-1]  # the files have their values between double quotes
        lines = lines.replace(f"<{name}>", inside if recipe.where else shlex.quote(value))
        note = note.replace(f"<{name}>", inside)
    head = f"# {recipe.title}" + (f": {recipe.where}" if recipe.where else "")
    return "\n".join([head, *([f"# {note}"] if note else []), lines])
