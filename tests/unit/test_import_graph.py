"""No two packages of the decoder import each other, imports for type checking counted."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import dflash_core

# How files are read and what they are read into: one room that has two doors today.
KNOWN = {frozenset({"arch", "config", "formats"})}


def imports(path: Path, package: str) -> set[str]:
    """The parts of `package` that a file names, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{one.name}" for one in node.names] if node.module == package else [node.module]
        elif isinstance(node, ast.Import):
            names = [one.name for one in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith(package + ".")}
    return found


def test_no_circle() -> None:
    root = Path(dflash_core.__file__).parent
    graph: dict[str, set[str]] = {}
    for path in root.rglob("*.py"):
        part = path.relative_to(root).with_suffix("").parts[0]
        if part != "__init__":
            graph.setdefault(part, set()).update(imports(path, "dflash_core") - {part})
    assert {"backends", "drafters", "policy"} <= set(graph)
    for known in KNOWN:
        for part in known:
            graph[part] -= known
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(f"a circle of imports: {' -> '.join(error.args[1])}") from None
