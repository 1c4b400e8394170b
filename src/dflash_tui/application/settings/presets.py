"""Presets: sets of parameters by name. One that names a model is a profile: its target, drafter, context, cache type.

A few come with the program. Each of the user's is a TOML file, which can be shared, and edited by hand. What a preset
does not name is at its default. Which profiles were used last is stored in the data folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_core.arch.recommended import NOTHING, Recommended
from dflash_core.cache_types import AUTO
from dflash_core.clean import encodable, one_line
from dflash_core.drafters.kinds import needs_no_file
from dflash_core.drafters.registry import missing, parts, resolved
from dflash_core.errors import DFlashError
from dflash_core.knobs import CONTEXT, SPEC, Knobs, Value
from dflash_core.user_folders import user_folder
from dflash_tui.application.json_store import JsonFile
from dflash_tui.application.new_file import here
from dflash_tui.application.settings.config import config_folder
from dflash_tui.application.settings.schema import CACHE, DRAFTER, Kind
from dflash_tui.application.settings.toml_file import TomlError, checked_knobs, line_of, read_toml, toml, write_toml

if TYPE_CHECKING:
    from dflash_core.limits import Limits

FOLDER_NAME = "presets"
DEMO = "demo"
MAX_RECENT = 50
NAME_RULE = "expected a name of a to z, 0 to 9, dots, - and _, 48 at most"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,47}")
_HEAD = "# A preset of dflash-tui; with a target it is a profile. What is not named is at its default.\n"


class PresetError(DFlashError):
    """A preset that does not exist, or cannot be read or written."""


@dataclass(frozen=True, slots=True)
class Preset:
    """`changes` are the parameters that differ from the defaults, checked. `path`: its file, None if it came with the
    program. `model`: the title of the pair that it was tuned for, "" for every pair."""

    name: str
    about: str = ""
    changes: Mapping[str, Value] = field(default_factory=dict)
    model: str = ""
    path: Path | None = field(default=None, compare=False)

    @property
    def knobs(self) -> Knobs:
        return self.over(NOTHING)

    def over(self, recommended: Recommended) -> Knobs:
        """The parameters for a model: what the preset does not name is at the model's default."""
        return recommended.applied(Knobs().replace(**self.changes), self.changes)

    def entries(self) -> dict[str, Value]:
        """What its file says beside the parameters; an empty value is not written."""
        return {"about": self.about, "model": self.model}


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile(Preset):
    """A preset that names a model. `target` None: the demo pair; `draft` None: its own; `context` 0: as fits."""

    target: Path | None = None
    draft: Path | None = None
    context: int = 0
    kv: str = AUTO

    def gone(self) -> Path | None:
        """The first of its files that is missing."""
        if self.target is not None and not self.target.exists():
            return self.target
        lost = missing(self.draft) if self.draft is not None and self.target is not None else None
        return Path(lost) if lost is not None else None

    def moved(self, before: Path, now: Path) -> Profile:
        """A copy with a new path for one of its files."""
        if self.target == before:
            return replace(self, target=now)
        named = [str(now) if part == str(before) else part for part in parts(self.draft or "")]
        return replace(self, draft=Path("+".join(named)))

    def within(self, most: int) -> Profile:
        """A copy with the context limited to what the model supports: the file may ask for more."""
        return replace(self, context=min(self.context, most))

    @property
    def words(self) -> str:
        target = self.target.name if self.target else "demo pair"
        drafts = parts(self.draft) if self.draft else ()
        draft = "+".join(part if needs_no_file(part) else Path(part).name for part in drafts)
        changed = ", ".join(f"{name} {SPEC[name].show(value)}" for name, value in self.changes.items())
        context = f"{self.context:,} positions" if self.context else ""
        found = (target, draft and f"+ {draft}", context, "" if self.kv == AUTO else self.kv, changed)
        return one_line(" · ".join(filter(None, found)).replace(" · + ", " + "))

    def entries(self) -> dict[str, Value]:
        target = str(here() / self.target) if self.target else DEMO
        draft = str(resolved(self.draft, here())) if self.draft else ""
        kv = "" if self.kv == AUTO else self.kv
        return Preset.entries(self) | {"target": target, "draft": draft, "context": self.context, "kv": kv}


BUILT_IN = (
    Preset("default", "every parameter at its default"),
    Preset("plain", "no drafts: what speculation is compared with", {"drafting": "plain"}),
    Preset("chain", "one chain of drafts per step", {"drafting": "chain 22"}),
    Preset("wide", "a larger tree of drafts", {"drafting": "tree 48"}),
    Preset("sure", "a tree of the likelier drafts only", {"drafting": "tree 22", "p_min": 0.1}),
    Preset("sampled", "draws instead of the likeliest token", {"temperature": 0.6, "top_k": 20, "top_p": 0.95}),
)


def _target(value: str, folder: Path) -> Path | None:
    if not value:
        raise ValueError
    return None if value == DEMO else folder / Path(value).expanduser()


_LINE = Kind(str, "text", lambda value, folder: one_line(value))
_TARGET = Kind(str, f'a GGUF file, or "{DEMO}"', _target)
_CONTEXT = Kind(Any, "", lambda value, folder: CONTEXT.check(value))
ENTRIES = {"about": _LINE, "model": _LINE, "target": _TARGET, "draft": DRAFTER, "context": _CONTEXT, "kv": CACHE}


class Presets:
    """The presets of the program and of the user's folder, which override those of the program. `problems`: a line for
    each entry, or part of one, that is left out."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or config_folder() / FOLDER_NAME
        self._recent = JsonFile(user_folder("data") / "recent-profiles.json", list[str])
        self.read()

    def read(self) -> None:
        self.problems: list[str] = []
        self._presets = {preset.name: preset for preset in BUILT_IN}
        self._profiles: dict[str, Profile] = {}
        paths: list[Path] = []
        try:
            paths = sorted(self.folder.glob("*.toml"))
        except OSError as error:
            self.problems.append(f"{self.folder} cannot be read: {error.strerror}; only the program's presets are used")
        for path in paths:
            self._read_file(path)

    def __iter__(self) -> Iterator[Preset]:
        return iter(self._presets.values())

    def __getitem__(self, name: str) -> Preset:
        """A preset that names no model. Raises PresetError."""
        if name not in self._presets:
            other = "; that is a profile: /profile loads its model" if name in self._profiles else ""
            raise PresetError(f"no preset {one_line(name)!r}{other}; there are {', '.join(self._presets)}")
        return self._presets[name]

    def names_for(self, model: str) -> tuple[str, ...]:
        """The presets for every pair, and those tuned for the pair with this title."""
        return tuple(preset.name for preset in self if preset.model in ("", model))

    def like(self, knobs: Knobs, limits: Limits | None) -> str:
        """The name of the preset with exactly these values, as far as they go with a loaded pair; "" for none."""

        def fitted(preset: Preset) -> Knobs:
            return limits.within(preset.over(limits.recommended))[0] if limits is not None else preset.knobs

        return next((preset.name for preset in self if fitted(preset) == knobs), "")

    def after(self, name: str, model: str = "") -> Preset:
        """The preset of a pair that follows `name`; the first one if `name` is no preset."""
        names = self.names_for(model)
        return self._presets[names[(names.index(name) + 1) % len(names)] if name in names else names[0]]

    # Profiles

    @property
    def profiles(self) -> Mapping[str, Profile]:
        """The last used first, the others in the order of their files."""
        return {name: self._profiles[name] for name in (*self._used(), *self._profiles) if name in self._profiles}

    def profile(self, name: str) -> Profile:
        """Raises PresetError."""
        if name not in self._profiles:
            there = ", ".join(self.profiles) or "none yet; /profile save NAME in the app makes one"
            bad = next((f"; {line}" for line in self.problems if f"{name}.toml" in line), "")
            raise PresetError(f"no profile {one_line(name)!r}{bad}; there are {there}")
        return self._profiles[name]

    def used(self, name: str) -> None:
        """Note that it was loaded just now. A failed write is ignored: it only affects the order."""
        self._note([name, *self._used()])

    # Changes

    def save(self, preset: Preset) -> Path:
        """Write a preset, replacing any of that name. If it raises PresetError, the files are unchanged."""
        self.read()
        path = self._path(preset.name)
        others: Mapping[str, Preset] = self._presets if isinstance(preset, Profile) else self._profiles
        if preset.name in others and others[preset.name].path == path:
            what = "preset that names no model" if isinstance(preset, Profile) else "profile"
            raise PresetError(f"{preset.name!r} is a {what} already; take another name, or delete {path}")
        entries = preset.entries()
        if odd := next((one for one in entries.values() if isinstance(one, str) and encodable(one) != one), None):
            raise PresetError(f"{odd} is not UTF-8 and cannot be written to {path.name}")
        lines = [f"{name} = {toml(value)}\n" for name, value in entries.items() if value]
        lines += ["\n[knobs]\n"] * bool(preset.changes)
        lines += [f"{name} = {toml(value)}\n" for name, value in preset.changes.items()]
        try:
            write_toml(path, _HEAD + "".join(lines))
        except TomlError as error:
            raise PresetError(f"{error}; the preset is not saved") from None
        self.read()
        return path

    def rename(self, name: str, to: str) -> None:
        """Rename a profile; its contents stay the same. Raises PresetError."""
        self.read()
        profile, path = self.profile(name), self._path(to)
        if to != name and (to in self._profiles or path.exists()):
            raise PresetError(f"there is a profile or preset {to!r} already; delete it, or take another name")
        used = [to if one == name else one for one in self._used()]
        if profile.path is not None:
            _change(profile.path, lambda file: file.rename(path))
        self._note(used)
        self.read()

    def delete(self, name: str) -> Profile:
        """Remove a profile; `save` restores it. Raises PresetError."""
        self.read()
        profile = self.profile(name)
        if profile.path is not None:
            _change(profile.path, Path.unlink)
        self.read()
        return profile

    # The files

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise PresetError(f"preset {one_line(name)!r}: {NAME_RULE}")
        return self.folder / f"{name}.toml"

    def _read_file(self, path: Path) -> None:
        """A preset, unless its model is wrong. What else is wrong gets its default."""
        try:
            text, table = read_toml(path)
        except TomlError as error:
            self.problems.append(one_line(f"{path}: {error}; left out"))
            return

        def problem(entry: str, why: str) -> None:
            self.problems.append(one_line(f"{path}, line {line_of(text, entry)}: {entry}: {why}"))

        name, found = one_line(path.stem), dict[str, Any]()
        lost = False
        for entry, value in table.items():
            if entry == "knobs":
                continue
            if entry not in ENTRIES:
                problem(entry, f"unknown; expected {', '.join(ENTRIES)} or the table knobs")
                continue
            try:
                found[entry] = ENTRIES[entry].check(value, path.parent)
            except DFlashError as error:
                whole = entry in ("target", "draft")
                problem(entry, f"{error}; " + ("it is left out" if whole else "its default is used"))
                lost |= whole
        changes = checked_knobs(table.get("knobs", {}), problem)
        if "target" in found and not lost:
            self._profiles[name] = Profile(name, changes=changes, path=path, **found)
        elif not lost:
            for entry in found.keys() - {"about", "model"}:
                problem(entry, "goes with a target; it is left out")
                del found[entry]
            self._presets[name] = Preset(name, changes=changes, path=path, **found)

    def _used(self) -> list[str]:
        return self._recent.read() or []

    def _note(self, names: list[str]) -> None:
        self._recent.write([*dict.fromkeys(names)][:MAX_RECENT])


def _change(path: Path, how: Callable[[Path], object]) -> None:
    try:
        how(path)
    except OSError as error:
        raise PresetError(f"{path} cannot be changed: {error.strerror}; the profiles are as they were") from None


def changed(knobs: Knobs, recommended: Recommended) -> dict[str, Value]:
    """What differs from a model's defaults, and the drafting where these values would otherwise imply another."""
    usual = recommended.defaults(knobs.thinking)
    greedy = not knobs.temperature and bool(usual["temperature"])  # then nothing else of sampling has a default
    defaults = {name: spec.default for name, spec in SPEC.items()} | ({} if greedy else usual)
    changes = {name: value for name, value in knobs.to_dict().items() if value != defaults[name]}
    if greedy:
        changes["temperature"] = knobs.temperature
    same = Preset("", changes=changes).over(recommended) == knobs
    return changes if same else {"drafting": knobs.drafting, **changes}
