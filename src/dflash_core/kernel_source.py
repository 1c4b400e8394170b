"""Kernel sources on disk: the files that a kernel includes, and a hash of their joint content."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+["<]([^">]+)[">]', re.MULTILINE)


def closure(path: Path, include: Iterable[Path] = ()) -> dict[Path, str]:
    """The text of `path` and of every file it includes, each once, in the order of first mention.

    Includes are searched next to the including file, then in `include`. A file found in neither belongs to the
    compiler and is covered by the compiler's version.
    """
    folders = list(include)
    texts: dict[Path, str] = {}
    waiting = [path]
    while waiting:
        file = waiting.pop(0)
        if file in texts:
            continue
        texts[file] = file.read_text(encoding="utf-8")
        for name in _INCLUDE.findall(texts[file]):
            found = next((folder / name for folder in (file.parent, *folders) if (folder / name).is_file()), None)
            if found is not None:
                waiting.append(found)
    return texts


def content_hash(texts: Mapping[Path, str], *settings: object) -> str:
    """A hash of the sources and of everything else that the result depends on. Folders do not matter, file names do."""
    digest = hashlib.sha256()
    for part in (*settings, *(item for path, text in texts.items() for item in (path.name, text))):
        data = str(part).encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()
