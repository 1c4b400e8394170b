"""Committed files that are packed with xz, because weights in F16 take a tenth less so, made whole again."""

from __future__ import annotations

import lzma
import os
from pathlib import Path


def unpacked(packed: Path, into: Path) -> Path:
    """`into`, as a folder with all files of `packed`: NAME.xz is unpacked as NAME, every other file is linked. Several
    processes may do this at once: a file is complete before it gets its name. What `packed` no longer has is removed.
    """
    names = set()
    for source in sorted(path for path in packed.rglob("*") if path.is_file()):
        relative = source.relative_to(packed)
        is_packed = source.suffix == ".xz"
        whole = into / (relative.with_suffix("") if is_packed else relative)
        names.add(whole)
        if whole.exists() and whole.stat().st_mtime >= source.stat().st_mtime:
            continue
        whole.parent.mkdir(parents=True, exist_ok=True)
        partial = whole.with_name(f"{whole.name}.{os.getpid()}")
        if is_packed:
            partial.write_bytes(lzma.decompress(source.read_bytes()))
        else:
            partial.symlink_to(source)
        partial.replace(whole)
    for path in into.rglob("*"):
        if not path.is_dir() and path not in names and not path.suffix[1:].isdigit():
            path.unlink(missing_ok=True)
    return into
