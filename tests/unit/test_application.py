"""The application layer stands below every front end."""

from __future__ import annotations

from support.processes import run_python


def test_the_application_layer_needs_no_terminal() -> None:
    code = (
        "import sys, pkgutil, importlib, dflash_tui.application as layer\n"
        "for module in pkgutil.walk_packages(layer.__path__, f'{layer.__name__}.'):\n"
        "    importlib.import_module(module.name)\n"
        "above = [m for m in sys.modules if m.startswith('dflash_tui.') and not m.startswith(layer.__name__)]\n"
        "print(*[m for m in ('textual', 'rich') if m in sys.modules], *above)"
    )
    assert run_python(code) == ""
