"""Files that a message names with an @: `@notes.md`, `@src/*.py`, `@"a name with spaces.txt"`.

The model gets the message and, below it, each file in its own fence. The app shows one line per file instead.
"""

from __future__ import annotations

import codecs
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash_core.clean import blank, one_line
from dflash_core.errors import DFlashError, InputError
from dflash_core.files import open_input, read_input
from dflash_tui.application.amounts import short

MAX_BYTES = 1 << 20  # bytes of one file
MAX_FILES = 20  # files of one pattern, and of one message
MAX_LISTED = 400  # entries of a folder that begin as the name being typed, and are checked
OFFERED = 40
LOOKED_AT = 4_096  # bytes of a file that are checked for being text
NOT_TEXT = "is not text; only text in UTF-8 can be sent"
BYTES_PER_TOKEN = 4  # typical for text; the tokens are counted once the model is loaded
_MENTION = re.compile(r'(?<![\w@/.])@(?:"([^"\n]+)"|([^\s@"\'`,;:()<>{}|]+))')
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,}).*?(?:^ {0,3}\1[`~]*[ \t]*$|\Z)|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_ENDINGS = frozenset(
    (
        "c", "cc", "cfg", "cpp", "cs", "css", "csv", "cu", "cuh", "go", "h", "hpp", "html", "ini", "java", "js", "json",
        "kt", "log", "lua", "md", "php", "py", "rb", "rs", "rst", "sh", "sql", "swift", "tex", "toml", "ts", "tsv",
        "txt", "xml", "yaml", "yml", "zig",
    )
)  # fmt: skip
_ATTACHED = re.compile(r"\n\nFile ([^\n]+), ([\d,]+) bytes:\n(`{3,})[^\n]*\n(.*?)\n\3(?=\n\nFile |\Z)", re.DOTALL)


class MentionError(DFlashError):
    """A message names a file that cannot be sent."""


@dataclass(frozen=True, slots=True)
class Named:
    """How a file was named: the mark before the name, and the advice for a name that matches no file."""

    mark: str
    remedy: str


TYPED = Named("@", "@@ writes a plain @")
ON_COMMAND_LINE = Named("", "give the path of a text file, or a pattern in quotes")


@dataclass(frozen=True, slots=True)
class Attached:
    """A file as it goes with a message."""

    name: str
    text: str
    size: int

    def as_text(self) -> str:
        """The file as added below the message, in a fence long enough that nothing in the file closes it."""
        longest = max((len(run) for run in re.findall(r"`{3,}", self.text)), default=2)
        fence = "`" * (longest + 1)
        language = self.name.rpartition(".")[2] if "." in self.name else ""
        language = language if re.fullmatch(r"[\w+-]{1,12}", language) else ""
        return f"\n\nFile {self.name}, {self.size:,} bytes:\n{fence}{language}\n{self.text}\n{fence}"


def files(text: str, folder: Path) -> str:
    """The files that a message names, as added below it. Raises MentionError if one of them cannot be sent."""
    return attached(list(mentioned(text)), folder)


def attached(names: Sequence[str], folder: Path, how: Named = TYPED) -> str:
    """Files by name or pattern, each once, as added below a message. In a typed message a word may look like the name
    of a file without being one.

    Raises MentionError.
    """
    files: dict[str, Attached] = {}
    for name in names:
        found: list[Attached] = []
        for path in _paths(name, folder, how):
            shown = one_line(str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path))
            found.append(files.setdefault(shown, attach(path, shown, how)))
            if len(files) > MAX_FILES:
                raise MentionError(f"{how.mark}{name}: more than {MAX_FILES} files in one message; name fewer")
        if found and all(blank(one.text) for one in found):  # of a pattern's files some may be empty
            raise MentionError(f"{how.mark}{name}: there is nothing to read in it; name a file with text")
    return "".join(one.as_text() for one in files.values())


def mentioned(text: str) -> Iterator[str]:
    """The names after an @, except in code."""
    for found in _MENTION.finditer(_FENCE.sub(lambda code: " " * len(code[0]), text)):
        yield found[1] or found[2].rstrip(".!?") or found[2]


def attach(path: Path, name: str, how: Named = TYPED) -> Attached:
    """Read a text file. Raises MentionError for any other file."""
    try:
        data = read_input(path, MAX_BYTES)
    except InputError as error:
        raise MentionError(f"{how.mark}{name} {error.what}") from None
    except OSError as error:
        raise MentionError(f"{how.mark}{name} cannot be read: {error.strerror}; the message is not sent") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise MentionError(f"{how.mark}{name} {NOT_TEXT}")
    return Attached(name, text.replace("\r\n", "\n").rstrip("\n"), len(data))


def _paths(name: str, folder: Path, how: Named) -> Sequence[Path]:
    """The files that a name refers to; none for a typed word that only looks like a name."""
    shown = f"{how.mark}{name}"
    if not name:  # a variable of the shell that is not set
        raise MentionError(f"a file without a name; {how.remedy}")
    try:
        path = folder / Path(name).expanduser()
        if path.is_dir():
            if how is ON_COMMAND_LINE or name.endswith("/"):
                raise MentionError(f"{shown} is a folder; name files in it: {shown.rstrip('/')}/*")
            return []
        if path.exists():
            return [path]
        if any(letter in name for letter in "*?["):
            found = list(itertools.islice(_glob(path, folder), MAX_FILES + 1))
            if len(found) > MAX_FILES:
                raise MentionError(f"{shown}: more than {MAX_FILES} files; a narrower pattern is needed")
            if not found:
                raise MentionError(f"{shown}: no file has such a name; {how.remedy}")
            return sorted(found)
    except (OSError, RuntimeError, ValueError, NotImplementedError) as error:
        raise MentionError(f"{shown}: {one_line(str(error))}; {how.remedy}") from None
    if how is ON_COMMAND_LINE or "/" in name or name.rpartition(".")[2].lower() in _ENDINGS:
        raise MentionError(f"{shown}: no such file; {how.remedy}")
    return []


def _glob(path: Path, folder: Path) -> Iterator[Path]:
    base = folder if path.is_relative_to(folder) else Path(path.anchor)
    for one in base.glob(str(path.relative_to(base))):
        if one.is_file() and not one.name.startswith("."):
            yield one


def collapse(content: str) -> tuple[str, tuple[str, ...]]:
    """A message as it was typed, and a line for each file sent with it."""
    first = _ATTACHED.search(content)
    if first is None:
        return content, ()
    lines = [f"{one[1]} · {short(int(one[2].replace(',', '')))}B" for one in _ATTACHED.finditer(content)]
    return content[: first.start()], tuple(lines)


@dataclass(frozen=True, slots=True)
class Offer:
    """A completion of what is being typed. `text` is the whole prompt after it is taken."""

    text: str
    label: str
    about: str = ""


def offers(text: str, folder: Path) -> list[Offer]:
    """Completions of the name at the end of `text`; none if no name is being typed."""
    found = re.search(r'(?<![\w@/.])@("?)([^\s@"]*)$', text)
    if found is None:
        return []
    quote, name = found[1], found[2]
    where, _, start = name.rpartition("/")
    try:
        base = folder / Path(where + "/" if where else ("/" if name.startswith("/") else ".")).expanduser()
        names = _named(base, start)
    except (OSError, RuntimeError):
        return []
    parent = f"{where}/" if where or name.startswith("/") else ""
    rows = (_offer(text[: found.start()], parent + one, base / one, quote) for one in names)
    return list(itertools.islice(filter(None, rows), OFFERED))  # each offered file has been opened


def _named(folder: Path, start: str) -> list[str]:
    """Entries of a folder whose names begin with `start`, folders first. Raises OSError."""
    with os.scandir(folder) as entries:
        found = [
            (not one.is_dir(), one.name)
            for one in entries
            if one.name.casefold().startswith(start.casefold()) and (start or not one.name.startswith("."))
        ]
    return [name for _, name in sorted(found)[:MAX_LISTED]]


def _offer(before: str, full: str, path: Path, quote: str) -> Offer | None:
    try:
        if path.is_dir():
            return Offer(f"{before}@{quote}{full}/", f"{full}/", "a folder; * for its files")
        size = path.stat().st_size
        if size > MAX_BYTES or not _is_text(path):
            return None
    except (OSError, InputError):
        return None
    marks = '"' if quote or " " in full else ""
    about = f"{short(size)}B · about {short(size / BYTES_PER_TOKEN)} tok"
    return Offer(f"{before}@{marks}{full}{marks} ", full, about)


def _is_text(path: Path) -> bool:
    """Whether a file is text, by its beginning. Raises InputError for what is no regular file, and OSError."""
    with open_input(path) as file:
        head = file.read(LOOKED_AT)
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return b"\0" not in head
