"""Packages depend on each other in one direction, whether an import is made at once, late or for types only."""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Iterable, Iterator
from pathlib import Path

import pytest

import dflash_core
import dflash_tui
from support.imports import Import, imports_in, imports_of

PROGRAMS = {name: Path(one.__file__ or "").parent for name, one in (("core", dflash_core), ("tui", dflash_tui))}
MAX_LOOSE = 8  # files beside the packages of the app
MAX_LINES = 400  # of a file
ARCHITECTURE = re.compile(r"qwen_?3\W?5", re.IGNORECASE)
# Files that may name an architecture outside arch/, and why. This list must not grow.
NAMES = {
    "dflash_core/bench/synthetic_models.py": "writes a model of it",
    "dflash_core/config.py": "the name of a format of drafter files",
    "dflash_core/demo/": "is a model of it",
    "dflash_core/drafters/dflash.py": "the name of a format of drafter files",
    "dflash_core/models/delta_net.py": "says whose formulas the layer has",
    "dflash_core/text/template.py": "says which published template a hash is of",
    "dflash_core/text/pre_tokenizers.py": "the name of a pre-tokenizer",
}


def imported(imports: Iterable[Import], package: str) -> Iterator[str]:
    """The modules that a file names in its imports."""
    for node in imports:
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif node.module:
            yield node.module
            if node.module == package:
                yield from (f"{package}.{one.name}" for one in node.names)


def rooms(root: Path) -> dict[str, dict[str, set[str]]]:
    """By room (a module or folder at the top of a package): the rooms that it uses, and the files that import them."""
    names = {path.stem for path in root.glob("*.py")} | {path.name for path in root.iterdir() if path.is_dir()}
    graph: dict[str, dict[str, set[str]]] = {}
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        here = inside.parts[0].removesuffix(".py")
        uses = graph.setdefault(here, {})
        for module in imported(imports_of(path), root.name):
            parts = module.split(".")
            if parts[0] == root.name and len(parts) > 1 and parts[1] in names and parts[1] != here:
                uses.setdefault(parts[1], set()).add(inside.as_posix())
    return graph


def files(roots: Iterable[Path]) -> dict[str, dict[str, set[str]]]:
    """By module: the modules that its file imports. A package stands for its `__init__`."""
    names = {module(path, root): path for root in roots for path in root.rglob("*.py")}
    graph = {}
    for name, path in names.items():
        used = {one for node in imports_of(path) for one in modules(node, names)}
        graph[name] = {one: {name} for one in used & names.keys() - {name}}
    return graph


def module(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")


def modules(node: Import, names: Container[str]) -> Iterator[str]:
    """The modules that an import names: in `from a import b`, b is a module of `names`, or something in a."""
    if isinstance(node, ast.Import):
        yield from (one.name for one in node.names)
    elif node.module:
        inner = ((f"{node.module}.{one.name}", node.module) for one in node.names)
        yield from (whole if whole in names else outer for whole, outer in inner)


def circles(graph: dict[str, dict[str, set[str]]]) -> set[frozenset[str]]:
    """Sets of two or more rooms that all import each other, directly or through others."""
    reach = {room: set(uses) for room, uses in graph.items()}
    for middle in graph:
        for uses in reach.values():
            if middle in uses:
                uses |= reach.get(middle, set())
    found = {room: {other for other in uses if room in reach.get(other, ())} for room, uses in reach.items()}
    return {frozenset({room, *others}) for room, others in found.items() if others - {room}}


@pytest.mark.parametrize("program", PROGRAMS)
def test_rooms_form_no_circle(program: str) -> None:
    graph = rooms(PROGRAMS[program])
    found = circles(graph)
    guilty = [(a, b, sorted(graph[a][b])) for one in found for a in sorted(one) for b in sorted(one & set(graph[a]))]
    assert not guilty


def test_files_form_no_circle() -> None:
    """Of both programs together."""
    graph = files(PROGRAMS.values())
    assert len(graph) > 300
    found = circles(graph)
    assert not found


def test_a_circle_of_two_files_is_found(tmp_path: Path) -> None:
    """One of them imports the other for types only, the other in a function."""
    root = tmp_path / "p"
    (root / "q").mkdir(parents=True)
    (root / "__init__.py").write_text("")
    (root / "a.py").write_text("if TYPE_CHECKING:\n    from p.q import b\n")
    (root / "q" / "b.py").write_text("def f():\n    import p.a\n")
    (root / "c.py").write_text("from p.a import x\n")
    assert circles(files([root])) == {frozenset({"p.a", "p.q.b"})}


def test_a_circle_is_found() -> None:
    """Over three rooms; a room that is only used is in none."""
    graph = {"a": {"b": {"a/x.py"}}, "b": {"c": {"b.py"}}, "c": {"a": {"c.py"}, "d": {"c.py"}}, "d": {}}
    assert circles(graph) == {frozenset("abc")}
    source = "if TYPE_CHECKING:\n    from p.a import x\ndef f():\n    from p import b\n    import p.c\n"
    assert {"p.a", "p.b", "p.c"} <= set(imported(imports_in(source), "p"))


def test_few_files_stand_outside_the_rooms() -> None:
    assert len([path for path in PROGRAMS["tui"].iterdir() if path.is_file()]) <= MAX_LOOSE


def test_no_file_is_long() -> None:
    sources = [path for root in PROGRAMS.values() for path in root.rglob("*.py")]
    assert not [f"{path}" for path in sources if len(path.read_text(encoding="utf-8").splitlines()) > MAX_LINES]


def test_only_an_architecture_s_own_files_name_it() -> None:
    sources = [(root, path) for root in PROGRAMS.values() for path in root.rglob("*.py")]
    named = {f"{path.relative_to(root.parent)}" for root, path in sources if ARCHITECTURE.search(path.read_text())}
    outside = {path for path in named if not path.startswith(("dflash_core/arch/", *NAMES))}
    assert not outside
    assert all(any(path.startswith(one) for path in named) for one in NAMES), "one that no longer names it"
