"""The core stands below the application layer, and that below every front end; the server is one of its own."""

from __future__ import annotations

from support.processes import run_python

# Each layer with all of its modules, from the lowest on, in one process: importing torch takes longer than the rest.
LAYERS = """
import sys, pkgutil, importlib
allowed = set()
for name in ("dflash_core", "dflash_tui.application", "dflash_tui.server"):
    allowed |= {name, name.split(".")[0]}
    for module in pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}."):
        allowed.add(module.name)
        importlib.import_module(module.name)
    looked_at = [m for m in sys.modules if m.split(".")[0] in ("textual", "rich", "dflash_core", "dflash_tui")]
    print(*(m for m in looked_at if m not in allowed))
"""


def test_no_layer_needs_one_above_it_or_a_terminal() -> None:
    assert run_python(LAYERS) == ""
