"""Profiles: a target, its drafter, context, cache type and parameters under one name, in a file that users may edit.

The program keeps comments and order when it changes the file. Which profiles were used last is not a setting; that is
stored in the data folder.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_core.cache_types import AUTO, checked
from dflash_core.clean import encodable, one_line
from dflash_core.drafters.kinds import needs_no_file
from dflash_core.drafters.registry import is_named, missing, parts, resolved
from dflash_core.errors import DFlashError, InputError, KnobError
from dflash_core.files import read_input, write_whole
from dflash_core.knobs import CONTEXT, SPEC, Knobs, Value
from dflash_core.user_folders import user_folder
from dflash_tui.application.here import here
from dflash_tui.application.settings.config import config_folder
from dflash_tui.application.settings.toml_file import TomlError, checked_knobs, line_of, read_toml

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

FILE_NAME = "profiles.toml"
DEMO = "demo"
MOST_RECENT = 50
NAME_RULE = "expected a name of a to z, 0 to 9, dots, - and _, 48 at most"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,47}")
_KEYS = ("target", "draft", "context", "kv", "knobs")


class ProfileError(DFlashError):
    """A profile that does not exist, or cannot be read or written."""


@dataclass(frozen=True, slots=True)
class Profile:
    """`target` None is the demo pair; `draft` None is the target's own drafter; `context` 0 is as much as fits.

    `changes` are the parameters that differ from the defaults, checked.
    """

    name: str
    target: Path | None
    draft: Path | None = None
    context: int = 0
    kv: str = AUTO
    changes: Mapping[str, Value] = field(default_factory=dict)

    @property
    def knobs(self) -> Knobs:
        return Knobs().replace(**self.changes)

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
        """Its contents in a line."""
        target = self.target.name if self.target else "demo pair"
        drafts = parts(self.draft) if self.draft else ()
        draft = "+".join(part if needs_no_file(part) else Path(part).name for part in drafts)
        changed = ", ".join(f"{name} {SPEC[name].show(value)}" for name, value in self.changes.items())
        context = f"{self.context:,} positions" if self.context else ""
        found = (target, draft and f"+ {draft}", context, "" if self.kv == AUTO else self.kv, changed)
        return one_line(" · ".join(filter(None, found)).replace(" · + ", " + "))


class Profiles:
    """The profiles of a file, last used first. `problems`: a line for each entry, or part of one, that is left out."""

    def __init__(self, path: Path | None = None, recent: Path | None = None) -> None:
        self.path = path or config_folder() / FILE_NAME
        self._recent = recent or user_folder("data") / "recent-profiles.json"
        self.problems: list[str] = []
        self._all: dict[str, Profile] = {}
        self.read()

    def read(self) -> None:
        """Read the file again."""
        self.problems.clear()
        self._all.clear()
        try:
            text, table = read_toml(self.path, optional=True)
        except TomlError as error:
            self.problems.append(one_line(f"{self.path}: {error}; none of its profiles is used"))
            return
        for name in table.keys() - {"profiles"}:
            self._problem(text, name, f"expected tables [profiles.NAME], found {name!r}")
        found = table.get("profiles", {})
        if not isinstance(found, dict):
            self._problem(text, "profiles", "expected tables [profiles.NAME]")
            return
        for name, entry in found.items():
            if (profile := self._profile(text, name, entry)) is not None:
                self._all[name] = profile

    def __iter__(self) -> Iterator[Profile]:
        """The last used first, the others in the order of the file."""
        used = [name for name in self._used() if name in self._all]
        return iter([self._all[name] for name in dict.fromkeys([*used, *self._all])])

    def __getitem__(self, name: str) -> Profile:
        """Raises ProfileError."""
        if name not in self._all:
            there = ", ".join(one.name for one in self) or "none yet; /profile save NAME in the app makes one"
            bad = next((f"; {line}" for line in self.problems if f"profiles.{name}" in line), "")
            raise ProfileError(f"no profile {one_line(name)!r}{bad}; there are {there}")
        return self._all[name]

    def get(self, name: str) -> Profile | None:
        """The profile of that name, if there is one."""
        return self._all.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self._all

    def used(self, name: str) -> None:
        """Note that it was loaded just now. A failed write is ignored: it only affects the order."""
        names = list(dict.fromkeys([name, *self._used()]))[:MOST_RECENT]
        with suppress(OSError, UnicodeEncodeError):
            write_whole(self._recent, json.dumps(names).encode())

    def save(self, profile: Profile) -> None:
        """Save a profile, replacing any of that name. If it raises ProfileError, the file is unchanged."""
        if not _NAME.fullmatch(profile.name):
            raise ProfileError(f"profile {one_line(profile.name)!r}: {NAME_RULE}")
        for path in (profile.target, profile.draft):
            if path is not None and encodable(str(path)) != str(path):
                raise ProfileError(f"{path} is not UTF-8 and cannot be written to {self.path.name}")
        document = self._document()
        tables = _tables(document)
        names = {*tables, profile.name}
        tables[profile.name] = _entry(profile)
        self._write(document, names)

    def rename(self, name: str, to: str) -> None:
        """Rename a profile; its contents stay the same. Raises ProfileError."""
        self[name]
        if not _NAME.fullmatch(to):
            raise ProfileError(f"profile {one_line(to)!r}: {NAME_RULE}")
        if to in self and to != name:
            raise ProfileError(f"there is a profile {to!r} already; delete it, or take another name")
        document = self._document()
        tables = _tables(document)
        names = {*tables} - {name} | {to}
        entry = tables.pop(name)
        tables[to] = entry
        used = [to if one == name else one for one in self._used()]
        self._write(document, names)
        for one in reversed(used):
            self.used(one)

    def delete(self, name: str) -> Profile:
        """Remove it from the file; `save` restores it. Raises ProfileError."""
        profile = self[name]
        document = self._document()
        tables = _tables(document)
        names = {*tables} - {name}
        del tables[name]
        self._write(document, names)
        return profile

    # The file

    def _document(self) -> TOMLDocument:
        import tomlkit
        from tomlkit.exceptions import TOMLKitError

        try:
            return tomlkit.parse(read_input(self.path, 1 << 20).decode()) if self.path.exists() else _new()
        except (OSError, InputError, UnicodeDecodeError, TOMLKitError) as error:
            raise ProfileError(f"{self.path} cannot be changed: {one_line(str(error))}; mend it first") from None

    def _write(self, document: TOMLDocument, names: set[str]) -> None:
        """Write the file if it then has exactly the profiles `names`; otherwise leave it unchanged."""
        try:
            right = set(tomllib.loads(document.as_string()).get("profiles", {})) == names
        except tomllib.TOMLDecodeError:
            right = False
        if not right:  # the order of the tables prevents editing
            raise ProfileError(
                f"{self.path} cannot be changed by the program; edit it, or put each profile's tables together"
            )
        try:
            write_whole(self.path, document.as_string().encode(), sync=True)
        except OSError as error:
            raise ProfileError(
                f"{self.path} cannot be written: {error.strerror}; the profiles are as they were"
            ) from None
        self.read()

    def _used(self) -> list[str]:
        with suppress(OSError, InputError, ValueError, RecursionError):
            found = json.loads(read_input(self._recent, 1 << 16))
            return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []
        return []

    def _problem(self, text: str, name: str, why: str) -> None:
        self.problems.append(one_line(f"{self.path}, line {line_of(text, name)}: {why}"))

    def _profile(self, text: str, name: str, entry: Any) -> Profile | None:
        """An entry; None, with a problem, if it names no model. Other invalid values are left out and reported."""
        at = f"profiles.{name}"
        if not _NAME.fullmatch(name):
            self._problem(text, at, f"{at}: {NAME_RULE}; it is left out")
            return None
        if not isinstance(entry, dict) or not isinstance(target := entry.get("target"), str) or not target:
            self._problem(text, at, f'{at}: expected target = "a GGUF file", or "{DEMO}"; it is left out')
            return None
        for key in entry.keys() - set(_KEYS):
            self._problem(text, f"{at}.{key}", f"{at}: unknown {key!r}; expected {', '.join(_KEYS)}")
        folder, taken = self.path.parent, dict[str, Any]()
        try:
            where = None if target == DEMO else folder / Path(target).expanduser()
            draft = entry.get("draft", "")
            if not isinstance(draft, str):
                raise KnobError(f"draft: found {draft!r}, expected a path, or a kind")
            taken["draft"] = None if not draft else Path(draft) if is_named(draft) else resolved(draft, folder)
        except (RuntimeError, KnobError) as error:  # "~name" of a user that does not exist
            self._problem(text, at, f"{at}: {error}; it is left out")
            return None
        for key, read in (("context", CONTEXT.check), ("kv", _cache)):
            if key in entry:
                try:
                    taken[key] = read(entry[key])
                except KnobError as error:
                    self._problem(text, f"{at}.{key}", f"{at}: {error}; what is usual is taken")

        def problem(field: str, why: str) -> None:
            self._problem(text, f"{at}.{field}", f"{at}.{field}: {why}")

        return Profile(name, where, **taken, changes=checked_knobs(entry.get("knobs", {}), problem))


def _cache(value: Any) -> str:
    if not isinstance(value, str):
        raise KnobError(f"kv: found {value!r}, expected text")
    return checked(value)


def _new() -> TOMLDocument:
    import tomlkit

    document = tomlkit.document()
    document.add(tomlkit.comment("Profiles of dflash-tui: dflash-tui --profile NAME, /models, /profile NAME."))
    document.add(tomlkit.comment("Only target has to be there; what is left out is as usual."))
    document.add(tomlkit.nl())
    return document


def _tables(document: TOMLDocument) -> Any:
    import tomlkit

    if "profiles" not in document:
        document["profiles"] = tomlkit.table(is_super_table=True)
    return document["profiles"]


def _entry(profile: Profile) -> Any:
    import tomlkit

    entry = tomlkit.table()
    entry["target"] = str(here() / profile.target) if profile.target else DEMO
    if profile.draft is not None:
        entry["draft"] = str(profile.draft if is_named(profile.draft) else resolved(profile.draft, here()))
    if profile.context:
        entry["context"] = profile.context
    if profile.kv != AUTO:
        entry["kv"] = profile.kv
    if profile.changes:
        entry["knobs"] = tomlkit.table()
        for name, value in profile.changes.items():
            entry["knobs"][name] = value
    return entry
