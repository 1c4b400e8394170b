"""The documents of the code name what exists: files, folders, symbols, tests and make targets.

Checked are code spans, and paths and `make` lines in fenced blocks. NAME stands for any name, as in `arch/NAME.py`.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.imports import imports_of

ROOT = Path(__file__).parents[2]
PAGES = ("architecture", "delta-net", "tree", "card-step", "memory", "app")
DOCUMENTS = (*(ROOT / "docs" / f"{page}.md" for page in PAGES), ROOT / "CONTRIBUTING.md")
# Where a path may begin: the top, or a package, whose name readers can add.
PROGRAMS = tuple(ROOT / "src" / part for part in ("", "dflash_core", "dflash_tui", "dflash_tui/application"))
PLACES = (ROOT, *PROGRAMS, ROOT / "tests")
SOURCES = ("src", "tests")
SUFFIXES = {".py", ".cu", ".cuh", ".md", ".toml", ".json", ".tcss"}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"[\w.*-]*(?:/[\w.*-]+)+/?(?:::\w+)?|[\w.-]+/|[\w-]+\.\w+(?:::\w+)?")
SYMBOL = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
PLACEHOLDER = "NAME"


def words(document: str) -> Iterator[str]:
    """The text to check: code spans, and the paths and commands in fenced blocks."""
    for kind, body in FENCE.findall(document):
        for line in body.splitlines():
            if kind in ("", "sh") and line.startswith("make "):
                yield line.split("#")[0]
            yield from (found for found in re.findall(r"[\w.*/-]+", line) if is_path(found) and "/" in found)
    yield from SPAN.findall(FENCE.sub("", document))


def is_path(word: str) -> bool:
    plain = word.partition("::")[0]
    known = "/" in plain or Path(plain).suffix in SUFFIXES or plain == "Makefile"
    return known and (PATH.fullmatch(word) is not None or plain == "Makefile")


def wrong(span: str) -> Iterator[str]:
    """The names in a span that do not exist."""
    if span.startswith("/"):  # a command of the app
        return
    first, *rest = span.split()
    if first == "make" and rest:
        if rest[0] not in targets():
            yield f"make {rest[0]}: no such target"
        return
    for word in span.split() if rest else [span.removesuffix("()")]:
        if PLACEHOLDER in word:
            continue
        if is_path(word):
            if not path_exists(word):
                yield f"{word}: no such file, folder or test"
        elif not rest and SYMBOL.fullmatch(word) and looks_like_code(word) and not symbol_exists(word):
            yield f"{word}: nothing is called so"


def looks_like_code(word: str) -> bool:
    """Names of the sources, and not a word of a shell or a value."""
    return "." in word or "_" in word.strip("_") or word != word.lower()


def path_exists(word: str) -> bool:
    path, _, test = word.partition("::")
    found = [hit for place in PLACES for hit in place.glob(path.rstrip("/"))]
    return bool(found) and (not test or any(test in defined(one) for one in found))


@functools.cache
def targets() -> frozenset[str]:
    return frozenset(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@functools.cache
def defined(path: Path) -> frozenset[str]:
    """Every name that a file defines: also as `Class.member`, and fields and defines by their own names."""
    if path.suffix != ".py":
        text = path.read_text(encoding="utf-8")
        names = set(re.findall(r"\w+", re.sub(r"//.*", "", text)))
        for struct, body in re.findall(r"^struct (\w+) \{(.*?)^\};", text, re.DOTALL | re.MULTILINE):
            names |= {f"{struct}.{name}" for name in re.findall(r"\w+", re.sub(r"//.*", "", body))}
        return frozenset(names)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset[str]().union(*map(_names, tree.body))


def _imported_elsewhere(path: Path) -> set[str]:
    """What a module imports that is not of the program: modules, and names from them."""
    found = set[str]()
    for node in imports_of(path):
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
        elif node.module and not node.module.startswith("dflash_"):
            found |= {node.module} | {one.name for one in node.names}
    return found


def _names(node: ast.AST, inside: str = "") -> set[str]:
    names = set()
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        names.add(inside + node.name)
    if isinstance(node, ast.ClassDef):
        own = f"{inside}{node.name}."
        names |= {name for child in node.body for name in _names(child, own)}
        names |= {
            own + one.attr
            for one in ast.walk(node)
            if isinstance(one, ast.Attribute)
            and isinstance(one.ctx, ast.Store)
            and isinstance(one.value, ast.Name)
            and one.value.id == "self"
        }
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            names |= {inside + one.id for one in ast.walk(target) if isinstance(one, ast.Name)}
    if isinstance(node, (ast.If, ast.Try)):
        names |= {name for child in node.body for name in _names(child, inside)}
    return names


@functools.cache
def everything() -> dict[str, set[str]]:
    """What each module defines, by the module's dotted name; "" holds the names of all modules and of all kernels."""
    found: dict[str, set[str]] = defaultdict(set)
    for place in SOURCES:
        for path in (ROOT / place).rglob("*.py"):
            names = defined(path)
            found[".".join(path.relative_to(ROOT / place).with_suffix("").parts).removesuffix(".__init__")] |= names
            found[""] |= names | {name.rpartition(".")[2] for name in names}
    for path in (ROOT / "kernels").rglob("*.cu*"):
        found[""] |= defined(path)
    return found


def symbol_exists(word: str) -> bool:
    """Whether `word` is a name, `Class.member`, a module, or `module.name`; the package's name may be left out."""
    known = everything()
    if word in known[""] or word in libraries():
        return True
    for package in ("", "dflash_core.", "dflash_tui.", "dflash_tui.application."):
        parts = (package + word).split(".")
        for at in range(len(parts), 0, -1):
            module, name = ".".join(parts[:at]), ".".join(parts[at:])
            if module in known and (not name or name in known[module]):
                return True
    return False


@functools.cache
def libraries() -> frozenset[str]:
    """What is imported from elsewhere."""
    return frozenset[str]().union(*(_imported_elsewhere(path) for path in (ROOT / "src").rglob("*.py")))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_a_document_names_what_exists(document: Path) -> None:
    spans = list(words(document.read_text(encoding="utf-8")))
    assert len(spans) > 5
    assert not [fault for span in spans for fault in wrong(span)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text(encoding="utf-8"))
    assert not [link for link in links if not (document.parent / link).exists()]


def test_the_picture_is_the_import_graph() -> None:
    """Every room (a module or folder at the top of a package) imports only from lower lines of its part of the picture,
    late imports and imports for types included."""
    _, picture = FENCE.findall(DOCUMENTS[0].read_text(encoding="utf-8"))[0]
    for part in re.split(r"^-+\n", picture, flags=re.MULTILINE):
        root, *lines = part.strip().splitlines()
        package = ".".join(Path(root).parts[1:])
        line_of = {
            room.removesuffix("/").removesuffix(".py"): number
            for number, line in enumerate(lines)
            for room in re.match(r"(?: +[\w.]+(?:/|\.py)(?= |$))+", line)[0].split()
        }
        folders = {path.name for path in (ROOT / root).iterdir() if (path / "__init__.py").is_file()}
        assert folders <= line_of.keys()
        upward = [
            f"{path.relative_to(ROOT)} imports {package}.{room}"
            for path in (ROOT / root).rglob("*.py")
            if (here := path.relative_to(ROOT / root).parts[0].removesuffix(".py")) in line_of
            for room in imported(path, package) & line_of.keys()
            if room != here and line_of[room] <= line_of[here]
        ]
        assert not upward


def imported(path: Path, package: str) -> set[str]:
    """The rooms of `package` that a file imports."""
    found = set()
    for node in imports_of(path):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{one.name}" for one in node.names if node.module == package}
        elif isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
    return {name.removeprefix(f"{package}.").split(".")[0] for name in found if name.startswith(f"{package}.")}


@pytest.mark.parametrize(
    "span",
    [
        "make nothing", "backends/nothing.py", "src/dflash_core/nothing/", "tests/unit/test_docs.py::test_nothing",
        "Drafter.nothing", "drafters.base.Nothing", "nothing_of_the_kind", "NothingOfTheKind", "StepState.nothing",
        "python -m pytest tests/unit/test_nothing.py", "tests/nothing*.py",
    ],
)  # fmt: skip
def test_a_name_that_is_gone_is_seen(span: str) -> None:
    assert list(wrong(span))


@pytest.mark.parametrize(
    "span",
    [
        "make test", "backends/base.py", "src/dflash_core/arch/", "Makefile", "arch/NAME.py", "/whatif",
        "Drafter.propose", "drafters.base.Drafter", "dflash_core.engine", "write_knobs", "StepState.pending",
        "WIDTHS", "gdn_recurrence", "tests/unit/test_docs.py::test_a_name_that_is_gone_is_seen", "tests/gpu/test_*.py",
    ],
)  # fmt: skip
def test_a_name_that_is_there_is_found(span: str) -> None:
    assert not list(wrong(span))
