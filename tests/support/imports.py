"""The imports of a source file, wherever they stand: at the top, in functions, for type checking."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

Import = ast.Import | ast.ImportFrom


@functools.cache
def imports_of(path: Path) -> tuple[Import, ...]:
    return imports_in(path.read_text(encoding="utf-8"))


def imports_in(source: str) -> tuple[Import, ...]:
    return tuple(_imports(ast.parse(source).body))


def _imports(statements: list[ast.stmt]) -> Iterator[Import]:
    """Statements alone are looked through: most of a tree is expressions, which hold no import."""
    for one in statements:
        if isinstance(one, Import):
            yield one
        for part in (one, *getattr(one, "handlers", ()), *getattr(one, "cases", ())):
            for block in ("body", "orelse", "finalbody"):
                yield from _imports(getattr(part, block, []))
