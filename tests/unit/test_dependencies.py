"""What the packages import: declared dependencies alone, and nothing of `tools/`, which a wheel does not have."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from support.imports import imports_of

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
# Modules whose distribution has another name.
DISTRIBUTIONS = {
    "cuda": "cuda-python",
    "markdown_it": "markdown-it-py",
    "mcp_types": "mcp-types",
    "pynvml": "nvidia-ml-py",
}
# Found as files by cuda.pathfinder; named for their lowest safe version only.
EXTRAS = ("plots", "serve", "tools")
NOT_IMPORTED = {"nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "linkify-it-py", "pygments"}


@cache
def imports() -> dict[str, set[str]]:
    """Module -> what it imports, inside functions and for type checking too, by absolute name."""
    found = defaultdict[str, set[str]](set)
    for path in SRC.rglob("*.py"):
        parts = path.relative_to(SRC).with_suffix("").parts
        package = parts[:-1]
        name = ".".join(parts).removesuffix(".__init__")
        for node in imports_of(path):
            if isinstance(node, ast.Import):
                found[name] |= {alias.name for alias in node.names}
            else:
                base = [*package[: len(package) - node.level + 1]] if node.level else []
                source = ".".join([*base, *([node.module] if node.module else [])])
                found[name] |= {source, *(f"{source}.{alias.name}" for alias in node.names)}
    return found


def others(them: set[str]) -> set[str]:
    """Top-level modules that are neither ours nor Python's."""
    return {one.split(".")[0] for one in them} - sys.stdlib_module_names - {"dflash_core", "dflash_tui"}


def project() -> dict[str, list[str]]:
    """Names of the distributions asked for by an installation (key "") and by each extra."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = {"": table["dependencies"], **table["optional-dependencies"]}
    return {extra: [Requirement(one).name for one in them] for extra, them in asked.items()}


def test_an_installation_asks_for_what_is_imported_and_no_more() -> None:
    """`tools` would be a package of its own here, which no installation asks for."""
    used = {DISTRIBUTIONS.get(one, one) for them in imports().values() for one in others(them)}
    extras = {name for extra in EXTRAS for name in project()[extra]}
    assert used == {*project()[""], *extras} - NOT_IMPORTED


@pytest.mark.parametrize(
    ("package", "users"),
    [("matplotlib", {"dflash_core.lab.export"}), ("llguidance", {"dflash_core.constraints.grammar"})],
)
def test_optional_packages(package: str, users: set[str]) -> None:
    assert {name for name, them in imports().items() if package in others(them)} == users
    assert package not in project()[""]


def test_one_module_says_where_files_are_kept() -> None:
    assert {name for name, them in imports().items() if "platformdirs" in others(them)} == {"dflash_core.user_folders"}


def test_the_tests_have_every_extra() -> None:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    [own] = [one for one in table["test"] if one.startswith("dflash-tui[")]
    assert set(re.findall(r"\w+", own.split("[")[1])) == set(EXTRAS)
    assert set(table) == {*EXTRAS, "test", "lint", "dev"}
    [dev] = table["dev"]
    assert set(re.findall(r"\w+", dev.split("[")[1])) == {"test", "lint"}
