"""Presets: named sets of all parameters. A few come with the program; the user's are TOML files, which can be shared.

A preset lists what differs from the defaults; every other parameter is at its default.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dflash_core.clean import one_line
from dflash_core.errors import DFlashError
from dflash_core.files import write_whole
from dflash_core.knobs import SPEC, Knobs, Value
from dflash_tui.application.settings.toml_file import TomlError, checked_knobs, line_of, read_toml

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")


class PresetError(DFlashError):
    """A preset that does not exist, or cannot be written."""


@dataclass(frozen=True, slots=True)
class Preset:
    """`changes` are checked values. A preset without `path` came with the program. `model`: the title of the pair that
    it was tuned for, "" for every pair."""

    name: str
    about: str = ""
    changes: Mapping[str, Value] = field(default_factory=dict)
    path: Path | None = None
    model: str = ""

    @property
    def knobs(self) -> Knobs:
        return Knobs().replace(**self.changes)


BUILT_IN = (
    Preset("default", "every parameter at its default"),
    Preset("plain", "no drafts: what speculation is compared with", {"mode": "ar"}),
    Preset("chain", "one chain of drafts per step", {"mode": "chain"}),
    Preset("wide", "a larger tree of drafts", {"mode": "tree", "budget": 48}),
    Preset("sure", "a tree of the likelier drafts only", {"mode": "tree", "p_min": 0.1}),
    Preset("sampled", "draws instead of the likeliest token", {"temperature": 0.6, "top_k": 20, "top_p": 0.95}),
)


class Presets:
    """The presets of the program and of a folder, which override those of the program. `problems`: a line each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[str] = []
        self._all = {preset.name: preset for preset in BUILT_IN}
        try:
            paths = sorted(folder.glob("*.toml"))
        except OSError as error:
            self.problems.append(f"{folder} cannot be read: {error.strerror}; only the program's own presets are used")
            paths = []
        for path in paths:
            preset = read_preset(path, self.problems)
            if preset is not None:
                self._all[preset.name] = preset

    def __iter__(self) -> Iterator[Preset]:
        return iter(self._all.values())

    def names_for(self, model: str) -> tuple[str, ...]:
        """The presets for every pair, and those tuned for the pair with this title."""
        return tuple(preset.name for preset in self if preset.model in ("", model))

    def __getitem__(self, name: str) -> Preset:
        """Raises PresetError."""
        if name not in self._all:
            raise PresetError(f"no preset {name!r}; there are {', '.join(self._all)}")
        return self._all[name]

    def like(self, knobs: Knobs) -> str:
        """The name of the preset with exactly these values, or "" if there is none."""
        return next((preset.name for preset in self if preset.knobs == knobs), "")

    def after(self, name: str, model: str = "") -> Preset:
        """The preset of a pair that follows `name`; the first one if `name` is no preset."""
        names = self.names_for(model)
        return self._all[names[(names.index(name) + 1) % len(names)] if name in names else names[0]]

    def save(self, name: str, knobs: Knobs, about: str = "", model: str = "") -> Path:
        """Keep `knobs` under `name`. Raises PresetError."""
        if not _NAME.fullmatch(name):
            raise PresetError(f"preset {name!r}: expected a name of a to z, 0 to 9, - and _, 32 at most")
        preset = Preset(name, about, changed(knobs), self.folder / f"{name}.toml", model)
        write_preset(preset)
        self._all[name] = preset
        return self.folder / f"{name}.toml"


def changed(knobs: Knobs) -> dict[str, Value]:
    """What differs from the defaults, and the policy where these values would otherwise imply another."""
    changes = {name: value for name, value in knobs.to_dict().items() if value != SPEC[name].default}
    return changes if Knobs().replace(**changes) == knobs else {**changes, "policy": knobs.policy}


def read_preset(path: Path, problems: list[str]) -> Preset | None:
    """The preset of a file. Invalid fields are added to `problems` with their line, and get their defaults."""
    try:
        text, table = read_toml(path)
    except TomlError as error:
        problems.append(f"preset {path}: {error}; left out")
        return None

    def problem(field: str, why: str) -> None:
        problems.append(f"preset {path}, line {line_of(text, field)}: {field}: {why}")

    words = {name: table.pop(name, "") for name in ("about", "model")}
    knobs = table.pop("knobs", {})
    for name in table:
        problem(name, "expected only about, model and the table [knobs]")
    for name, word in words.items():
        if not isinstance(word, str):
            problem(name, f"found {word!r}, expected text")
            words[name] = ""
    about, model = (one_line(words[name]) for name in ("about", "model"))
    return Preset(one_line(path.stem), about, checked_knobs(knobs, problem), path, model)


def write_preset(preset: Preset) -> None:
    """Write a preset to its path atomically. Raises PresetError."""
    assert preset.path is not None, "a preset without a file"
    lines = ["# A preset of dflash-tui. Parameters that are not named are at their default."]
    for name, word in (("about", preset.about), ("model", preset.model)):
        lines += [f"{name} = {json.dumps(word, ensure_ascii=False)}"] * bool(word)
    # JSON writes numbers, strings and booleans as TOML reads them.
    lines += ["", "[knobs]", *(f"{name} = {json.dumps(value)}" for name, value in preset.changes.items())]
    try:
        write_whole(preset.path, ("\n".join(lines) + "\n").encode(), sync=True)
    except OSError as error:
        raise PresetError(f"{preset.path} cannot be written: {error.strerror}; the preset is not kept") from None
