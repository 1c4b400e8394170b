"""Pairs that can be fetched by name: those of the program, and the user's own."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from dflash_core.clean import one_line
from dflash_core.errors import DFlashError
from dflash_core.formats.splits import SPLIT_NAME
from dflash_tui.application.session import LoadRequest
from dflash_tui.application.settings.config import config_folder
from dflash_tui.application.settings.toml_file import TomlError, line_of, read_toml

FILE_NAME = "catalogue.toml"
OWN = Path(__file__).with_name(FILE_NAME)
ABOUT = 160  # characters of a description
MAX_FILES = 256  # a folder of 400 billion weights has about 100
NGRAM = Path("ngram")
_KEYS = ("about", "licence", "target", "draft", "shapes")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_PART = r"[A-Za-z0-9][\w.-]{0,95}"
_REPO = re.compile(rf"{_PART}/{_PART}", re.ASCII)
# A path component must leave space for the suffixes added here: file systems allow 255 bytes.
_FILE = re.compile(r"[A-Za-z0-9_][\w.+-]{0,199}(?:/[A-Za-z0-9_][\w.+-]{0,199}){0,7}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Source:
    """Files of one repository: the one to load, and those that must be in the same folder."""

    repo: str
    file: str
    beside: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """All files, including the further parts of a split model."""
        match = SPLIT_NAME.fullmatch(self.file)
        count = int(match[3]) if match else 1
        named = [f"{match[1]}-{part:05d}-of-{match[3]}.gguf" for part in range(1, count + 1)] if match else [self.file]
        return tuple(dict.fromkeys((*named, *self.beside)))

    @property
    def opened(self) -> str:
        """The path to load within the repository: the file, or its folder if a config.json is next to it."""
        folder = self.file.rpartition("/")[0]
        with_config = f"{folder}/config.json" if folder else "config.json"
        return folder if with_config in self.beside else self.file


@dataclass(frozen=True, slots=True)
class Pair:
    """An entry. `draft` None: in the target, or none. `shapes`: a published model of the same shapes, "" if unknown."""

    name: str
    about: str
    licence: str
    target: Source
    draft: Source | None
    shapes: str = ""

    def planned(self, request: LoadRequest) -> LoadRequest:
        """`request` for a plan of this pair before it is fetched, with its own drafter or with n-grams. Raises
        DFlashError for any other, and if its shapes are not known."""
        if not self.shapes:
            raise DFlashError(f"{self.name}: its shapes are not known here; fetch it first")
        if request.draft not in (None, NGRAM):
            raise DFlashError(
                f"--draft {request.draft}: a pair that is not fetched is planned with its own drafter or with {NGRAM};"
                f" dflash-tui get {self.name} fetches it"
            )
        published = self.draft is not None and self.draft.file.endswith(".safetensors")
        kind = "" if request.draft else "BF16" if published else "Q8_0"
        return replace(request, target=None, draft=None, shapes=(self.shapes, kind))


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All pairs by name, and a line for each entry that was left out."""

    pairs: Mapping[str, Pair]
    problems: tuple[str, ...]

    def __getitem__(self, name: str) -> Pair:
        """Raises DFlashError."""
        if name not in self.pairs:
            if problem := next((one for one in self.problems if f": {name!r}: " in one), ""):
                raise DFlashError(problem)
            near = self.near(name)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(self.pairs) or 'none'}"
            raise DFlashError(f"no pair {one_line(name)!r} in the catalogue; {hint}")
        return self.pairs[name]

    def near(self, name: str) -> list[str]:
        """The pairs whose names begin with `name`, else the one most like it, if any is."""
        begins = [one for one in self.pairs if name and one.startswith(name.lower())]
        return begins or difflib.get_close_matches(name, list(self.pairs), n=1)


def named(target: Path | None) -> Pair | None:
    return None if target is None or target.exists() else load_catalogue().pairs.get(str(target))


def load_catalogue(user: Path | None = None) -> Catalogue:
    """The program's entries and those of the user's file, which override entries of the same name."""
    pairs: dict[str, Pair] = {}
    problems: list[str] = []
    for path in (OWN, user or config_folder() / FILE_NAME):
        try:
            text, table = read_toml(path, optional=True)
        except TomlError as error:
            problems.append(one_line(f"{path}: {error}; nothing of it is used"))
            continue

        def problem(name: str, why: str, path: Path = path, text: str = text) -> None:
            problems.append(one_line(f"{path}, line {line_of(text, name)}: {why}"))

        for name in table.keys() - {"pairs"}:
            problem(name, f"{name!r}: expected tables [pairs.NAME]")
        entries = table.get("pairs", {})
        if not isinstance(entries, dict):
            problem("pairs", "'pairs': expected tables [pairs.NAME]")
            continue
        for name, entry in entries.items():
            try:
                pairs[name] = _pair(name, entry)
            except DFlashError as error:
                problem(f"pairs.{name}", f"{name!r}: {error}; the entry is left out")
                continue
            for key in entry.keys() - set(_KEYS):
                problem(f"pairs.{name}.{key}", f"{name!r}: unknown {key!r}, expected {', '.join(_KEYS)}")
    return Catalogue(pairs, tuple(problems))


def _pair(name: str, entry: Any) -> Pair:
    if not _NAME.fullmatch(name):
        raise DFlashError("a name consists of a to z, 0 to 9, dots and dashes")
    if not isinstance(entry, dict):
        raise DFlashError("expected a table with about, licence, target and draft")
    try:
        words = msgspec.convert({key: entry.get(key, "") for key in ("about", "licence", "shapes")}, dict[str, str])
    except msgspec.ValidationError:
        raise DFlashError("about, licence and shapes must be strings") from None
    if words["shapes"]:
        from dflash_core.bench.family_models import MODELS  # late: it imports numpy, and few read the shapes

        if words["shapes"] not in MODELS:
            raise DFlashError(f"shapes: {one_line(words['shapes'])!r}, expected {', '.join(MODELS)}")
    draft = _source(entry["draft"], "draft") if "draft" in entry else None
    target = _source(entry.get("target"), "target")
    about, licence = (one_line(words[key], ABOUT) for key in ("about", "licence"))
    return Pair(name, about, licence, target, draft, words["shapes"])


def source_of(repo: str, file: str, beside: Sequence[str] = ()) -> Source:
    """A file of a repository and those that belong to it. Raises DFlashError for a name that is none."""
    return _source({"repo": repo, "file": file, "beside": [*beside]}, "get")


def _source(entry: Any, what: str) -> Source:
    """Files of a repository. Absolute names and names with .. are refused: they must stay below the user's folder."""
    try:
        source = msgspec.convert(entry, Source)
    except msgspec.ValidationError:
        expected = '{ repo = "owner/name", file = "model.gguf" }, and a list beside'
        raise DFlashError(f"{what}: expected {expected}") from None
    if not _REPO.fullmatch(source.repo) or "--" in source.repo or ".." in source.repo:
        raise DFlashError(f"{what}: {one_line(source.repo)!r} is no repository; expected owner/name")
    split = SPLIT_NAME.fullmatch(source.file)
    if (split and int(split[3]) > MAX_FILES) or len(source.beside) > MAX_FILES:
        raise DFlashError(f"{what}: more than {MAX_FILES} files")
    if split and int(split[2]) != 1:
        later = f"{one_line(source.file)!r} is a later part"
        raise DFlashError(f"{what}: {later}; name the first, -00001-of-{split[3]}.gguf")
    for file in source.files:
        if not _FILE.fullmatch(file) or ".." in file.split("/"):
            raise DFlashError(f"{what}: {one_line(file)!r} is no name of a file in a repository")
    return source
