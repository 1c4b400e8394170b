"""Pairs that can be fetched by a name: those of the program, and the user's own beside them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_core.clean import one_line
from dflash_core.errors import DFlashError
from dflash_tui.settings.config import config_folder
from dflash_tui.settings.toml_file import TomlError, line_of, read_toml

OWN = Path(__file__).with_name("catalogue.toml")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_FILE = re.compile(r"[A-Za-z0-9_][\w.+-]*(?:/[A-Za-z0-9_][\w.+-]*)*", re.ASCII)


class CatalogueError(DFlashError):
    """A pair that there is none of."""


@dataclass(frozen=True, slots=True)
class Source:
    """Files of one repository: the one to load first, and what has to lie beside it."""

    repo: str
    file: str
    beside: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        return (self.file, *self.beside)


@dataclass(frozen=True, slots=True)
class Pair:
    """An entry."""

    name: str
    about: str
    licence: str
    target: Source
    draft: Source | None


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All pairs by name, and a line for each entry that was left out."""

    pairs: Mapping[str, Pair]
    problems: tuple[str, ...]

    def __getitem__(self, name: str) -> Pair:
        """Raises CatalogueError."""
        if name not in self.pairs:
            near = difflib.get_close_matches(name, list(self.pairs), n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(self.pairs) or 'none'}"
            raise CatalogueError(f"no pair {one_line(name)!r} in the catalogue; {hint}")
        return self.pairs[name]


class _BadEntryError(Exception):
    pass


def load_catalogue(user: Path | None = None) -> Catalogue:
    """The program's entries and those of the user's file, which win over a name of the program's."""
    pairs: dict[str, Pair] = {}
    problems: list[str] = []
    for path in (OWN, user or config_folder() / "catalogue.toml"):
        try:
            text, table = read_toml(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, TomlError) as error:
            problems.append(f"{path}: {one_line(str(error))}; nothing of it is used")
            continue
        entries = table.get("pairs", {})
        for name, entry in entries.items() if isinstance(entries, dict) else ():
            try:
                pairs[name] = _pair(name, entry)
            except _BadEntryError as error:
                line = line_of(text, f"pairs.{name}")
                problems.append(one_line(f"{path}, line {line}: {name!r}: {error}; the entry is left out"))
    return Catalogue(pairs, tuple(problems))


def _pair(name: str, entry: Any) -> Pair:
    if not _NAME.fullmatch(name):
        raise _BadEntryError("a name has a to z, 0 to 9, dots and dashes")
    if not isinstance(entry, dict):
        raise _BadEntryError("expected a table with about, licence, target and draft")
    words = {key: entry.get(key, "") for key in ("about", "licence")}
    if not all(isinstance(value, str) for value in words.values()):
        raise _BadEntryError("about and licence are texts")
    draft = _source(entry["draft"], "draft") if "draft" in entry else None
    target = _source(entry.get("target"), "target")
    return Pair(name, one_line(words["about"]), one_line(words["licence"]), target, draft)


def _source(entry: Any, what: str) -> Source:
    """Where files are. Names that climb, or begin elsewhere, are refused: they become paths below the user's folder."""
    if not isinstance(entry, dict) or not isinstance(entry.get("repo"), str) or not isinstance(entry.get("file"), str):
        raise _BadEntryError(f'{what}: expected {{ repo = "owner/name", file = "model.gguf" }}')
    beside = entry.get("beside", [])
    if not isinstance(beside, list) or not all(isinstance(one, str) for one in beside):
        raise _BadEntryError(f"{what}: beside is a list of file names")
    if not _REPO.fullmatch(entry["repo"]):
        raise _BadEntryError(f"{what}: {one_line(entry['repo'])!r} is no repository; expected owner/name")
    for file in (entry["file"], *beside):
        if not _FILE.fullmatch(file) or ".." in file.split("/"):
            raise _BadEntryError(f"{what}: {one_line(file)!r} is no name of a file in a repository")
    return Source(entry["repo"], entry["file"], tuple(beside))
